"""Calibrate a suite from stored trainings: write its small target, its reference curves and its README's table.

The small scale needs trainings of full length with at least five seeds at 1x1 and at 1x2: run
"pytest suites/MODEL -k converges --nodes=1x1,1x2 --repeat=10 --set stop_at_target=False". A target in suite.toml stays
while it keeps its margin: at least three standard deviations below the mean of the seeds. Of the reference scale, whose
target is given, only the curves are written.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_flagperf.catalog import REFERENCE, CatalogError, Suite, line_of
from pytest_flagperf.commands import common, tree
from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.kinds.training.verdicts.reference import FEWEST
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured.outcome import Outcome, Target
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts import failed
from pytest_flagperf.stored import write_texts
from pytest_flagperf.stored.round_dir import RoundDir
from tools import calibration, markers, readme, reference_curves, run_tool
from tools.reference_curves import ConvergedRound

_SHAPES = ("1x1", "1x2")
"""The shapes that the small scale needs."""
_FULL_LENGTH = ("max_steps", "max_epochs", "max_samples")
"""The reasons for the end of a training of full length."""
_OF_TARGET = frozenset(["target", "learned"])
"""The verdicts that depend on the target, which may change."""


@dataclass
class _Change:
    """The new contents of a suite's files, and what to print."""

    texts: dict[Path, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the changes of all files and write nothing")


def run(arguments: argparse.Namespace) -> int:
    by_suite: dict[tuple[str, str], list[ConvergedRound]] = {}
    for round_ in _rounds(common.load_runs(arguments.runs)):
        by_suite.setdefault((round_.outcome.model, round_.outcome.framework), []).append(round_)
    suites = {_suite(*names): rounds for names, rounds in by_suite.items()}
    changes = [_change(suite, rounds) for suite, rounds in suites.items()]
    notes = [f"note: {note}" for change in changes for note in change.notes]
    if problems := [problem for change in changes for problem in change.problems]:
        raise Problems([*problems, *notes])
    texts = {file: text for change in changes for file, text in change.texts.items() if text != _text(file)}
    if arguments.dry_run:
        for file, text in texts.items():
            print("\n".join(_diff(file, text)))
    else:
        write_texts(texts)
        for root in {suite.root for suite in suites}:
            # The other sections repeat the target.
            notes += [f"note: {problem}" for problem in readme.write_sections(root)]
    print("\n".join([*(line for change in changes for line in change.lines), *notes]))
    print(f"nothing written, {count(len(texts), 'file')} to change" if arguments.dry_run else f"wrote {_names(texts)}")
    return 0


def _rounds(runs: Sequence[StoredRun]) -> Iterator[ConvergedRound]:
    for name, stored in zip(common.unique_names(runs), runs, strict=True):
        for outcome in (outcome for case in stored.cases for outcome in case.outcomes):
            plan = RoundDir(stored.directory / outcome.directory).read_plan()
            yield ConvergedRound(name, outcome, plan.config)


def _suite(model: str, framework: str) -> Suite:
    catalog = tree.catalog()
    suite = catalog.suite(model, framework)
    if suite.root in catalog.packages:
        package = catalog.packages[suite.root]
        raise Problems([f"{suite.name} is part of the installed {package}; run this command in a copy of its source"])
    return suite


def _change(suite: Suite, rounds: Sequence[ConvergedRound]) -> _Change:
    change = _Change()
    scale, *others = sorted({round_.outcome.scale for round_ in rounds})
    if others:
        got = ", ".join([scale, *others])
        change.problems.append(f"{suite.name}: expected rounds of one scale, got {got}; pass runs of one scale")
    elif scale not in suite.scales:
        change.problems.append(f"{suite.name}: no scale {scale!r} in {_shown(suite.path / 'suite.toml')}")
    if change.problems:
        return change
    used = reference_curves.one_per_seed([one for one in rounds if _is_used(suite, one, change)], change.notes)
    change.problems += reference_curves.differences(used)
    _check_seeds(suite, scale, used, change)
    target = None if change.problems else _target(suite, scale, used, change)
    if target is None:
        return change
    ended = [replace(one, outcome=calibration.ended_at(one.outcome, target)) for one in used]
    for one in ended:
        # The present reference must not decide which rounds the new one uses.
        verdicts = failed(converges(replace(one.outcome, reference=None)))
        change.problems += [f"{one.name}: {verdict.sentence}" for verdict in verdicts]
    if not change.problems:
        _add_curves(suite, scale, target, ended, change)
        if scale != REFERENCE:
            _add_target(suite, scale, target, used, change)
    return change


def _is_used(suite: Suite, round_: ConvergedRound, change: _Change) -> bool:
    """Return False for rounds that trained for something else, with a note, and for failed rounds, with a problem."""
    outcome, names = round_.outcome, [*suite.scales[round_.outcome.scale].target.values]
    if outcome.synthetic or not outcome.meant_to_converge:
        change.notes.append(f"left out: {round_.name}: it was not trained to the target on the suite's data")
        return False
    if outcome.ok and outcome.scale != REFERENCE and outcome.stop_reason not in _FULL_LENGTH:
        reason = f"stopped by {outcome.stop_reason}, expected one of {', '.join(_FULL_LENGTH)} (stop_at_target=False)"
        change.notes.append(f"left out: {round_.name}: {reason}")
        return False
    verdicts = failed(converges(replace(outcome, reference=None)))
    problems = [verdict.sentence for verdict in verdicts if verdict.name not in _OF_TARGET]
    evaluations = [*([outcome.untrained] if outcome.untrained else []), *outcome.evaluations]
    bad = [name for name in names if any(not math.isfinite(one.metrics.get(name, math.nan)) for one in evaluations)]
    if not problems and bad:
        problems.append(f"{', '.join(bad)}: missing or not a number in an evaluation")
    if not problems and outcome.scale != REFERENCE and (outcome.untrained is None or not outcome.evaluations):
        problems.append("no evaluation of the untrained model; set eval_at_start = True")
    change.problems += [f"{round_.name}: {problem}; fix its cause and repeat the run" for problem in problems]
    return not problems


def _check_seeds(suite: Suite, scale: str, rounds: Sequence[ConvergedRound], change: _Change) -> None:
    """Report shapes with too few seeds, and how to run more."""
    if scale == REFERENCE:
        return
    path, enough = suite.path.parent.relative_to(suite.root), len(change.problems)
    for shape in sorted({*_SHAPES, *(round_.shape for round_ in rounds)}):
        seeds = len({round_.outcome.seed for round_ in rounds if round_.shape == shape})
        if seeds < FEWEST:
            expected = f"{count(seeds, 'training')} of full length, expected at least {FEWEST} seeds"
            change.problems.append(f"{suite.name}: {shape} has {expected}")
    if len(change.problems) > enough:
        settings = "--repeat=10 --set stop_at_target=False"
        change.problems.append(f"run: pytest {path} -k converges --nodes={','.join(_SHAPES)} {settings}")


def _target(suite: Suite, scale: str, rounds: Sequence[ConvergedRound], change: _Change) -> Target | None:
    """Return the target of the scale: the given target, or for the small scale the target that the rounds give."""
    declared = suite.scales[scale].target
    values = {name: value for name, value in declared.values.items() if value is not None}
    if scale != REFERENCE:
        for name, current in values.items():
            further = name != declared.name
            possible = calibration.target_range(name, declared.direction, _by_shape(rounds), further=further)
            chosen = calibration.choose(current, possible)
            if chosen is None:
                change.problems.append(
                    f"{suite.name}: no target for {name} has a margin: the hardest is {possible.hardest_text},"
                    f" the easiest that shows learning is {possible.easiest_text};"
                    " train longer or evaluate more samples, so that the seeds differ less"
                )
            else:
                kept = "kept" if chosen == current else f"was {current:g}"
                change.lines.append(
                    f"{suite.name}: target of {name}: {chosen:g} ({kept}); possible from {possible.easiest_text} to"
                    f" {possible.hardest_text}"
                )
                values[name] = chosen
    if change.problems:
        return None
    return replace(declared, value=values[declared.name], also={name: values[name] for name in declared.also})


def _by_shape(rounds: Sequence[ConvergedRound]) -> Mapping[str, list[Outcome]]:
    shapes = sorted({(round_.outcome.nnodes, round_.outcome.nproc, round_.shape) for round_ in rounds})
    return {shape: [round_.outcome for round_ in rounds if round_.shape == shape] for *_, shape in shapes}


def _add_curves(suite: Suite, scale: str, target: Target, rounds: Sequence[ConvergedRound], change: _Change) -> None:
    file = suite.reference_file(scale)
    reference, notes = reference_curves.make_reference(rounds, target, file) if rounds else (None, [])
    change.notes += notes
    if reference is None:
        change.problems.append(f"{suite.name}: no batch size has {FEWEST} rounds of the {scale} scale that converged")
        return
    change.texts[file] = reference.text()
    change.lines += reference_curves.describe(_shown(file), reference)


def _add_target(suite: Suite, scale: str, target: Target, rounds: Sequence[ConvergedRound], change: _Change) -> None:
    """Set the targets in suite.toml and write the table of the README."""
    file, document_file = suite.path / "suite.toml", suite.path / "README.md"
    text = file.read_text(encoding="utf-8")
    for name, current in suite.scales[scale].target.values.items():
        key = ("target",) if name == target.name else ("also", name)
        value = target.values[name]
        if value is not None and value != current:
            text = with_number(text, ("scales", scale, *key), value, file)
    change.texts[file] = text
    document = markers.read_document(document_file) if document_file.is_file() else ""
    problems = (
        markers.marker_problems(document, [*readme.OF_SUITE, markers.CALIBRATION])
        if document
        else ["no such file; run: python -m tools.readme"]
    )
    change.problems += [f"{_shown(document_file)}: {problem}" for problem in problems]
    if not problems:
        steps = max(round_.outcome.work.steps or 0 for round_ in rounds)
        shapes = {
            shape: [calibration.full_training(outcome, target) for outcome in outcomes]
            for shape, outcomes in _by_shape(rounds).items()
        }
        change.texts[document_file] = markers.filled(
            document, {markers.CALIBRATION: calibration.table(target, steps, shapes)}
        )


# -- the output --------------------------------------------------------------------------------------------------


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _diff(file: Path, text: str) -> Iterator[str]:
    name = _shown(file)
    if file.suffix == ".json":
        yield f"{name}: new curves"
        return
    yield from difflib.unified_diff(_text(file).splitlines(), text.splitlines(), name, name, lineterm="")


def _names(texts: Mapping[Path, str]) -> str:
    return ", ".join(map(_shown, texts)) or "no file: all are up to date"


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


def with_number(text: str, at: tuple[str, ...], value: float, file: Path) -> str:
    """Return a TOML text with another number under a key; comments and all other values stay.

    ``file`` is for the message if the key cannot be found or its value is not a number in the same line.
    """
    lines = text.splitlines(keepends=True)
    number = line_of(text, at)
    changed = re.sub(rf"(\b{re.escape(at[-1])}\"?\s*=\s*)[-+\w.]+", rf"\g<1>{value!r}", lines[number - 1], count=1)
    new = "".join([*lines[: number - 1], changed, *lines[number:]])
    expected = tomllib.loads(text)
    table = expected
    for key in at[:-1]:
        table = table[key]
    table[at[-1]] = value
    if tomllib.loads(new) != expected:
        name = ".".join(at)
        raise CatalogError([f"{file}:{number}: cannot change {name}; set it to {value!r} by hand and run again"])
    return new


if __name__ == "__main__":
    sys.exit(run_tool(sys.modules[__name__]))
