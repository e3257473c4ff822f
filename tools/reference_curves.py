"""Combine the rounds of a suite to its reference curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.target import Target
from pytest_flagperf.kinds.training.verdicts.reference import (
    EVALUATIONS,
    FEWEST,
    Batch,
    Reference,
    global_batch,
    of_rounds,
)
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.units import count, plain
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored import read_printable

_TIMES = ("init_timeout_s", "hang_timeout_s", "round_timeout_s")
_NO_EFFECT = frozenset(["seed", "vendor", "data_dir", "num_workers", "min_efficiency", "stop_at_target", *_TIMES])
"""Config keys that do not affect what a model has learned when it reaches its target."""


@dataclass(frozen=True)
class ConvergedRound:
    """A stored round with the name of its run and its config."""

    run: str
    outcome: Outcome
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.run}: {self.outcome.case} round {self.outcome.round}"

    @property
    def shape(self) -> str:
        return f"{self.outcome.nnodes}x{self.outcome.nproc}"


def make_reference(rounds: Sequence[ConvergedRound], target: Target, file: Path) -> tuple[Reference | None, list[str]]:
    """Return the suite's reference from rounds that ended at the target, and notes; None with too few rounds.

    Curves of other batch sizes in the file are kept.
    """
    first = rounds[0].outcome
    batches, notes = [], []
    for size in sorted({global_batch(round_.outcome) or 0 for round_ in rounds}):
        of_size = [round_ for round_ in rounds if global_batch(round_.outcome) == size]
        if len(of_size) < FEWEST:
            batch = f"{first.model}:{first.framework}, a batch of {size:,}"
            notes.append(f"{batch}: {count(len(of_size), 'round')}; expected at least {FEWEST}")
        else:
            batches.append(of_rounds([(round_.run, round_.outcome) for round_ in of_size]))
    if not batches:
        return None, notes
    batches += _kept(file, target, batches, notes)
    batches.sort(key=lambda batch: batch.global_batch)
    reference = Reference(first.model, first.framework, first.scale, first.sample_unit, target, tuple(batches))
    return reference, [*notes, *_long_intervals(reference)]


def one_per_seed(rounds: Sequence[ConvergedRound], notes: list[str]) -> list[ConvergedRound]:
    """Return the first round of each shape and seed: another round of the same seed adds no information."""
    first: dict[tuple[str, int | None], ConvergedRound] = {}
    for round_ in rounds:
        key = round_.shape, round_.outcome.seed
        if key in first:
            notes.append(f"left out: {round_.name}: it has the same seed, {key[1]}, as {first[key].name}")
        else:
            first[key] = round_
    return list(first.values())


def differences(rounds: Sequence[ConvergedRound]) -> Iterator[str]:
    """Yield a sentence for each difference in the training between rounds of one batch size."""
    firsts: dict[int | None, ConvergedRound] = {}
    for round_ in rounds:
        first = firsts.setdefault(global_batch(round_.outcome), round_)
        values, expected = _training(round_), _training(first)
        for key in sorted(values.keys() | expected.keys()):
            if values.get(key) != expected.get(key):
                yield (
                    f"{round_.name}: {key} is {values.get(key)!r}, but {expected.get(key)!r} in {first.name};"
                    " pass only rounds of the same training"
                )


def describe(name: str, reference: Reference) -> Iterator[str]:
    yield name
    for batch in reference.batches:
        low, high = min(batch.to_target), max(batch.to_target)
        shapes = f" ({', '.join(batch.shapes)})" if batch.shapes else ""
        yield (
            f"  a batch of {batch.global_batch:,}{shapes}, {count(len(batch.to_target), 'round')}:"
            f" {plain(low)} to {plain(high)} {reference.sample_unit} to the target; too early is below"
            f" {plain(reference.earliest(batch.global_batch) or 0)}"
        )


def _training(round_: ConvergedRound) -> dict[str, Any]:
    """Return the values that decide what a round learns."""
    config = {key: value for key, value in round_.config.items() if key not in _NO_EFFECT}
    return {**config, "suite_code": round_.outcome.fingerprint.get("suite_code")}


def _kept(file: Path, target: Target, batches: Sequence[Batch], notes: list[str]) -> list[Batch]:
    """Return the file's curves of other batch sizes; none if the file is for another target."""
    if not file.is_file():
        return []
    before = Reference.from_json(read_printable(file), str(file))
    replaced = {batch.global_batch for batch in batches}
    others = [batch for batch in before.batches if batch.global_batch not in replaced]
    if others and before.target != target:
        notes.append(f"{file}: removed the curves for another target, {targets.text(before.target)}")
        return []
    return others


def _long_intervals(reference: Reference) -> Iterator[str]:
    """Yield a note for each batch size whose rounds were evaluated too rarely for the verdict ``not_too_early``."""
    for batch in reference.batches:
        longest = (reference.earliest(batch.global_batch) or 0) / EVALUATIONS
        if batch.interval > longest:
            interval = f"the rounds were evaluated every {batch.interval:,.0f} {reference.sample_unit}"
            fix = f"set eval_samples to {math.floor(longest):,} or less in the suite's config"
            yield f"a batch of {batch.global_batch:,}: {interval}, too rarely for the verdict not_too_early; {fix}"
