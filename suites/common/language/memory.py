"""Estimate the memory of a rank that trains a decoder, by parts. A program: JSON on stdin, JSON on stdout.

It reads a list of ``{"config": {...}, "parallel": {"replicate": 1, "shard": 8, "expert": 1, "tensor": 1}}`` and prints
a list of ``{"moment": ..., "bytes": {part: bytes}}``: the moment of a step at which a rank holds the most, and what it
is. A mixture's experts are expected to get equally many tokens. It counts tensors, as the allocator of a device does:
not the context of a device, nor buffers of collectives. The controller runs it without any framework, so it needs only
the standard library.
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
SINKS = 8  # dimensions of each head that attention adds
ACTIVATION_STEPS = 4  # widths that the uncompiled activation of an expert keeps for its gradient
GATHERED_BLOCKS = 2  # the block that computes, and the next one


@dataclass(frozen=True)
class Training:
    """The sizes of a training, for one rank."""

    config: Mapping[str, Any]
    shard: int
    tensor: int
    replicate: int
    expert: int

    @property
    def compute(self) -> int:
        """Bytes of a value in the type of the matrix products."""
        return FP32 if self.config["precision"] in ("fp32", "tf32") else 2

    @property
    def tokens(self) -> int:
        return int(self.config["train_batch_size"] * self.config["max_seq_length"])

    @property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    @property
    def kv_width(self) -> int:
        return int(self.config["head_size"]) * int(self.config["num_kv_heads"])

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

    @property
    def gathered_block(self) -> float:
        """The parameters of a block that a rank holds for its products while it computes the block."""
        return self.products / self.tensor

    @property
    def block_gradients(self) -> float:
        """Bytes of gradients of a block's backward pass beyond those of the root."""
        return 0.0

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
        return max(self.shard, self.expert, self.tensor) > 1

    def moments(self) -> dict[str, dict[str, float]]:
        """Return what the rank holds at the moments of a step that may need the most."""
        ranks = self.shard * self.expert * self.tensor
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
            gathered = self.compute * (self.outer / self.tensor + GATHERED_BLOCKS * self.gathered_block)
            root_gradients = self.compute * table
            reduced = (self.compute + FP32) * self.outer / self.tensor
        else:
            blocks = self.layers if not (self.config["compile"] and self.config["checkpoint_activations"]) else 1
            gathered = 0 if self.compute == FP32 else self.compute * (blocks * self.gathered_block + self.table)
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
                "gradients": max(before, root_gradients) + self.block_gradients,
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


class Mixture(Training):
    """A decoder whose blocks have a mixture of experts instead of a feed-forward layer, and attention with sinks."""

    @property
    def queries(self) -> int:
        return int(self.config["num_heads"]) * int(self.config["head_size"])

    @property
    def rows(self) -> int:
        """The number of experts of a token."""
        return int(self.config["experts_per_token"])

    @property
    def one_expert(self) -> int:
        """The parameters of an expert."""
        return 3 * self.width * self.hidden + 2 * self.hidden + self.width

    @property
    def other_products(self) -> int:
        """The parameters of a block without its experts, norms and sinks."""
        attention = 2 * self.width * (self.queries + self.kv_width) + self.queries + 2 * self.kv_width + self.width
        return attention + (self.width + 1) * int(self.config["num_experts"])

    @property
    def products(self) -> int:
        return self.other_products + int(self.config["num_experts"]) * self.one_expert

    @property
    def parameters(self) -> int:
        return super().parameters + self.layers * int(self.config["num_heads"])

    @property
    def experts_here(self) -> float:
        """The parameters of the experts of a block that a rank computes."""
        return int(self.config["num_experts"]) / (self.expert * self.tensor) * self.one_expert

    @property
    def gathered_block(self) -> float:
        return self.other_products / self.tensor + self.experts_here

    @property
    def block_gradients(self) -> float:
        return (self.compute + FP32 if self.is_sharded else 0) * self.experts_here

    @property
    def _attention_kept(self) -> float:
        """Bytes per token that attention keeps: padded for sinks; keys and values twice in layers with a window."""
        windows = self.layers - self.layers // 2
        keys = 2 * self.kv_width * (1 + windows / self.layers)
        return self.compute * self._padded * (2 * self.queries + keys) / self.tensor + self._norms_of_heads

    @property
    def _padded(self) -> float:
        """The size of a head with the dimensions for its sink over the size without."""
        return 1 + SINKS / int(self.config["head_size"])

    @property
    def whole_block(self) -> float:
        """Bytes per token: the residual stream twice, normalized too, attention, and the rows of its experts.

        Of each row: its input, the gates and values, the activation's output, and the output of the expert.
        """
        normalized = self.width * (1 + 1 / self.tensor)  # whole before attention
        outer = self.compute * (normalized + (2 * self.width + self.queries) / self.tensor) + self._attention_kept
        rows = self.rows * self.compute * (2 * self.width + 3 * self.hidden) / self.tensor
        return outer + rows + self._uncompiled

    @property
    def _uncompiled(self) -> float:
        """Bytes per token that a block keeps in addition if it is not compiled: steps of the activation, norms."""
        if self.config["compile"]:
            return 0.0
        activations = self.rows * self.compute * ACTIVATION_STEPS * self.hidden
        return (activations + FP32 * 2 * self.width) / self.tensor

    @property
    def kept_block(self) -> float:
        mode = self.config["checkpoint_activations"]
        if mode == "selective":
            attention = 2 * self.width + (1 + self._padded) * self.queries + 2 * self.kv_width
            rows = self.rows * (self.width + 2 * self.hidden)  # the tokens are exchanged again
            return self.compute * (attention + rows) / self.tensor + self._norms_of_heads
        return self.compute * self.width / self.tensor if mode else self.whole_block

    @property
    def in_backward(self) -> float:
        gradients = self.rows * self.compute * (2 * self.hidden + self.width) / self.tensor
        return self.tokens * (gradients + self.whole_block - self.kept_block)


def estimate(config: Mapping[str, Any], parallel: Mapping[str, int]) -> dict[str, Any]:
    """Return the moment of a step that needs the most memory, and the bytes of its parts."""
    moments = (Mixture if "num_experts" in config else Training)(config, **parallel).moments()
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return {"moment": moment, "bytes": {part: round(size) for part, size in moments[moment].items() if size}}


if __name__ == "__main__":
    json.dump([estimate(**one) for one in json.load(sys.stdin)], sys.stdout)
