"""A suite's reference curves, made of stored rounds that converged: what later rounds are judged by.

Written to suites/<model>/<framework>/reference/<scale>.json; what is there of other batch sizes stays. Five rounds
at least of each size are wanted, with seeds of their own and the same config and suite; ten are better.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.commands import stored
from pytest_flagperf.commands.source_tree import tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import Run
from pytest_flagperf.results.units import count, plain, quantity
from pytest_flagperf.results.verdicts import converges, failed, reference
from pytest_flagperf.results.verdicts.reference import EVALUATIONS, FEWEST, Batch, Reference
from pytest_flagperf.stored import read_printable, write_text
from pytest_flagperf.stored.round import RoundDir

_TIMES = ("init_timeout_s", "hang_timeout_s", "round_timeout_s")
_NO_MATTER = frozenset(["seed", "vendor", "data_dir", "num_workers", "min_efficiency", *_TIMES])
"""Config keys that say nothing of what is learned."""
_Kind = tuple[str, str, str]


@dataclass(frozen=True)
class _Round:
    run: str
    outcome: Outcome
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.run}: {self.outcome.case} round {self.outcome.round}"

    @property
    def kind(self) -> _Kind:
        return self.outcome.model, self.outcome.framework, self.outcome.scale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help="write here; the runs are of one suite and scale then")


def run(arguments: argparse.Namespace) -> int:
    rounds = list(_rounds(stored.load_all(arguments.runs)))
    kinds = list(dict.fromkeys(one.kind for one in rounds))
    if arguments.to and len(kinds) > 1:
        named = ", ".join(":".join(kind) for kind in kinds)
        raise Problems([f"--to={arguments.to}: one file is for one suite and scale; these runs have {named}"])
    files = {kind: arguments.to or _file(kind) for kind in kinds}
    made, notes, problems = {}, [], []
    for kind in kinds:
        found, told, wrong = _made([one for one in rounds if one.kind == kind], files[kind])
        notes += told
        problems += wrong
        made[kind] = found
    if problems:
        raise Problems([*problems, *notes])
    for kind, found in made.items():
        write_text(files[kind], found.text())
        print("\n".join(_lines(files[kind], found)))
    print("".join(f"note: {note}\n" for note in notes), end="")
    return 0


def _rounds(runs: Sequence[Run]) -> Iterator[_Round]:
    for name, one in zip(stored.names_of(runs), runs, strict=True):
        for outcome in (outcome for case in one.cases for outcome in case.outcomes):
            plan = RoundDir(one.directory / outcome.directory).read_plan()
            yield _Round(name, outcome, plan.config)


def _file(kind: _Kind) -> Path:
    model, framework, scale = kind
    catalog = tree.catalog()
    suite = catalog.suite(model, framework)
    if suite.root in catalog.packages:
        raise Problems([f"{suite.name} belongs to the installed {catalog.packages[suite.root]}; pass --to=FILE"])
    return suite.reference_file(scale)


def _made(rounds: Sequence[_Round], file: Path) -> tuple[Reference, list[str], list[str]]:
    """The suite's reference with what these rounds say, what to tell, and what stands in the way."""
    first = rounds[0].outcome
    notes: list[str] = []
    fit = [one for one in rounds if not _unfit(one, notes)]
    problems = list(_unlike(fit))
    batches = []
    for size in sorted({reference.global_batch(one.outcome) or 0 for one in fit}):
        like = _once_each([one for one in fit if reference.global_batch(one.outcome) == size], notes)
        if len(like) < FEWEST:
            what = f"{first.model}:{first.framework}, a batch of {size:,}: {count(len(like), 'round')} that converged"
            notes.append(f"{what}; a reference is made of {FEWEST} or more")
        elif not problems:
            batches.append(reference.of_rounds([(one.run, one.outcome) for one in like]))
    if not batches and not problems:
        problems = [f"{':'.join(rounds[0].kind)}: no batch size has {FEWEST} rounds that converged"]
    kept = _kept(file, first, batches, notes)
    found = sorted([*batches, *kept], key=lambda batch: batch.global_batch)
    made = Reference(first.model, first.framework, first.scale, first.sample_unit, first.target, tuple(found))
    notes += _long_intervals(made)
    return made, notes, problems


def _long_intervals(made: Reference) -> Iterator[str]:
    """Sentences on batch sizes whose rounds had longer intervals than the verdict ``not_too_early`` permits."""
    for batch in made.batches:
        most = (made.earliest(batch.global_batch) or 0) / EVALUATIONS
        if batch.interval > most:
            gap = f"the rounds were evaluated every {batch.interval:,.0f} {made.sample_unit}"
            fix = f"set eval_samples to {math.floor(most):,} or less in the suite's config"
            yield f"a batch of {batch.global_batch:,}: {gap}, too far apart for the verdict not_too_early: {fix}"


def _unfit(one: _Round, notes: list[str]) -> bool:
    """Whether the round shows nothing of how the suite learns; that is told."""
    outcome = one.outcome
    if outcome.synthetic or not outcome.meant_to_converge:
        why = "it was not trained to the target on the suite's data"
    else:
        # What the present reference says of it must not decide about the next one.
        why = "; ".join(verdict.sentence for verdict in failed(converges(replace(outcome, reference=None))))
    if why:
        notes.append(f"left out: {one.name}: {why}")
    return bool(why)


def _once_each(rounds: Sequence[_Round], notes: list[str]) -> list[_Round]:
    """A seed's second round says the same as its first."""
    found: dict[int | None, _Round] = {}
    for one in rounds:
        if one.outcome.seed in found:
            notes.append(f"left out: {one.name}: {found[one.outcome.seed].name} has its seed, {one.outcome.seed}")
        else:
            found[one.outcome.seed] = one
    return list(found.values())


def _unlike(rounds: Sequence[_Round]) -> Iterator[str]:
    """Rounds of one batch size that were not the same training."""
    firsts: dict[int | None, _Round] = {}
    for one in rounds:
        first = firsts.setdefault(reference.global_batch(one.outcome), one)
        mine, its = _told(one), _told(first)
        for key in sorted(mine.keys() | its.keys()):
            if mine.get(key) != its.get(key):
                values = f"{key} is {mine.get(key)!r}, there {its.get(key)!r}"
                yield f"{one.name}: not like {first.name}: {values}; make a reference of like rounds"


def _told(one: _Round) -> dict[str, Any]:
    target = one.outcome.target
    config = {key: value for key, value in one.config.items() if key not in _NO_MATTER}
    return {**config, "suite_code": one.outcome.fingerprint.get("suite_code"), "target": (target.name, target.value)}


def _kept(file: Path, outcome: Outcome, batches: Sequence[Batch], notes: list[str]) -> list[Batch]:
    """What the file has of other batch sizes, if it is about the same target."""
    if not file.is_file():
        return []
    before = Reference.from_json(read_printable(file), str(file))
    made = {batch.global_batch for batch in batches}
    others = [batch for batch in before.batches if batch.global_batch not in made]
    if others and before.target != outcome.target:
        old = quantity(before.target.value, before.target.unit)
        notes.append(f"{file}: dropped what was made for another target, {before.target.name} {old}")
        return []
    return others


def _lines(file: Path, made: Reference) -> Iterator[str]:
    yield str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    for batch in made.batches:
        low, high = min(batch.to_target), max(batch.to_target)
        yield (
            f"  a batch of {batch.global_batch:,} ({', '.join(batch.shapes)}), {count(len(batch.to_target), 'round')}:"
            f" {plain(low)} to {plain(high)} {made.sample_unit} to the target; too early is below"
            f" {plain(made.earliest(batch.global_batch) or 0)}"
        )
