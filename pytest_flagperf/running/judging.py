"""Accepted baselines and expected failures: read, check, accept, and apply them to the verdicts of a case."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_flagperf.case import without_repeat
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.catalog.toml_reader import where
from pytest_flagperf.expected import ExpectedInFile
from pytest_flagperf.kind import criteria
from pytest_flagperf.problems import near
from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.comparing.baselines import Accepted, Baseline
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.results.verdicts.verdict import OF_EVERY_KIND, Verdict, VerdictKind
from pytest_flagperf.settings import Settings, SettingsError
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import baseline_file
from pytest_flagperf.stored.plan import MAIN_THROUGHPUT


def stored_baseline(folder: Path, case: str) -> Baseline | None:
    """Return the accepted baseline of a case; None without one."""
    path = folder / baseline_file(case)
    baseline = baselines.read(path) if path.exists() else None
    expected = without_repeat(case)
    if baseline is not None and baseline.case != expected:
        raise FormatError(f"{path}: case is {baseline.case!r}; expected {expected!r} in a file of this name")
    return baseline


# -- accepting -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A baseline that was written, and the previous one."""

    path: Path
    baseline: Baseline
    previous: Baseline | None


def accept(
    run: store.StoredRun, folder: Path, *, note: str = "", keep_bounds: bool = True
) -> tuple[list[Written], list[str]]:
    """Write a baseline for each case of the run; return them, and a line with the reason for each refused case."""
    directory = run.directory.resolve()
    stored_runs = StoredRuns(directory.parent, directory.name)
    accepted = Accepted(directory.name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), note)
    written, refused = [], []
    for case in run.cases:
        path = folder / baseline_file(case.case)
        try:
            previous, reason = stored_baseline(folder, case.case), _reason_to_refuse(case, run.cases)
        except FormatError as error:
            previous, reason = None, f"cannot read the previous baseline: {error}; fix or remove it"
        baseline = None
        if reason is None:
            like = stored_runs.like(case.outcomes[0])
            baseline = baselines.accept(case, like, accepted, previous, keep_bounds=keep_bounds)
            reason = baselines.useless_bound(baseline)
        if baseline is not None and reason is None:
            baselines.write(path, baseline)
            written.append(Written(path, baseline, previous))
        else:
            refused.append(f"{case.case}: {reason}")
    return written, refused


def _reason_to_refuse(case: CaseResult, all_cases: Iterable[CaseResult]) -> str | None:
    """Return why a case cannot be accepted; of cases that differ only in their rounds, the one with most rounds can."""
    for other in all_cases:
        same = other.without_repeat == case.without_repeat
        if same and len(other.outcomes) > len(case.outcomes):
            return f"{other.case} of the same run has more rounds"
    return baselines.refusal(case)


def would_change(run: store.StoredRun, folder: Path) -> bool:
    """Return True if accepting the run would add a baseline to the folder, or replace one that the run improves on."""
    if not folder.is_dir():
        return False
    return any(
        _reason_to_refuse(case, run.cases) is None
        and (
            not (folder / baseline_file(case.case)).exists()
            or (case.ok and any(baselines.is_comparison(one) and one.warning for one in case.all_verdicts))
        )
        for case in run.cases
    )


def accepted_lines(written: Iterable[Written], refused: Iterable[str]) -> list[str]:
    """Return a line for each accepted baseline with its file, and for each refused case with the reason."""
    lines = []
    for item in written:
        name, figure = next(iter(item.baseline.metrics.items()))
        if MAIN_THROUGHPUT in item.baseline.metrics:
            name, figure = MAIN_THROUGHPUT, item.baseline.metrics[MAIN_THROUGHPUT]
        previous = item.previous.metrics.get(name) if item.previous is not None else None
        was = f" (was {quantity(previous.value, previous.unit)})" if previous is not None else ""
        text = f"{name} {quantity(figure.value, figure.unit)}{was}, {count(figure.rounds, 'round')}; {figure.rule}"
        lines.append(f"accepted: {item.baseline.case}: {text}: {item.path}")
    return [*lines, *(f"not accepted: {text}" for text in refused)]


# -- expected failures -----------------------------------------------------------------------------------------


def check_expected(settings: Settings, catalog: Catalog) -> None:
    """Raise SettingsError for each expected failure that can never occur: its verdict or its suite does not exist."""
    from pytest_flagperf.hooks.plugins import having  # commands that read this module need no plugin

    file, plugins = Path(settings.expected_in), having("flagperf_verdicts")
    table = ("tool", "flagperf", "expected") if file.name == "pyproject.toml" else ("expected",)
    problems = []
    for number, expected in enumerate(settings.expected):
        unknown = _unknown_verdict(expected.verdict, plugins), _unknown_suite(expected.case, catalog)
        for key, problem in zip(("verdict", "case"), unknown, strict=True):
            if problem:
                at = where(file, *table, str(number), key)
                problems.append(f"{at}: [[expected]] {number + 1}: {key} = {getattr(expected, key)!r}: {problem}")
    if problems:
        raise SettingsError(problems)


def _unknown_verdict(pattern: str, plugins: Collection[str]) -> str:
    """Return why no verdict matches a pattern; the verdicts of an installed plugin have its name as a prefix."""
    name, plugin = pattern.partition(" ")[0], pattern.partition(".")[0]  # "baseline p_core" judges a figure
    verdicts = [*OF_EVERY_KIND, *(name for criterion in criteria().values() for name in criterion.meanings)]
    known = any(fnmatchcase(verdict, name) for verdict in verdicts) or any(fnmatchcase(one, plugin) for one in plugins)
    if known or pattern.startswith("*"):
        return ""
    return f"unknown verdict{near(name, verdicts) or near(plugin, plugins) or '; choose from ' + ', '.join(verdicts)}"


def _unknown_suite(pattern: str, catalog: Catalog) -> str:
    """Return why no suite matches the model and the framework of a pattern, as far as these contain no wildcard."""
    names = pattern.split(":")[:2]
    literal = next((at for at, name in enumerate(names) if set(name) & set("*?[")), len(names))
    name = ":".join(names[:literal])
    known = sorted({":".join(suite[:literal]) for suite in catalog.suites})
    of_model = [suite for suite in known if suite.startswith(f"{names[0]}:")]
    hint = f"; choose from {', '.join(of_model)}" if of_model else near(name, known)
    return "" if name in known else f"no suite {name}{hint}"


def expected_of(settings: Settings, case: str) -> list[ExpectedInFile]:
    """Return the failures that the user's settings expect of a case; no other file excuses a verdict."""
    sources = [ExpectedInFile(expected, settings.expected_in) for expected in settings.expected]
    return [source for source in sources if source.expected.is_about(case)]


def with_expected(verdicts: Sequence[Verdict], sources: Sequence[ExpectedInFile], *, strict: bool) -> list[Verdict]:
    """Add the reason to each expected failure, and a verdict for each expected failure that passed."""
    marked = [
        verdict if verdict.ok else replace(verdict, expected_failure=_reason(verdict, sources)) for verdict in verdicts
    ]
    for source in sources:
        matches = [verdict for verdict in marked if source.expected.judges(verdict.name)]
        if matches and all(verdict.ok for verdict in matches):
            marked.append(_unexpected_pass(source, matches, strict=strict))
    return marked


def _reason(verdict: Verdict, sources: Sequence[ExpectedInFile]) -> str | None:
    return next((source.expected.reason for source in sources if source.expected.judges(verdict.name)), None)


def _unexpected_pass(source: ExpectedInFile, passed: Sequence[Verdict], *, strict: bool) -> Verdict:
    names = ", ".join(dict.fromkeys(verdict.name for verdict in passed))
    sentence = (
        f"expected to fail but passed: {names} ({source.expected.reason}); remove the table [[expected]] for"
        f" case {source.expected.case} from {source.file}"
    )
    return Verdict(
        "expected",
        not strict,
        "passed",
        "the expected failure",
        sentence,
        warning=not strict,
        kind=VerdictKind.EXPECTED,
    )


def unknown_verdicts(sources: Iterable[ExpectedInFile], cases: Iterable[CaseResult]) -> list[str]:
    """Return a warning for each expected failure that matches no verdict of its cases but has a similar name."""
    cases = list(cases)
    warnings = []
    for source in sources:
        one = source.expected
        names = {verdict.name for case in cases if one.is_about(case.case) for verdict in case.all_verdicts}
        if (hint := near(one.verdict, names)) and not any(map(one.judges, names)):
            warnings.append(f"warning: {source.file}: [[expected]]: unknown verdict {one.verdict!r}{hint}")
    return warnings
