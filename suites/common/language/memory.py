"""Estimate the memory of a rank that trains a decoder, by parts. A program: JSON on stdin, JSON on stdout.

It reads a list of ``{"config": {...}, "parallel": {"replicate": 1, "shard": 8, "tensor": 1}}`` and prints a list of
``{"moment": ..., "bytes": {part: bytes}}``: the moment of a step at which a rank holds the most, and what it is.
It counts tensors, as the allocator of a device does: not the context of a device, nor buffers of collectives. The
controller runs it without any framework, so it needs only the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP32 = 4
MOMENTS_OF_ADAM = 2
WHOLE_EXCHANGED = 8  # widths: tensor ranks gather twice and reduce twice, with a whole input and output; measured
GATHERED_BLOCKS = 2  # the block that computes, and the next one


@dataclass(frozen=True)
class Training:
    """The sizes of a training, for one rank."""

    config: Mapping[str, Any]
    shard: int
    tensor: int
    replicate: int

    @property
    def compute(self) -> int:
        """Bytes of a value in the type of the matrix products."""
        return 2 if self.config["precision"] in ("bf16", "fp16") else FP32

    @property
    def tokens(self) -> int:
        return int(self.config["train_batch_size"] * self.config["max_seq_length"])

    @property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    @property
    def kv_width(self) -> int:
        return self.width // int(self.config["num_heads"]) * int(self.config["num_kv_heads"])

    @property
    def hidden(self) -> int:
        return int(self.config["intermediate_size"])

    @property
    def layers(self) -> int:
        return int(self.config["num_layers"])

    # -- parameters --------------------------------------------------------------------------------------

    @property
    def table(self) -> int:
        """The parameters of the embedding, and those of the head."""
        return int(self.config["vocab_size"]) * self.width

    @property
    def outer(self) -> int:
        """The parameters of the embedding and the head together."""
        return self.table * (1 if self.config["tied_embeddings"] else 2)

    @property
    def products(self) -> int:
        """The parameters of a block's matrix products."""
        return self.width * (2 * self.width + 2 * self.kv_width + 3 * self.hidden)

    @property
    def parameters(self) -> int:
        return self.outer + self.layers * (self.products + 2 * self.width) + self.width

    # -- activations -------------------------------------------------------------------------------------

    @property
    def whole_block(self) -> float:
        """Bytes per token that a block keeps for its backward pass if nothing is computed again.

        Its input and the sum after attention, both normalized, queries, keys and values, the output of attention with
        its fp32 norm per head, and three widths of the feed-forward part. Sequences are split over tensor ranks, but
        the inputs of matrix products are gathered whole.
        """
        split = 3 * self.width + self._attention_inputs + 3 * self.hidden
        return self.compute * (2 * self.width + split / self.tensor) + self._norms_of_heads + self._uncompiled

    @property
    def _uncompiled(self) -> float:
        """Bytes per token that a block keeps in addition if it is not compiled: steps of SiLU and of the norms."""
        if self.config["compile"]:
            return 0.0
        if self.compute == FP32:
            norms = FP32 * 2 * self.width
        else:  # in fp32 where the norm's weight is; its inputs in bf16 are not kept then
            norms = 0 if self.is_sharded else (2 * FP32 - self.compute) * 2 * self.width
        return (self.compute * self.hidden + norms) / self.tensor

    @property
    def kept_block(self) -> float:
        """Bytes per token that a block keeps until its backward pass, by ``checkpoint_activations``."""
        mode = self.config["checkpoint_activations"]
        if mode == "selective":  # its input and the outputs of matrix products and attention
            kept = 4 * self.width + self._attention_inputs + 2 * self.hidden
            return self.compute * kept / self.tensor + self._norms_of_heads
        return self.compute * self.width / self.tensor if mode else self.whole_block

    @property
    def _attention_inputs(self) -> int:
        return self.width + 2 * self.kv_width

    @property
    def _norms_of_heads(self) -> float:
        return FP32 * int(self.config["num_heads"]) / self.tensor

    @property
    def kept(self) -> float:
        """Bytes of all activations after the forward pass: the blocks', and two at the last norm."""
        last = self.compute * self.width * (1 + 1 / self.tensor)
        return self.tokens * (self.layers * self.kept_block + last)

    @property
    def in_backward(self) -> float:
        """Bytes of a block's backward pass: gradients of its widest values, and what is computed again."""
        gradients = self.compute * (2 * self.hidden + self.width) / self.tensor
        again = 1.5 if self.config["checkpoint_activations"] else 1  # the forward pass gathers and reduces, too
        exchanged = self.compute * WHOLE_EXCHANGED * again * self.width if self.tensor > 1 else 0
        return self.tokens * (gradients + exchanged + self.whole_block - self.kept_block)

    # -- the loss ----------------------------------------------------------------------------------------

    @property
    def logits(self) -> float:
        """Bytes of a chunk's logits, the gradients of this chunk and the one before; uncompiled with fp32 copies."""
        tokens = min(self.tokens, int(self.config["loss_chunk"]))
        before = self.compute if tokens < self.tokens else 0
        copies = self.compute if self.config["compile"] else 3 * FP32
        return tokens * int(self.config["vocab_size"]) / self.tensor * (self.compute + copies + before)

    # -- the whole ---------------------------------------------------------------------------------------

    @property
    def is_sharded(self) -> bool:
        return self.shard > 1 or self.tensor > 1

    def moments(self) -> dict[str, dict[str, float]]:
        """Return what the rank holds at the moments of a step that may need the most."""
        ranks = self.shard * self.tensor
        always = {
            "weights": FP32 * self.parameters / ranks,
            "optimizer": MOMENTS_OF_ADAM * FP32 * self.parameters / ranks,
        }
        all_gradients = FP32 * self.parameters / ranks
        # Gradients of earlier micro-steps; the buckets of DDP stay.
        accumulates = int(self.config["gradient_accumulation_steps"]) > 1
        before = all_gradients if accumulates or (self.replicate > 1 and not self.is_sharded) else 0.0
        table = self.table / self.tensor
        if self.is_sharded:
            gathered = self.compute * (self.outer / self.tensor + GATHERED_BLOCKS * self.products / self.tensor)
            root_gradients = self.compute * table
            reduced = (self.compute + FP32) * self.outer / self.tensor
        else:
            blocks = self.layers if not (self.config["compile"] and self.config["checkpoint_activations"]) else 1
            gathered = 0 if self.compute == FP32 else self.compute * (blocks * self.products + self.table)
            root_gradients, reduced = FP32 * self.table, 0.0
        return {
            "loss": {
                **always,
                "gradients": before + (FP32 + self.compute) * table,
                "gathered": gathered,
                "activations": self.kept + self.compute * self.tokens * self.width,
                "logits": self.logits,
            },
            "backward": {
                **always,
                "gradients": max(before, root_gradients),
                "gathered": gathered,
                "activations": self.kept + self.in_backward,
            },
            "reduction": {
                **always,
                "gradients": all_gradients + reduced,
                "gathered": gathered if self.is_sharded else 0.0,
                "activations": self.tokens * self.compute * self.width / self.tensor,
            },
            "update": {
                **always,
                "gradients": all_gradients,
                "copies": 0.0 if self.config["fused_optimizer"] else FP32 * self.parameters / ranks,
            },
        }


def estimate(config: Mapping[str, Any], parallel: Mapping[str, int]) -> dict[str, Any]:
    """Return the moment of a step that needs the most memory, and the bytes of its parts."""
    moments = Training(config, **parallel).moments()
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return {"moment": moment, "bytes": {part: round(size) for part, size in moments[moment].items() if size}}


if __name__ == "__main__":
    json.dump([estimate(**one) for one in json.load(sys.stdin)], sys.stdout)
