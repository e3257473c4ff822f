"""A copy of a run without a vendor's confidential numbers: its speeds, times, memory and powers.

What is kept is named, all else is left out: whether a round ended well and converged, its metric and loss curves by
steps and samples, its environment, and what it was. Logs, series, reports and configs are not in the copy. The batch
is not hidden: steps and samples tell it.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.results import jsons, store
from pytest_flagperf.results.crosscheck import CONTRADICTION
from pytest_flagperf.results.outcome import Evaluation, Failure, Outcome
from pytest_flagperf.results.store import CaseResult, Run, RunInfo
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import Verdict

FILE = "redacted.json"
GONE = "redacted"
KEPT = (
    "case", "model", "framework", "vendor", "hardware", "nnodes", "nproc", "round", "seed", "scale", "synthetic",
    "throughput_only", "sample_unit", "state", "target", "stop_reason", "work", "losses", "broken_lines",
    "other_lines", "limits", "parity_samples", "reference",
)  # fmt: skip
"""Of a round as it is; what is neither here nor cleaned below is left out: its times, too, which tell how long the one
before it took."""
_METRICS = ("final_loss", "samples_to_target")
"""Kept, beside the suite's own."""
_VERDICTS = (
    "finished", "loss_finite", "real_data", "learned", "target", "agrees", "not_too_early", "parity",
)  # fmt: skip
"""Whose sentences say nothing of speed."""
_PLAN = (
    "schema", "case", "model", "framework", "framework_version", "vendor", "hardware", "nnodes", "nproc", "round",
    "seed", "scale", "synthetic", "throughput_only", "metric", "sample_unit",
)  # fmt: skip
_ENVIRONMENT = ("device", "framework", "precision", "compile", "world size", "parameters", "runtime", "launcher")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_run(parser)
    parser.add_argument("--vendor", metavar="NAME", help="whose numbers (default: the only one of the run)")
    parser.add_argument("--to", type=Path, metavar="DIR", help="where the copy goes (default: RUN-redacted)")


def run(arguments: argparse.Namespace) -> int:
    one = stored.load_one(arguments.run)
    vendor = _vendor(one, arguments.vendor)
    to: Path = arguments.to or one.directory.resolve().with_name(f"{stored.name_of(one)}-redacted")
    gone: Counter[str] = Counter()
    with stored.new_directory(to) as made:
        cases = []
        for case in one.cases:
            folder = case.case.replace(":", "_")
            if any(outcome.vendor == vendor for outcome in case.outcomes):
                case = _redacted(case, gone)
                _write(made / folder, case, one.directory / folder, gone)
            else:
                stored.copy_folder(one.directory / folder, made / folder)
            cases.append(case)
        info = one.info or RunInfo()
        # A command may hold what the config does, the end is a time.
        kept = RunInfo(versions=info.versions, started_ms=info.started_ms, selected=info.selected)
        store.write_run(made, replace(kept, unsupported=info.unsupported), cases)
        store.write_csv(made / "results.csv", [(to.resolve().name, cases)])
        left_out = {name: number for name, number in sorted(gone.items()) if number}
        jsons.write(made / FILE, {"schema": store.SCHEMA, "vendor": vendor, "left_out": left_out})
    changed = sum(any(outcome.vendor == vendor for outcome in case.outcomes) for case in cases)
    print(f"{to}: {count(changed, 'case')} of {vendor} without its numbers, {len(cases) - changed} as they were")
    print(f"left out: {', '.join(f'{name} ({number})' for name, number in left_out.items())}")
    return 0


def _vendor(one: Run, wanted: str | None) -> str:
    names = sorted({outcome.vendor for case in one.cases for outcome in case.outcomes})
    if wanted is None:
        if len(names) == 1:
            return names[0]
        raise Problems([f"{one.directory}: has cases of {' and '.join(names)}; say whose numbers with --vendor"])
    if wanted not in names:
        raise Problems([f"--vendor={wanted}: no case is its{near(wanted, names)} (there is {', '.join(names)})"])
    return wanted


def _redacted(case: CaseResult, gone: Counter[str]) -> CaseResult:
    verdicts = {test: tuple(_verdict(one, gone) for one in found) for test, found in case.verdicts.items()}
    if case.one_card is not None:
        gone["one card's p_core"] += 1
    return CaseResult(case.case, tuple(_outcome(outcome, gone) for outcome in case.outcomes), verdicts)


def _outcome(outcome: Outcome, gone: Counter[str]) -> Outcome:
    quality = outcome.quality
    kept = [metric for metric in outcome.metrics if metric.name in (*_METRICS, outcome.target.name)]
    gone.update(metric.name for metric in outcome.metrics if metric not in kept)
    gone["times of steps and evaluations"] += len(outcome.steps) + len(outcome.evaluations)
    gone["warnings"] += len(outcome.warnings)
    gone["last lines of logs"] += sum(len(failure.last_lines) for failure in outcome.failures)
    return Outcome(
        **{name: getattr(outcome, name) for name in KEPT},
        metrics=tuple(kept),
        failures=tuple(map(_failure, outcome.failures)),
        steps=tuple(replace(step, time=math.nan, throughput=math.nan) for step in outcome.steps),
        evaluations=tuple(map(_timeless, outcome.evaluations)),
        untrained=_timeless(outcome.untrained) if outcome.untrained else None,
        quality=replace(quality, reached=_timeless(quality.reached) if quality.reached else None),
        fingerprint={name: value for name, value in outcome.fingerprint.items() if name != "deviations"},
        environment={name: text for name, text in outcome.environment.items() if _is_kept(name)},
    )


def _failure(failure: Failure) -> Failure:
    """A contradiction's sentence has the figures that contradict."""
    sentence = GONE if failure.kind == CONTRADICTION else failure.sentence
    return replace(failure, last_lines=(), sentence=sentence)


def _timeless(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, time=math.nan, seconds=math.nan)


def _is_kept(name: str) -> bool:
    return name in _ENVIRONMENT or name.startswith("library ")


def _verdict(verdict: Verdict, gone: Counter[str]) -> Verdict:
    if verdict.expected is not None:
        verdict = replace(verdict, expected=GONE)
    if verdict.name in _VERDICTS:
        return verdict
    gone["what verdicts say"] += 1
    how = "is well" if verdict.ok else "is not well"
    return replace(verdict, got=GONE, wanted=GONE, sentence=f"{verdict.name} {how} ({GONE})")


def _write(made: Path, case: CaseResult, source: Path, gone: Counter[str]) -> None:
    for outcome in case.outcomes:
        directory = made / f"round{outcome.round}"
        store.save_outcome(directory, outcome)
        plan = jsons.read(source / directory.name / "plan.json")
        kept = {name: plan[name] for name in _PLAN if name in plan}
        jsons.write(directory / "plan.json", {**kept, "fingerprint": outcome.fingerprint})
    for test, verdicts in case.verdicts.items():
        store.save_verdicts(made, test, verdicts)
    gone["files"] += _files(source) - _files(made)


def _files(directory: Path) -> int:
    found: Sequence[Path] = [path for path in directory.rglob("*") if path.is_file()]
    return len(found)
