"""Estimate the memory of a rank that trains the transformer, by parts. A program: JSON on stdin, JSON on stdout.

It reads a list of ``{"config": {...}, "parallel": {"replicate": 1, "shard": 8, ...}}`` and prints a list of
``{"moment": ..., "bytes": {part: bytes}}``: the moment at which a rank holds the most, and what it is.
It counts tensors, as the allocator of a device does. The controller runs it without any framework, so it needs only the
standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP32 = 4
MOMENTS_OF_ADAM = 2
GATHERED_BLOCKS = 2  # the block that computes, and the next one
PATCH = 2 * 2


@dataclass(frozen=True)
class Training:
    """The sizes of a training, for one rank."""

    config: Mapping[str, Any]
    shard: int
    replicate: int

    @property
    def compute(self) -> int:
        """Bytes of a value in the type of the matrix products."""
        return 2 if self.config["precision"] in ("bf16", "fp16") else FP32

    @property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    @property
    def hidden(self) -> int:
        return self.width * int(self.config["mlp_ratio"])

    @property
    def tokens(self) -> int:
        """The tokens of a batch, text and image."""
        return int(self.config["train_batch_size"]) * self._tokens_of_picture

    @property
    def _tokens_of_picture(self) -> int:
        return int(self.config["latent_side"]) ** 2 // PATCH + int(self.config["text_tokens"])

    # -- parameters --------------------------------------------------------------------------------------

    @property
    def double_block(self) -> int:
        """The parameters of a block: two streams with modulation, attention and feed-forward layers."""
        of_stream = _linear(self.width, 6 * self.width) + _linear(self.width, 3 * self.width) + self._heads
        feed = _linear(self.width, self.hidden) + _linear(self.hidden, self.width)
        return 2 * (of_stream + _linear(self.width, self.width) + feed)

    @property
    def single_block(self) -> int:
        products = _linear(self.width, 3 * self.width + self.hidden) + _linear(self.width + self.hidden, self.width)
        return _linear(self.width, 3 * self.width) + products + self._heads

    @property
    def _heads(self) -> int:
        """The norms of queries and keys."""
        return 2 * self.width // int(self.config["num_heads"])

    @property
    def blocks(self) -> tuple[int, int]:
        """The numbers of blocks of both kinds."""
        return int(self.config["num_double_blocks"]), int(self.config["num_single_blocks"])

    @property
    def outer(self) -> int:
        """The parameters outside the blocks."""
        patch = int(self.config["latent_channels"]) * PATCH
        inputs = _linear(patch, self.width) + _linear(int(self.config["text_size"]), self.width)
        embedders = (int(self.config["time_waves"]), int(self.config["pooled_size"]))
        inputs += sum(_linear(size, self.width) + _linear(self.width, self.width) for size in embedders)
        return inputs + _linear(self.width, 2 * self.width) + _linear(self.width, patch)

    @property
    def parameters(self) -> int:
        double, single = self.blocks
        return self.outer + double * self.double_block + single * self.single_block

    # -- activations, in bytes per token -----------------------------------------------------------------

    @property
    def whole_double(self) -> float:
        """What a double block keeps for its backward pass if nothing is computed again.

        Its input and the sum after attention, both modulated; queries and keys before their norms and after the
        turns; values; the output of attention, projected too; the feed-forward layer before and after GELU, and its
        output, both of which a gate multiplies.
        """
        return self.compute * (12 * self.width + 2 * self.hidden) + self._sums_of_heads + self._uncompiled(2)

    @property
    def whole_single(self) -> float:
        """The same of a single block: input, modulated; queries, keys, values; both halves of the last product."""
        return self.compute * (9 * self.width + 2 * self.hidden) + self._sums_of_heads + self._uncompiled(1)

    @property
    def _sums_of_heads(self) -> float:
        """Of attention, and of the norms of queries and keys."""
        return FP32 * 3 * int(self.config["num_heads"])

    def _uncompiled(self, modulations: int) -> float:
        """What is kept in addition without compiling: normalized inputs of modulations, queries and keys in fp32."""
        if self.config["compile"]:
            return 0.0
        return self.compute * modulations * self.width + FP32 * 2 * 2 * self.width

    def kept(self, *, double: bool) -> float:
        """Return what a block keeps until its backward pass, by ``checkpoint_activations``."""
        mode = self.config["checkpoint_activations"]
        if mode == "selective":  # its input and the outputs of matrix products and attention
            products = 7 * self.width + self.hidden if double else 6 * self.width + self.hidden
            return self.compute * products + FP32 * int(self.config["num_heads"])
        if mode:
            return self.compute * self.width
        return self.whole_double if double else self.whole_single

    @property
    def activations(self) -> float:
        """Bytes of all activations after the forward pass."""
        double, single = self.blocks
        of_blocks = double * self.kept(double=True) + single * self.kept(double=False)
        return self.tokens * (of_blocks + 2 * self.compute * self.width)

    @property
    def in_backward(self) -> float:
        """Bytes of a block's backward pass: gradients of its widest values, and what is computed again.

        A double block has one stream's widest values at a time, which is half of the tokens.
        """
        double = self.compute * (self.hidden + 3 * self.width) + self.whole_double - self.kept(double=True)
        single = self.compute * (2 * self.hidden + 3 * self.width) + self.whole_single - self.kept(double=False)
        return self.tokens * max(double, single)

    # -- the whole ---------------------------------------------------------------------------------------

    @property
    def is_sharded(self) -> bool:
        return self.shard > 1

    def moments(self) -> dict[str, dict[str, float]]:
        """Return what the rank holds at the moments of a training that may need the most."""
        always = {
            "weights": FP32 * self.parameters / self.shard,
            "optimizer": MOMENTS_OF_ADAM * FP32 * self.parameters / self.shard,
        }
        all_gradients = FP32 * self.parameters / self.shard
        # Gradients of earlier micro-steps; the buckets of DDP stay.
        accumulates = int(self.config["gradient_accumulation_steps"]) > 1
        before = all_gradients if accumulates or (self.replicate > 1 and not self.is_sharded) else 0.0
        largest = max(self.double_block, self.single_block)
        if self.is_sharded:
            gathered = self.compute * (self.outer + GATHERED_BLOCKS * largest)
            own = (self.compute + FP32) * largest  # of a block: before and during the exchange
        else:
            gathered = 0.0 if self.compute == FP32 else self.compute * self.parameters  # autocast keeps its copies
            own = 0.0
        return {
            "backward": {
                **always,
                "gradients": before + own,
                "gathered": gathered,
                "activations": self.activations + self.in_backward,
            },
            "end of the backward": {
                **always,
                "gradients": all_gradients + own,
                "gathered": gathered,
                "activations": self.tokens * (self.compute * self.width) + self.in_backward,
            },
            "evaluation": {
                **always,
                # All shards stay gathered, so that ranks may have different numbers of batches.
                "gathered": self.compute * self.parameters if self.is_sharded else gathered,
                "activations": int(self.config["eval_batch_size"]) * self._tokens_of_picture * self.whole_single,
            },
            "update": {
                **always,
                "gradients": all_gradients,
                "copies": 0.0 if self.config["fused_optimizer"] else FP32 * self.parameters / self.shard,
            },
        }


def _linear(size: int, outputs: int) -> int:
    """Return the parameters of a layer with a bias."""
    return (size + 1) * outputs


def estimate(config: Mapping[str, Any], parallel: Mapping[str, int]) -> dict[str, Any]:
    """Return the moment that needs the most memory, and the bytes of its parts; the suite divides no layer."""
    moments = Training(config, parallel["shard"], parallel["replicate"]).moments()
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return {"moment": moment, "bytes": {part: round(size) for part, size in moments[moment].items() if size}}


if __name__ == "__main__":
    json.dump([estimate(**one) for one in json.load(sys.stdin)], sys.stdout)
