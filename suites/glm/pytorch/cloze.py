"""Multi-token cloze questions, which ask which of several answers fills the [MASK].

An example is a text with one mask and several candidates. Each candidate makes one sequence, which gets its own score;
the candidate with the highest score is the answer. A data set is encoded once into a few long tensors (``ClozeSet``),
and batches are extracted from them without a loop over examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

IGNORED = -100
ROUNDED = 128
"""Matrix units compute rows in blocks of such a size."""
Batch = dict[str, "Tensor | int"]


@dataclass(frozen=True)
class Example:
    """One question as text: passage, then the query with the mask between ``before`` and ``after``."""

    passage: str
    before: str
    after: str
    candidates: Sequence[str]
    right: frozenset[int]
    """Indices of the right candidates: one in training, maybe several in evaluation."""


@dataclass(frozen=True)
class Symbols:
    pad: int
    cls: int
    mask: int
    start: int
    end: int


class Tokenizer(Protocol):
    symbols: Symbols
    size: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class ClozeSet:
    """Sequences in long tensors: the text of sequence s is ``texts[text_start[s]:][:text_length[s]]``, and so on.

    Candidates of one example share their text. Example i has the sequences first[i] to first[i + 1] - 1.
    """

    symbols: Symbols
    texts: Tensor
    text_start: Tensor
    text_length: Tensor
    mask_at: Tensor
    answers: Tensor
    answer_start: Tensor
    answer_length: Tensor
    right: Tensor
    first: Tensor

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def candidates(self) -> Tensor:
        """The number of candidates of each example."""
        return self.first.diff()


def encode(examples: Iterable[Example], tokenizer: Tokenizer, length: int, answer_length: int) -> ClozeSet:
    """Encode texts as ``[CLS] passage before [MASK] after [PAD]``; shorten passages that are too long."""
    examples = list(examples)
    builder = _Builder(tokenizer.symbols, length, answer_length)
    passages, befores, afters = (
        tokenizer.encode([getattr(example, part) for example in examples]) for part in ("passage", "before", "after")
    )
    answers = iter(tokenizer.encode([text for example in examples for text in example.candidates]))
    for example, passage, before, after in zip(examples, passages, befores, afters, strict=True):
        builder.add(passage, before, after, [next(answers) for _ in example.candidates], example.right)
    return builder.finish()


@dataclass
class _Builder:
    symbols: Symbols
    length: int
    answer_length: int
    texts: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, bool]] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0])

    def add(
        self, passage: list[int], before: list[int], after: list[int], answers: list[list[int]], right: frozenset[int]
    ) -> None:
        ended = [[*answer[: self.answer_length - 1], self.symbols.end] for answer in answers]
        room = self.length - max(map(len, ended)) - 3
        # Keep the query and shorten the passage, so that the longest answer fits.
        after = after[: max(0, room - len(before))]
        passage = passage[: max(0, room - len(before) - len(after))]
        text = [self.symbols.cls, *passage, *before[:room], self.symbols.mask, *after, self.symbols.pad]
        start, mask_at = len(self.texts), 1 + len(passage) + len(before[:room])
        self.texts += text
        for index, answer in enumerate(ended):
            self.rows.append((start, len(text), mask_at, len(self.answers), len(answer), index in right))
            self.answers += answer
        self.first.append(len(self.rows))

    def finish(self) -> ClozeSet:
        start, length, mask_at, answer_start, answer_length, right = map(torch.tensor, zip(*self.rows, strict=True))
        return ClozeSet(
            symbols=self.symbols,
            texts=torch.tensor(self.texts, dtype=torch.int32),
            text_start=start,
            text_length=length,
            mask_at=mask_at,
            answers=torch.tensor(self.answers, dtype=torch.int32),
            answer_start=answer_start,
            answer_length=answer_length,
            right=right,
            first=torch.tensor(self.first),
        )


def collate(
    data: ClozeSet, chosen: Tensor, length: int, answer_length: int, group: int, *, pack: bool = False
) -> Batch:
    """Return a batch of tensors [examples, candidates, ...], with candidates padded to a multiple of ``group``.

    The padding repeats the example's first candidate and is False in ``valid``. With ``pack``, a batch of one group has
    the ``rows`` that the model computes: the places of all tokens but the padding.
    """
    counts = data.candidates[chosen]
    width = -(-int(counts.max()) // group) * group
    offset = torch.arange(width)
    valid = offset < counts[:, None]
    rows = data.first[chosen][:, None] + torch.where(valid, offset, 0)
    parts = _sequences(data, rows.flatten(), length, answer_length)
    shaped: Batch = {name: part.view(*rows.shape, *part.shape[1:]) for name, part in parts.items()}
    lengths = data.text_length[rows] + data.answer_length[rows].clamp(max=answer_length)
    computed = {"rows": _rows((torch.arange(length) < lengths[..., None]) & valid[..., None])} if (
        pack and width == group
    ) else {}  # fmt: skip
    return {
        **shaped,
        **computed,
        "right": data.right[rows] & valid,
        "valid": valid,
        "sequences": int(valid.sum()),
        "used_tokens": int(lengths[valid].sum()),
    }


def _rows(used: Tensor) -> Tensor:
    """Return the places of the used tokens, and so many others that their number is a multiple of ROUNDED."""
    used = used.flatten()
    rows = used.nonzero()[:, 0]
    return torch.cat([rows, (~used).nonzero()[: -len(rows) % ROUNDED, 0]])


def _sequences(data: ClozeSet, rows: Tensor, length: int, answer_length: int) -> dict[str, Tensor]:
    text_length = data.text_length[rows][:, None]
    answered = data.answer_length[rows][:, None].clamp(max=answer_length)
    place = torch.arange(length)
    behind = place - text_length  # 0 at the first token of Part B, the start symbol
    in_text, in_answer = behind < 0, (behind >= 0) & (behind < answered)
    text = data.texts[_within(data.text_start[rows][:, None] + place, data.texts)]
    written = data.answers[_within(data.answer_start[rows][:, None] + behind - 1, data.answers)]
    written = torch.where(behind == 0, data.symbols.start, written)
    tokens = torch.where(in_text, text, torch.where(in_answer, written, data.symbols.pad))
    offset = torch.arange(answer_length)
    target = data.answers[_within(data.answer_start[rows][:, None] + offset, data.answers)]
    return {
        "tokens": tokens.int(),
        "positions": torch.where(in_text, place, torch.where(in_answer, data.mask_at[rows][:, None], 0)).int(),
        "spans": torch.where(in_answer, behind + 1, 0).int(),
        "text_length": text_length[:, 0],
        "targets": torch.where(offset < answered, target, IGNORED).long(),
    }


def _within(index: Tensor, values: Tensor) -> Tensor:
    """Limit the index to the tensor; values read for limited indices are not used."""
    return index.clamp(0, len(values) - 1)


INPUTS = ("tokens", "positions", "spans", "text_length", "targets")


def scores(model: nn.Module, batch: Batch, group: int) -> Tensor:
    """Return each candidate's log-probability as [examples, candidates]; minus infinity for padding.

    The model gets ``group`` candidates of each example at a time, so that its inputs always have the same shape.
    """
    inputs = [batch[name].split(group, dim=1) for name in INPUTS]
    groups = [
        model(*(part.flatten(0, 1) for part in parts), batch.get("rows")).view(len(parts[0]), -1).float()
        for parts in zip(*inputs, strict=True)
    ]
    return torch.cat(groups, dim=1).masked_fill(~batch["valid"], -torch.inf)


def loss(scored: Tensor, batch: Batch, generative_weight: float) -> Tensor:
    """Return the cross-entropy of the right candidate among all candidates of its example.

    ``generative_weight`` adds the right answer's own cross-entropy per token, with this weight: a model without
    pretraining cannot learn to fill blanks from comparisons only.
    """
    label = batch["right"].int().argmax(dim=1)
    compared = F.cross_entropy(scored, label)
    if not generative_weight:
        return compared
    tokens = (batch["targets"] != IGNORED).sum(dim=2).gather(1, label[:, None])
    written = -scored.gather(1, label[:, None]).sum() / tokens.sum()
    return compared + generative_weight * written


def correct(scored: Tensor, batch: Batch) -> Tensor:
    """Return for each example whether the candidate with the highest score is right."""
    return batch["right"].gather(1, scored.argmax(dim=1, keepdim=True))[:, 0]
