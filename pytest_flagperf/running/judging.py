"""What a case is judged by beside its own rounds: what was accepted, and what was expected."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from pytest_flagperf.case import without_repeat
from pytest_flagperf.catalog import Vendor
from pytest_flagperf.expected import Source
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import store
from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.comparing.baselines import Accepted, Baseline
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.units import count, quantity
from pytest_flagperf.results.verdicts import Kind, Verdict
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError


def check_baseline(settings: Settings, case: str) -> None:
    """A case's baseline can be read, if there is one: what is known before anything runs is told then."""
    folder = Path(settings.baselines)
    if folder.exists() and not folder.is_dir():
        raise Problems([f"{settings.told('baselines')}: it is a file: the folder that holds the baselines is wanted"])
    if settings.given("baselines") and not settings.accept_baseline and not folder.is_dir():
        raise Problems([f"{settings.told('baselines')}: there is no such folder; --accept-baseline makes it"])
    try:
        stored_baseline(folder, case)
    except FormatError as error:
        raise Problems(f"{line}; mend it, or remove it" for line in str(error).splitlines()) from error


def those_with_baselines(settings: Settings, cases: Sequence[str]) -> list[str]:
    """For the header: that a gate is there, which a wrong folder would take away unseen."""
    folder = Path(settings.baselines)
    found = [case for case in cases if baselines.path_of(folder, case).exists()]
    return [f"  baselines: {len(found)} of {count(len(cases), 'case')}: {folder}"] if found else []


def stored_baseline(folder: Path, case: str) -> Baseline | None:
    """The accepted baseline of a case, if it has one."""
    path = baselines.path_of(folder, case)
    found = baselines.read(path) if path.exists() else None
    wanted = without_repeat(case)
    if found is not None and found.case != wanted:
        raise FormatError(f"{path}: case is {found.case!r}: a file of this name holds the baseline of {wanted}")
    return found


# -- accepting -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A baseline and what it replaced."""

    path: Path
    baseline: Baseline
    old: Baseline | None


def accept(
    run: store.Run, folder: Path, *, note: str = "", keep_bounds: bool = True
) -> tuple[list[Written], list[str]]:
    """Write what the run measured of every case as its baseline; and which cases were refused, and why."""
    directory = run.directory.resolve()
    stored_runs = StoredRuns(directory.parent, directory.name)
    accepted = Accepted(directory.name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), note)
    written, refused = [], []
    for case in run.cases:
        path = baselines.path_of(folder, case.case)
        try:
            old, why_not = stored_baseline(folder, case.case), _why_not(case, run.cases)
        except FormatError as error:
            old, why_not = None, f"the old one cannot be read: {error}; mend it, or remove it"
        made = None
        if why_not is None:
            like = stored_runs.like(case.outcomes[0], across=baselines.TESTED)
            made = baselines.accept(case, like, accepted, old, keep_bounds=keep_bounds)
            why_not = baselines.no_gate(made)
        if made is not None and why_not is None:
            baselines.write(path, made)
            written.append(Written(path, made, old))
        else:
            refused.append(f"{case.case}: {why_not}")
    return written, refused


def _why_not(case: store.CaseResult, all_cases: Iterable[store.CaseResult]) -> str | None:
    """Cases that differ in nothing but their number of rounds have one baseline: that of the most rounds."""
    for other in all_cases:
        same = other.without_repeat == case.without_repeat
        if same and len(other.outcomes) > len(case.outcomes):
            return f"{other.case} of the same run has more rounds"
    return baselines.why_not(case)


def told_of(written: Iterable[Written], refused: Iterable[str]) -> list[str]:
    """What was accepted and where it stands, and what was not and why."""
    lines = []
    for each in written:
        name, figure = next(iter(each.baseline.metrics.items()))
        if "p_core" in each.baseline.metrics:
            name, figure = "p_core", each.baseline.metrics["p_core"]
        was = each.old.metrics.get(name) if each.old is not None else None
        before = f" (was {quantity(was.value, was.unit)})" if was is not None else ""
        shown = f"{name} {quantity(figure.value, figure.unit)}{before}, {baselines.bounds(figure)}"
        if figure.noise is None:
            shown += f" (how much it varies is not known from {count(figure.rounds, 'round')})"
        lines.append(f"accepted: {each.baseline.case}: {shown}: {each.path}")
    return [*lines, *(f"not accepted: {text}" for text in refused)]


# -- expected failures -----------------------------------------------------------------------------------------


def expected_of(settings: Settings, vendor: Vendor, case: str) -> list[Source]:
    """What the settings and the vendor expect of a case."""
    found = [Source(one, settings.expected_in) for one in settings.expected]
    found += [Source(one, str(vendor.path / "vendor.toml")) for one in vendor.expected]
    return [source for source in found if source.expected.is_about(case)]


def with_expected(verdicts: Sequence[Verdict], sources: Sequence[Source], *, strict: bool) -> list[Verdict]:
    """Failures that were expected carry the reason; an expectation that did not come true is a verdict itself."""
    found = [replace(one, expected=_reason(one, sources)) if not one.ok else one for one in verdicts]
    for source in sources:
        about = [one for one in found if source.expected.judges(one.name)]
        if about and all(one.ok for one in about):
            found.append(_untrue(source, about, strict=strict))
    return found


def _reason(verdict: Verdict, sources: Sequence[Source]) -> str | None:
    return next((source.expected.reason for source in sources if source.expected.judges(verdict.name)), None)


def _untrue(source: Source, about: Sequence[Verdict], *, strict: bool) -> Verdict:
    names = ", ".join(dict.fromkeys(one.name for one in about))
    sentence = (
        f"expected to fail and did not: {names} ({source.expected.reason}); take the table [[expected]] for"
        f" case {source.expected.case} out of {source.file}"
    )
    return Verdict(
        "expected",
        not strict,
        "passed",
        "the failure that was expected",
        sentence,
        warning=not strict,
        kind=Kind.EXPECTED,
    )


def never_judged(sources: Iterable[Source], cases: Iterable[store.CaseResult]) -> list[str]:
    """Expectations of verdicts that nobody gives, though a name is near: a slip of the pen expects nothing."""
    cases = list(cases)
    told = []
    for source in sources:
        names = {
            verdict.name
            for case in cases
            if source.expected.is_about(case.case)
            for verdicts in case.verdicts.values()
            for verdict in verdicts
        }
        near = get_close_matches(source.expected.verdict, names, n=2)
        if near and not any(source.expected.judges(name) for name in names):
            meant = " or ".join(near)
            slip = f"no verdict {source.expected.verdict!r}; did you mean {meant}?"
            told.append(f"warning: {source.file}: [[expected]]: {slip}")
    return told
