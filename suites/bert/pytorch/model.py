"""BERT for pretraining: the library's encoder and heads; the language-model head computes masked positions only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from checkpoint import load_checkpoint
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertForPreTraining, BertSelfAttention

from flagperf_driver.pytorch.device import to_device
from flagperf_driver.pytorch.steps import compile_methods

if TYPE_CHECKING:
    from common.language.pretraining import Batch

    from flagperf_driver.pytorch import Context

IGNORED = -100
"""The label of a prediction that does not count; a sequence may have fewer masked tokens than predictions."""


class LoweredNorm(nn.LayerNorm):
    """Computes in fp32 and returns bf16, so that the residual stream has half of the bytes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).bfloat16()


class JoinedAttention(BertSelfAttention):  # type: ignore[misc, unused-ignore]
    """Computes query, key and value in one product, which reads the input and writes its gradient once.

    The three layers keep their parameters, so that checkpoints, weight decay and trust ratios are those of three.
    """

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        layers = (self.query, self.key, self.value)
        weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
        split = functional.linear(hidden_states, weight, bias).unflatten(-1, (3, self.num_attention_heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout)
        return seen.transpose(1, 2).flatten(2), None


class Pretraining(nn.Module):
    """BertForPreTraining that computes logits only for masked tokens: 76 of 512 positions."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.net = BertForPreTraining(config)

    def forward(self, batch: Batch, counting: bool = False) -> Tensor:
        """Return the loss; with ``counting`` return the numbers of correct and of all masked tokens."""
        # The parts of the library's model, because some of its versions make a mask if they get none.
        bert, mask = self.net.bert, batch.get("input_mask")
        embedded = bert.embeddings(input_ids=batch["input_ids"], token_type_ids=batch["segment_ids"])
        seen = None if mask is None else mask.bool()[:, None, None, :]
        return self.judge(bert.encoder(embedded, attention_mask=seen).last_hidden_state, batch, counting)

    def judge(self, hidden: Tensor, batch: Batch, counting: bool) -> Tensor:
        """Apply the heads."""
        masked = gather(hidden, batch["positions"])
        logits = self.net.cls.predictions(masked).flatten(0, 1)
        labels = batch["labels"].flatten()
        if counting:
            valid = labels != IGNORED
            return torch.stack([((logits.argmax(-1) == labels) & valid).sum(), valid.sum()])
        relation = self.net.cls.seq_relationship(self.net.bert.pooler(hidden))
        return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED) + functional.cross_entropy(
            relation.float(), batch["next_sentence_labels"]
        )


def gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return the hidden states at the given positions of each sequence."""
    return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[-1]))


def create_model(ctx: Context) -> nn.Module:
    """Build the model; load the checkpoint if the config names one."""
    model = Pretraining(architecture(ctx))
    for layer in model.net.bert.encoder.layer:
        layer.attention.self.__class__ = JoinedAttention
    if ctx.config.precision == "bf16":
        for norm in [module for module in model.modules() if type(module) is nn.LayerNorm]:
            norm.__class__ = LoweredNorm
    if ctx.config.init_checkpoint and not ctx.synthetic:
        if ctx.data_dir is None:
            raise ValueError(f"init_checkpoint = {ctx.config.init_checkpoint!r} needs data_dir; pass --data-dir")
        load_checkpoint(model.net, ctx.data_dir / ctx.config.init_checkpoint)
    return model


def architecture(ctx: Context) -> BertConfig:
    """Return the library's config; the vocabulary is rounded up to a size that is efficient for matrix units."""
    config = ctx.config
    return BertConfig(
        vocab_size=(config.vocab_size + 7) // 8 * 8,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_seq_length,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        initializer_range=config.initializer_range,
    )


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one layer for all of them, and what is before and behind the layers."""
    compile_methods(ctx, [model.net.bert.embeddings, *model.net.bert.encoder.layer], "forward")
    compile_methods(ctx, [model], "judge")
    return model


def prepare_batch(ctx: Context, batch: Batch) -> dict[str, Any]:
    """Copy the batch to the device, without the mask if no sequence has padding: a flash kernel takes no mask."""
    full = batch["input_mask"].all()  # on the host, which does not wait here
    needed = {name: values for name, values in batch.items() if name != "input_mask" or not full}
    prepared: dict[str, Any] = to_device(needed, ctx.device)
    return prepared


def calculate_loss(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the loss of the masked tokens plus the loss of the next-sentence prediction."""
    loss: Tensor = model(batch)
    return loss


def evaluate_batch(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return [correct masked tokens, masked tokens]."""
    sums: Tensor = model(batch, counting=True)
    return sums
