"""Performance tables in the format of FlagPerf's model READMEs: one row per shape, the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from pytest_flagperf.case import Shape
from pytest_flagperf.kind import kind_of
from pytest_flagperf.report.export.markdown import row
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult

FILE = "performance.md"
PUBLISHED = Shape.parse_list("1x1,1x8,2x8")
"""The shapes that FlagPerf publishes."""
_Entry = tuple[StoredRun, CaseResult]


def performance_tables(runs: Sequence[StoredRun]) -> str:
    """Return a heading, a table and notes for each model, framework and verified chip, and the other cases."""
    entries = sorted(
        ((run, case) for run in runs for case in run.cases), key=lambda entry: (_group(entry), entry[1].first.shape)
    )
    lines: list[str] = []
    listed = [entry for entry in entries if not marks.unverified_chip(entry[1].outcomes)]
    for _, group in groupby(listed, key=_group):
        lines += [*([""] if lines else []), *_section(list(group))]
    for _, case in entries:
        if reason := escape(marks.unverified_chip(case.outcomes), quote=False):
            lines += [*([""] if lines else []), f"Not listed: {case.case}: {reason}."]
    return "\n".join([*lines, ""])


def _group(entry: _Entry) -> tuple[str, str, str, str, str, bool]:
    first = entry[1].first
    return first.model, first.framework, first.vendor, first.hardware, first.scale, first.synthetic


def _section(entries: Sequence[_Entry]) -> Iterator[str]:
    cases = [case for _, case in entries]
    first = cases[0].first
    heading = f"{first.model}-{first.framework}, {first.vendor} {first.hardware}"
    (head, *rows), units = kind_of(first).markdown(entries)
    yield f"### {heading}"
    yield ""
    yield row(head)
    yield row(["---"] * len(head))
    yield from map(row, rows)
    yield ""
    yield " ".join([units, *_notes(cases)])


def _notes(cases: Sequence[CaseResult]) -> Iterator[str]:
    first = cases[0].first
    if first.target.value is not None:
        yield f"Target: {', '.join(targets.texts(first.target))}."
    if any(len(case.counted) > 1 for case in cases):
        yield f"Median of the rounds: {', '.join(f'{len(case.counted)} for {case.first.shape}' for case in cases)}."
    for case in cases:
        if reason := marks.of_rounds(case.outcomes).get(marks.NOT_VALID):
            yield f"{case.first.shape}: {marks.NOT_VALID}: {escape(reason, quote=False)}."
    measured = {case.first.shape for case in cases if case.finished}
    missing = [str(shape) for shape in PUBLISHED if shape not in measured]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
    if first.scale != "reference" and first.target.value is not None:
        yield f"At the {first.scale} scale: not comparable with the full-size model."
    if first.synthetic:
        yield "With synthetic data."
    for case in cases:
        if case.vendor_code:
            yield f"{case.first.shape} with {escape(case.vendor_code, quote=False)}."
