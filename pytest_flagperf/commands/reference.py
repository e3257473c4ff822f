"""Make a suite's reference curves from stored rounds that converged; later rounds are judged by these curves.

The curves are written to suites/<model>/<framework>/reference/<scale>.json. Curves of other batch sizes in this file
are kept. Each batch size needs at least five rounds with different seeds, the same config and the same suite; ten
rounds are better.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.commands import common
from pytest_flagperf.commands.source_tree import tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import StoredRun
from pytest_flagperf.results.units import count, plain, quantity
from pytest_flagperf.results.verdicts import converges, failed
from pytest_flagperf.results.verdicts.reference import EVALUATIONS, FEWEST, Batch, Reference, global_batch, of_rounds
from pytest_flagperf.stored import read_printable, write_text
from pytest_flagperf.stored.round import RoundDir

_TIMES = ("init_timeout_s", "hang_timeout_s", "round_timeout_s")
_NO_EFFECT = frozenset(["seed", "vendor", "data_dir", "num_workers", "min_efficiency", *_TIMES])
"""Config keys that do not affect what a model learns."""
_SuiteScale = tuple[str, str, str]  # model, framework, scale


@dataclass(frozen=True)
class _Round:
    run: str
    outcome: Outcome
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.run}: {self.outcome.case} round {self.outcome.round}"

    @property
    def suite_scale(self) -> _SuiteScale:
        return self.outcome.model, self.outcome.framework, self.outcome.scale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="the file to write; all runs must be of one suite and scale"
    )


def run(arguments: argparse.Namespace) -> int:
    rounds = list(_rounds(common.load_runs(arguments.runs)))
    suite_scales = list(dict.fromkeys(round_.suite_scale for round_ in rounds))
    if arguments.to and len(suite_scales) > 1:
        names = ", ".join(":".join(names) for names in suite_scales)
        raise Problems([f"--to={arguments.to}: expected runs of one suite and scale, got {names}"])
    files = {suite_scale: arguments.to or _file(suite_scale) for suite_scale in suite_scales}
    references, notes, problems = {}, [], []
    for suite_scale in suite_scales:
        reference, new_notes, new_problems = _make_reference(
            [round_ for round_ in rounds if round_.suite_scale == suite_scale], files[suite_scale]
        )
        notes += new_notes
        problems += new_problems
        references[suite_scale] = reference
    if problems:
        raise Problems([*problems, *notes])
    for suite_scale, reference in references.items():
        write_text(files[suite_scale], reference.text())
        print("\n".join(_lines(files[suite_scale], reference)))
    print("".join(f"note: {note}\n" for note in notes), end="")
    return 0


def _rounds(runs: Sequence[StoredRun]) -> Iterator[_Round]:
    for name, run in zip(common.unique_names(runs), runs, strict=True):
        for outcome in (outcome for case in run.cases for outcome in case.outcomes):
            plan = RoundDir(run.directory / outcome.directory).read_plan()
            yield _Round(name, outcome, plan.config)


def _file(suite_scale: _SuiteScale) -> Path:
    model, framework, scale = suite_scale
    catalog = tree.catalog()
    suite = catalog.suite(model, framework)
    if suite.root in catalog.packages:
        raise Problems([f"{suite.name} is part of the installed {catalog.packages[suite.root]}; pass --to=FILE"])
    return suite.reference_file(scale)


def _make_reference(rounds: Sequence[_Round], file: Path) -> tuple[Reference, list[str], list[str]]:
    """Return the suite's reference with the curves of these rounds, notes to print, and problems."""
    first = rounds[0].outcome
    notes: list[str] = []
    usable = [round_ for round_ in rounds if not _unusable(round_, notes)]
    problems = list(_differences(usable))
    batches = []
    for size in sorted({global_batch(round_.outcome) or 0 for round_ in usable}):
        of_size = _one_per_seed([round_ for round_ in usable if global_batch(round_.outcome) == size], notes)
        if len(of_size) < FEWEST:
            batch = f"{first.model}:{first.framework}, a batch of {size:,}"
            notes.append(f"{batch}: {count(len(of_size), 'round')} converged; expected at least {FEWEST}")
        elif not problems:
            batches.append(of_rounds([(round_.run, round_.outcome) for round_ in of_size]))
    if not batches and not problems:
        problems = [f"{':'.join(rounds[0].suite_scale)}: no batch size has {FEWEST} rounds that converged"]
    kept = _kept(file, first, batches, notes)
    all_batches = sorted([*batches, *kept], key=lambda batch: batch.global_batch)
    reference = Reference(
        first.model, first.framework, first.scale, first.sample_unit, first.target, tuple(all_batches)
    )
    notes += _long_intervals(reference)
    return reference, notes, problems


def _long_intervals(reference: Reference) -> Iterator[str]:
    """Yield a note for each batch size whose rounds were evaluated too rarely for the verdict ``not_too_early``."""
    for batch in reference.batches:
        longest = (reference.earliest(batch.global_batch) or 0) / EVALUATIONS
        if batch.interval > longest:
            interval = f"the rounds were evaluated every {batch.interval:,.0f} {reference.sample_unit}"
            fix = f"set eval_samples to {math.floor(longest):,} or less in the suite's config"
            yield f"a batch of {batch.global_batch:,}: {interval}, too rarely for the verdict not_too_early; {fix}"


def _unusable(round_: _Round, notes: list[str]) -> bool:
    """Return True if a reference cannot use the round, and add the reason to the notes."""
    outcome = round_.outcome
    if outcome.synthetic or not outcome.meant_to_converge:
        reason = "it was not trained to the target on the suite's data"
    else:
        # The present reference must not decide which rounds the new one uses.
        reason = "; ".join(verdict.sentence for verdict in failed(converges(replace(outcome, reference=None))))
    if reason:
        notes.append(f"left out: {round_.name}: {reason}")
    return bool(reason)


def _one_per_seed(rounds: Sequence[_Round], notes: list[str]) -> list[_Round]:
    """Return the first round of each seed: another round of the same seed adds no information."""
    by_seed: dict[int | None, _Round] = {}
    for round_ in rounds:
        seed = round_.outcome.seed
        if seed in by_seed:
            notes.append(f"left out: {round_.name}: it has the same seed, {seed}, as {by_seed[seed].name}")
        else:
            by_seed[seed] = round_
    return list(by_seed.values())


def _differences(rounds: Sequence[_Round]) -> Iterator[str]:
    """Yield a sentence for each difference in the training between rounds of one batch size."""
    firsts: dict[int | None, _Round] = {}
    for round_ in rounds:
        first = firsts.setdefault(global_batch(round_.outcome), round_)
        values, expected = _training(round_), _training(first)
        for key in sorted(values.keys() | expected.keys()):
            if values.get(key) != expected.get(key):
                yield (
                    f"{round_.name}: {key} is {values.get(key)!r}, but {expected.get(key)!r} in {first.name};"
                    " pass only rounds of the same training"
                )


def _training(round_: _Round) -> dict[str, Any]:
    """Return the values that decide what a round learns."""
    target = round_.outcome.target
    config = {key: value for key, value in round_.config.items() if key not in _NO_EFFECT}
    return {**config, "suite_code": round_.outcome.fingerprint.get("suite_code"), "target": target.values}


def _kept(file: Path, outcome: Outcome, batches: Sequence[Batch], notes: list[str]) -> list[Batch]:
    """Return the file's curves of other batch sizes; none if the file is for another target."""
    if not file.is_file():
        return []
    before = Reference.from_json(read_printable(file), str(file))
    replaced = {batch.global_batch for batch in batches}
    others = [batch for batch in before.batches if batch.global_batch not in replaced]
    if others and before.target != outcome.target:
        old = quantity(before.target.value, before.target.unit)
        notes.append(f"{file}: removed the curves for another target, {before.target.name} {old}")
        return []
    return others


def _lines(file: Path, reference: Reference) -> Iterator[str]:
    yield str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    for batch in reference.batches:
        low, high = min(batch.to_target), max(batch.to_target)
        yield (
            f"  a batch of {batch.global_batch:,} ({', '.join(batch.shapes)}), {count(len(batch.to_target), 'round')}:"
            f" {plain(low)} to {plain(high)} {reference.sample_unit} to the target; too early is below"
            f" {plain(reference.earliest(batch.global_batch) or 0)}"
        )
