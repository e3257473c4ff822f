"""The properties and log attachments of a case in the JUnit file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_flagperf.printable import printable
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import Outcome, failed_logs_first
from pytest_flagperf.results.measured.vendor_code import phrase
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.speedup import SPEEDUP

CASE = "case"
"""The property that every test of a case has."""
_WORKSPACES = ("CI_PROJECT_DIR", "WORKSPACE", "GITHUB_WORKSPACE")
"""The variables of GitLab, Jenkins and GitHub with the folder of the job."""
MAX_LOGS = 8
"""The maximum number of attached rank logs; those of failed ranks come first."""


def properties(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return names and values without duplicates: those of the case, then those of each round; names include units."""
    values: dict[str, str] = {}
    for outcome in outcomes:
        for name, value in _of_case(outcome):
            values.setdefault(name, value)
    values.update((f"mark.{name.replace(' ', '_')}", sentence) for name, sentence in marks.of_rounds(outcomes).items())
    for outcome in outcomes:
        values.update((f"round{outcome.round}.{name}", value) for name, value in _of_round(outcome))
    return [(name, printable(value)) for name, value in values.items()]


def judged(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, str]]:
    """Yield the speed-up and each warning of the verdicts; failures are in the message of the test."""
    for verdict in verdicts:
        if verdict.name == SPEEDUP:
            yield SPEEDUP, printable(verdict.got)
        if verdict.warning:
            yield f"warning.{verdict.name}", printable(verdict.sentence)


def _of_case(outcome: Outcome) -> Iterator[tuple[str, str]]:
    yield CASE, outcome.case
    yield "scale", outcome.scale
    yield "synthetic", str(outcome.synthetic).lower()
    if outcome.vendor_code:
        yield "vendor_code", phrase(outcome.vendor, outcome.vendor_code, outcome.value("vendor_factor"))
    if outcome.target.value is not None:
        for name, value in outcome.target.values.items():
            yield f"target.{name}", quantity(value, outcome.target.unit)
    yield from ((f"environment.{name}", value) for name, value in outcome.environment.items())


def _of_round(outcome: Outcome) -> Iterator[tuple[str, str]]:
    yield "state", outcome.state if outcome.ok or outcome.state != "finished" else "failed"
    yield "seed", str(outcome.seed)
    for metric in outcome.metrics:
        yield f"{metric.name}[{metric.unit}]" if metric.unit else metric.name, _number(metric.value)
    yield from _numbered("validity_warning", (warning.sentence for warning in outcome.validity_warnings))
    yield from _numbered("warning", outcome.warnings)


def _number(value: float) -> str:
    """Return a number for programs: at most six significant digits, no thousands separators."""
    if not math.isfinite(value) or abs(value) >= 1e6:
        return f"{value:.0f}"
    return f"{value:.6g}"


def _numbered(name: str, values: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Number the names, because some tools keep only one property of each name."""
    yield from ((f"{name}{number}", value) for number, value in enumerate(values, 1))


def logs(run_dir: Path, outcomes: Iterable[Outcome]) -> list[Path]:
    """Return the rank logs of the rounds, those of failed rounds and ranks first."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.ok)
    return [run_dir / one.directory / name for one in ordered for name in failed_logs_first(one)][:MAX_LOGS]


def attachments(paths: Iterable[Path], environ: Mapping[str, str]) -> str:
    """Return a line for each file in the form that Jenkins and GitLab read in the output of a test.

    A path is relative to the workspace of the CI job, else to the current folder. Jenkins also accepts absolute paths,
    GitLab does not.
    """
    root = Path(next((environ[name] for name in _WORKSPACES if environ.get(name)), "")).resolve()
    resolved = [path.resolve() for path in paths]
    kept = [path for path in resolved if path.is_relative_to(root) or not environ.get("GITLAB_CI")]
    return "".join(f"[[ATTACHMENT|{path.relative_to(root) if path.is_relative_to(root) else path}]]\n" for path in kept)


class OncePerCase:
    """The properties of the tests of a run, without those that an earlier test of the same case already has."""

    def __init__(self) -> None:
        self._owner: dict[tuple[object, object], str] = {}

    def filter(self, test: str, given: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        """Return the properties of a test that no other test of its case has; each test keeps the name of its case."""
        listed = list(given)
        case = dict(listed).get(CASE)
        if case is None:
            return listed
        return [
            (name, value)
            for name, value in listed
            if name == CASE or self._owner.setdefault((case, name), test) == test
        ]
