"""The Markdown summary of a run for a step of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_flagperf.report.export import blocks
from pytest_flagperf.report.terminal import table
from pytest_flagperf.report.terminal.summary import RunSummary
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.verdicts.case_result import EXPECTED, FAILED, PASSED, REGRESSED, UNFINISHED, CaseSummary

SUMMARY_BYTES = 1024 * 1024
"""The limit for the summary of a step; GitHub refuses a longer summary."""
_SIGNS = {PASSED: "✅", FAILED: "❌", REGRESSED: "📉", EXPECTED: "🟡", UNFINISHED: "⬜"}


def summary(run: RunSummary, limit: int = SUMMARY_BYTES) -> str:
    """Return the verdict, the failures, the table and the warnings in at most ``limit`` bytes."""
    heading = blocks.lines([f"### {blocks.text(run.verdict())}"])
    parts = [heading, *_failed(run.summaries), *_table(run), *_folded(run)]
    return blocks.truncated(parts, limit, "This summary is truncated; see report.html.")


def _failed(summaries: Iterable[CaseSummary]) -> Iterator[str]:
    for case in summaries:
        if case.failures:
            failures = [f"  - {blocks.text(text)}" for text in case.failures]
            yield blocks.lines([f"- {_SIGNS[case.state]} {blocks.code(case.case)}", *failures])


def _table(run: RunSummary) -> Iterator[str]:
    """Yield the whole table as one block, so that it is never truncated."""
    if not run.cases:
        return
    head, *rows = table.rows(run.cases)
    cells = [
        [_SIGNS[case.state], _case(case), *map(blocks.text, row[1:])]
        for case, row in zip(run.summaries, rows, strict=True)
    ]
    yield blocks.table(["", *map(blocks.text, head)], cells, left=2)


def _folded(run: RunSummary) -> Iterator[str]:
    warnings = [f"{case.case} {text}" for case in run.summaries for text in case.warnings]
    yield from blocks.details(count(len(warnings), "warning"), warnings)
    expected = [f"{case.case}: {text}" for case in run.summaries for text in case.expected]
    yield from blocks.details(count(len(expected), "expected failure"), expected)
    yield from blocks.details(f"{count(len(run.not_run), 'case')} not run", run.not_run)


def _case(summary: CaseSummary) -> str:
    """Return the case, with its vendor code and its marks."""
    code = [f"with {blocks.text(summary.vendor_code)}"] if summary.vendor_code else []
    return " ".join([blocks.code(summary.case), *code, *(f"({mark})" for mark in summary.marks)])
