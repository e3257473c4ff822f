"""BERT for pretraining: the language-model head computes masked positions only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mindspore as ms
from checkpoint import load_checkpoint
from mindspore import nn, ops
from mindspore.common.initializer import Normal

if TYPE_CHECKING:
    from flagperf_driver.mindspore import Context

IGNORED = -100
"""The label of a prediction that does not count; a sequence may have fewer masked tokens than predictions."""
EPSILON = 1e-12
MASKED = -10000.0
"""Added to the attention scores of padding: fp16 has it, and its exponential is zero."""

Batch = dict[str, ms.Tensor]


class Embeddings(nn.Cell):  # type: ignore[misc]
    """The sum of the embeddings of a token, its position and its segment."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, initial = config.hidden_size, Normal(config.initializer_range)
        # Rounded up to a size that is efficient for matrix units.
        self.word_embeddings = nn.Embedding((config.vocab_size + 7) // 8 * 8, width, embedding_table=initial)
        self.position_embeddings = nn.Embedding(config.max_seq_length, width, embedding_table=initial)
        self.token_type_embeddings = nn.Embedding(2, width, embedding_table=initial)
        self.LayerNorm = nn.LayerNorm((width,), epsilon=EPSILON)
        self.dropout = nn.Dropout(p=config.hidden_dropout_prob)

    def construct(self, tokens: Any, segments: Any) -> Any:
        hidden = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        return self.dropout(self.LayerNorm(hidden + self.position_embeddings.embedding_table[: tokens.shape[1]]))


class Output(nn.Cell):  # type: ignore[misc]
    """A linear layer whose result is added to the block's input, then normalised."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__()
        self.dense = _linear(inputs, config.hidden_size, config)
        self.LayerNorm = nn.LayerNorm((config.hidden_size,), epsilon=EPSILON)
        self.dropout = nn.Dropout(p=config.hidden_dropout_prob)

    def construct(self, values: Any, before: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(values)) + before)


class Attention(nn.Cell):  # type: ignore[misc]
    """Attention of all tokens to all unmasked tokens, with its output."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.query, self.key, self.value = [_linear(width, width, config) for _ in range(3)]
        self.heads, self.size = config.num_attention_heads, width // config.num_attention_heads
        self.dropout = nn.Dropout(p=config.attention_probs_dropout_prob)
        self.output = Output(width, config)

    def construct(self, hidden: Any, masked: Any) -> Any:
        count, length, width = hidden.shape
        shape = (count, length, self.heads, self.size)
        query = self.query(hidden).reshape(shape).transpose(0, 2, 1, 3)
        key = self.key(hidden).reshape(shape).transpose(0, 2, 3, 1)
        value = self.value(hidden).reshape(shape).transpose(0, 2, 1, 3)
        shares = ops.softmax(ops.matmul(query, key) / math.sqrt(self.size) + masked, -1)
        mixed = ops.matmul(self.dropout(shares), value).transpose(0, 2, 1, 3).reshape(count, length, width)
        return self.output(mixed, hidden)


class Dense(nn.Cell):  # type: ignore[misc]
    """A linear layer with GELU, and a norm where the head has one."""

    def __init__(self, inputs: int, outputs: int, config: Any, *, norm: bool = False) -> None:
        super().__init__()
        self.dense = _linear(inputs, outputs, config)
        self.gelu = nn.GELU(approximate=False)
        self.LayerNorm = nn.LayerNorm((outputs,), epsilon=EPSILON) if norm else nn.Identity()

    def construct(self, values: Any) -> Any:
        return self.LayerNorm(self.gelu(self.dense(values)))


class Block(nn.Cell):  # type: ignore[misc]
    """One layer of the encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size, config)
        self.output = Output(config.intermediate_size, config)

    def construct(self, hidden: Any, masked: Any) -> Any:
        attended = self.attention(hidden, masked)
        return self.output(self.intermediate(attended), attended)


class Encoder(nn.Cell):  # type: ignore[misc]
    """The blocks."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.CellList([Block(config) for _ in range(config.num_hidden_layers)])

    def construct(self, hidden: Any, masked: Any) -> Any:
        for block in self.layer:
            hidden = block(hidden, masked)
        return hidden


class Pooler(nn.Cell):  # type: ignore[misc]
    """The state of the whole sequence, from its first token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = _linear(config.hidden_size, config.hidden_size, config)

    def construct(self, hidden: Any) -> Any:
        return ops.tanh(self.dense(hidden[:, 0]))


class Bert(nn.Cell):  # type: ignore[misc]
    """The encoder; returns the states of all tokens and of the sequence."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.pooler = Embeddings(config), Encoder(config), Pooler(config)

    def construct(self, tokens: Any, segments: Any, mask: Any) -> Any:
        hidden = self.embeddings(tokens, segments)
        masked = ((1 - mask) * MASKED).astype(hidden.dtype)[:, None, None, :]
        hidden = self.encoder(hidden, masked)
        return hidden, self.pooler(hidden)


class Predictions(nn.Cell):  # type: ignore[misc]
    """The scores of all words; the weights are those of their embeddings."""

    def __init__(self, words: int, config: Any) -> None:
        super().__init__()
        self.transform = Dense(config.hidden_size, config.hidden_size, config, norm=True)
        self.bias = ms.Parameter(ms.ops.zeros(words), name="bias")

    def construct(self, masked: Any, words: Any) -> Any:
        states = self.transform(masked)
        return ops.matmul(states, words.astype(states.dtype).T) + self.bias


class Heads(nn.Cell):  # type: ignore[misc]
    """The heads for masked tokens and for the relation of the two segments."""

    def __init__(self, words: int, config: Any) -> None:
        super().__init__()
        self.predictions = Predictions(words, config)
        self.seq_relationship = _linear(config.hidden_size, 2, config)

    def construct(self, masked: Any, sequence: Any, words: Any) -> Any:
        return self.predictions(masked, words), self.seq_relationship(sequence)


class Pretraining(nn.Cell):  # type: ignore[misc]
    """The encoder with its heads."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.cls = Heads(len(self.bert.embeddings.word_embeddings.embedding_table), config)

    def construct(self, tokens: Any, segments: Any, mask: Any, positions: Any) -> Any:
        """Return the scores of the words at the positions (samples * predictions), and those of the relation."""
        hidden, sequence = self.bert(tokens, segments, mask)
        count, length, width = hidden.shape
        places = positions + ops.arange(count).reshape(-1, 1) * length
        masked = ops.gather(hidden.reshape(count * length, width), places.reshape(-1), 0)
        return self.cls(masked, sequence, self.bert.embeddings.word_embeddings.embedding_table)


def create_model(ctx: Context) -> nn.Cell:
    """Build the model; load the checkpoint if the config names one."""
    model = Pretraining(ctx.config)
    if ctx.config.init_checkpoint and not ctx.synthetic:
        if ctx.data_dir is None:
            raise ValueError(f"init_checkpoint = {ctx.config.init_checkpoint!r} needs data_dir; pass --data-dir")
        load_checkpoint(model, ctx.data_dir / ctx.config.init_checkpoint)
    return model


def calculate_loss(ctx: Context, model: Any, batch: Batch) -> ms.Tensor:  # noqa: ARG001 - a step's signature
    """Return the loss of the masked tokens plus the loss of the next-sentence prediction."""
    scores, relation = model(batch["input_ids"], batch["segment_ids"], batch["input_mask"], batch["positions"])
    labels, follows = batch["labels"].reshape(-1).astype(ms.int32), batch["next_sentence_labels"].astype(ms.int32)
    return ops.cross_entropy(scores.astype(ms.float32), labels, ignore_index=IGNORED) + ops.cross_entropy(
        relation.astype(ms.float32), follows
    )


def evaluate_batch(ctx: Context, model: Any, batch: Batch) -> ms.Tensor:  # noqa: ARG001 - a step's signature
    """Return [correct masked tokens, masked tokens]."""
    scores, _ = model(batch["input_ids"], batch["segment_ids"], batch["input_mask"], batch["positions"])
    labels = batch["labels"].reshape(-1)
    valid = (labels != IGNORED).astype(ms.float32)
    right = (scores.argmax(-1) == labels).astype(ms.float32)
    return ops.stack([(right * valid).sum(), valid.sum()])


def _linear(inputs: int, outputs: int, config: Any) -> nn.Cell:
    return nn.Dense(inputs, outputs, weight_init=Normal(config.initializer_range), bias_init="zeros")
