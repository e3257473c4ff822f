"""The Markdown summary of a run for a step of GitHub Actions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from pytest_flagperf.report.terminal import table
from pytest_flagperf.report.terminal.summary import (
    EXPECTED,
    FAILED,
    PASSED,
    REGRESSED,
    UNFINISHED,
    CaseSummary,
    RunSummary,
)
from pytest_flagperf.results.units import count

SUMMARY_BYTES = 1024 * 1024
"""The limit for the summary of a step; GitHub refuses a longer summary."""
_SIGNS = {PASSED: "✅", FAILED: "❌", REGRESSED: "📉", EXPECTED: "🟡", UNFINISHED: "⬜"}


def summary(run: RunSummary, limit: int = SUMMARY_BYTES) -> str:
    """Return the verdict, the failures, the table and the warnings in at most ``limit`` bytes."""
    blocks = [_lines([f"### {_text(run.verdict())}"]), *_failed(run.summaries), *_table(run), *_folded(run)]
    return _truncated(blocks, limit)


def _failed(summaries: Iterable[CaseSummary]) -> Iterator[str]:
    for case in summaries:
        if case.failures:
            failures = [f"  - {_text(text)}" for text in case.failures]
            yield _lines([f"- {_SIGNS[case.state]} {_code(case.case)}", *failures])


def _table(run: RunSummary) -> Iterator[str]:
    """Yield the whole table as one block, so that it is never truncated."""
    if not run.cases:
        return
    head, *rows = table.rows(run.cases)
    yield _lines(
        [
            _row(["", *map(_text, head)]),
            _row(["---", "---", *(["---:"] * (len(head) - 1))]),
            *(
                _row([_SIGNS[case.state], _case(case), *map(_text, row[1:])])
                for case, row in zip(run.summaries, rows, strict=True)
            ),
        ]
    )


def _folded(run: RunSummary) -> Iterator[str]:
    warnings = [f"{case.case} {text}" for case in run.summaries for text in case.warnings]
    yield from _details(count(len(warnings), "warning"), warnings)
    expected = [f"{case.case}: {text}" for case in run.summaries for text in case.expected]
    yield from _details(count(len(expected), "expected failure"), expected)
    yield from _details(f"{count(len(run.not_run), 'case')} not run", run.not_run)


def _details(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        items = [f"- {_text(text)}" for text in texts]
        yield _lines([f"<details><summary>{_text(title)}</summary>", "", *items, "", "</details>"])


def _truncated(blocks: Sequence[str], limit: int) -> str:
    """Return as many whole blocks as fit."""
    note = _lines(["*This summary is truncated; see report.html.*"])
    if sum(len(block.encode()) for block in blocks) <= limit:
        return "".join(blocks)
    text, available = "", limit - len(note.encode())
    for block in blocks:
        available -= len(block.encode())
        if available < 0:
            break
        text += block
    return text + note if limit >= len(note.encode()) else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return the text as code, in which Markdown does not replace the ``:100:`` of a case by a smiley."""
    return f"<code>{_text(text)}</code>"


def _case(summary: CaseSummary) -> str:
    """Return the case, with its vendor code."""
    return _code(summary.case) + (f" with {_text(summary.vendor_code)}" if summary.vendor_code else "")


def _lines(texts: Iterable[str]) -> str:
    """Return a block of lines, ended by an empty line."""
    return "\n".join([*texts, "", ""])


def _text(text: str) -> str:
    """Escape a text, so that it has no markup, no table separators and no line breaks."""
    flat = " ".join(html.escape(text, quote=False).split())
    return "".join(f"\\{char}" if char in "|`*[]\\" else char for char in flat)
