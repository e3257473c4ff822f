"""BERT for pretraining: the language-model head computes masked positions only. Names of weights are transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle
from checkpoint import load_checkpoint
from paddle import nn
from paddle.nn import functional

if TYPE_CHECKING:
    from common.language.pretraining import Batch

    from flagperf_driver.paddle import Context

IGNORED = -100
"""The label of a prediction that does not count; a sequence may have fewer masked tokens than predictions."""
EPSILON = 1e-12


class Embeddings(nn.Layer):
    """The sum of the embeddings of a token, its position and its segment."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        # Rounded up to a size that is efficient for matrix units.
        self.word_embeddings = nn.Embedding((config.vocab_size + 7) // 8 * 8, width)
        self.position_embeddings = nn.Embedding(config.max_seq_length, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, epsilon=EPSILON)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: paddle.Tensor, segments: paddle.Tensor) -> paddle.Tensor:
        hidden = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        return self.dropout(self.LayerNorm(hidden + self.position_embeddings.weight[: tokens.shape[1]]))


class SelfAttention(nn.Layer):
    """Attention of all tokens to all unmasked tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self._heads, self._dropout = config.num_attention_heads, config.attention_probs_dropout_prob

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        count, length, width = hidden.shape
        query, key, value = (
            layer(hidden).reshape([count, length, self._heads, width // self._heads])
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self._dropout, training=self.training
        )
        return mixed.reshape([count, length, width])


class Output(nn.Layer):
    """A linear layer whose result is added to the block's input, then normalised."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, epsilon=EPSILON)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, values: paddle.Tensor, before: paddle.Tensor) -> paddle.Tensor:
        return self.LayerNorm(self.dropout(self.dense(values)) + before)


class Attention(nn.Layer):
    """Self-attention with its output."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        return self.output(self.self(hidden, mask), hidden)


class Dense(nn.Layer):
    """A linear layer with GELU, and a norm where the head has one."""

    def __init__(self, inputs: int, outputs: int, *, norm: bool = False) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        if norm:
            self.LayerNorm = nn.LayerNorm(outputs, epsilon=EPSILON)
        self._norm = norm

    def forward(self, values: paddle.Tensor) -> paddle.Tensor:
        values = functional.gelu(self.dense(values))
        return self.LayerNorm(values) if self._norm else values


class Block(nn.Layer):
    """One layer of the encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size)
        self.output = Output(config.intermediate_size, config)

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        attended = self.attention(hidden, mask)
        return self.output(self.intermediate(attended), attended)


class Pretraining(nn.Layer):
    """The encoder with the heads for masked tokens and for the relation of the two segments."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.bert, self.cls = nn.Layer(), nn.Layer()
        self.bert.embeddings = Embeddings(config)
        self.bert.encoder, self.bert.pooler = nn.Layer(), nn.Layer()
        self.bert.encoder.layer = nn.LayerList([Block(config) for _ in range(config.num_hidden_layers)])
        self.bert.pooler.dense = nn.Linear(width, width)
        self.cls.predictions = nn.Layer()
        self.cls.predictions.transform = Dense(width, width, norm=True)
        words = self.bert.embeddings.word_embeddings.weight
        self.cls.predictions.bias = self.cls.predictions.create_parameter([words.shape[0]], is_bias=True)
        self.cls.seq_relationship = nn.Linear(width, 2)
        self._initialize(config.initializer_range)

    def _initialize(self, deviation: float) -> None:
        normal, zero = nn.initializer.Normal(std=deviation), nn.initializer.Constant(0.0)
        for layer in self.sublayers():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                normal(layer.weight)
            if isinstance(layer, nn.Linear):
                zero(layer.bias)

    def encode(self, batch: Batch) -> paddle.Tensor:
        """Return the hidden states of all tokens."""
        hidden = self.bert.embeddings(batch["input_ids"], batch["segment_ids"])
        mask = batch["input_mask"].astype("bool")[:, None, None, :]
        for block in self.bert.encoder.layer:
            hidden = block(hidden, mask)
        return hidden

    def forward(self, batch: Batch, counting: bool = False) -> paddle.Tensor:
        """Return the loss; with ``counting`` return the numbers of correct and of all masked tokens."""
        hidden = self.encode(batch)
        labels = batch["labels"].flatten()
        scores = self.scores(gather(hidden, batch["positions"])).flatten(0, 1)
        if counting:
            valid = labels != IGNORED
            return paddle.stack([((scores.argmax(-1) == labels) & valid).sum(), valid.sum()])
        relation = self.cls.seq_relationship(paddle.tanh(self.bert.pooler.dense(hidden[:, 0])))
        return functional.cross_entropy(
            scores.astype("float32"), labels, ignore_index=IGNORED
        ) + functional.cross_entropy(relation.astype("float32"), batch["next_sentence_labels"])

    def scores(self, masked: paddle.Tensor) -> paddle.Tensor:
        """Return the scores of all words; the weights are those of their embeddings."""
        words = self.bert.embeddings.word_embeddings.weight
        predictions = self.cls.predictions
        return paddle.matmul(predictions.transform(masked), words, transpose_y=True) + predictions.bias


def gather(hidden: paddle.Tensor, positions: paddle.Tensor) -> paddle.Tensor:
    """Return the hidden states at the given positions of each sequence."""
    return paddle.take_along_axis(hidden, positions[:, :, None].expand([-1, -1, hidden.shape[-1]]), 1, broadcast=False)


def create_model(ctx: Context) -> nn.Layer:
    """Build the model; load the checkpoint if the config names one."""
    model = Pretraining(ctx.config)
    if ctx.config.init_checkpoint and not ctx.synthetic:
        if ctx.data_dir is None:
            raise ValueError(f"init_checkpoint = {ctx.config.init_checkpoint!r} needs data_dir; pass --data-dir")
        load_checkpoint(model, ctx.data_dir / ctx.config.init_checkpoint)
    return model


def calculate_loss(ctx: Context, model: nn.Layer, batch: Batch) -> paddle.Tensor:  # noqa: ARG001 - a step's signature
    """Return the loss of the masked tokens plus the loss of the next-sentence prediction."""
    return model(batch)


def evaluate_batch(ctx: Context, model: nn.Layer, batch: Batch) -> paddle.Tensor:  # noqa: ARG001 - a step's signature
    """Return [correct masked tokens, masked tokens]."""
    return model(batch, counting=True)
