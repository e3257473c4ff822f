"""What GitHub shows of a run beside its log: the step's summary in Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from pytest_flagperf.report.terminal import table
from pytest_flagperf.report.terminal.summary import EXPECTED, FAILED, PASSED, REGRESSED, UNFINISHED, Closing, Told
from pytest_flagperf.results.units import count

SUMMARY_BYTES = 1024 * 1024
"""Of a step's whole summary; GitHub refuses a longer one altogether."""
_SIGNS = {PASSED: "✅", FAILED: "❌", REGRESSED: "📉", EXPECTED: "🟡", UNFINISHED: "⬜"}


def summary(end: Closing, room: int = SUMMARY_BYTES) -> str:
    """In at most ``room`` bytes: the verdict, what failed and why, the table, what else should be known."""
    blocks = [_lines([f"### {_text(end.verdict())}"]), *_failed(end.told), *_table(end), *_folded(end)]
    return _fitting(blocks, room)


def _failed(told: Iterable[Told]) -> Iterator[str]:
    for one in told:
        if one.failures:
            yield _lines([f"- {_SIGNS[one.state]} {_code(one.case)}", *(f"  - {_text(text)}" for text in one.failures)])


def _table(end: Closing) -> Iterator[str]:
    """In one piece: a table that lacks its head is none."""
    if not end.cases:
        return
    head, *rows = table.rows(end.cases)
    told_rows = zip(end.told, rows, strict=True)
    yield _lines(
        [
            _row(["", *map(_text, head)]),
            _row(["---", "---", *(["---:"] * (len(head) - 1))]),
            *(_row([_SIGNS[one.state], _case(one), *map(_text, row[1:])]) for one, row in told_rows),
        ]
    )


def _folded(end: Closing) -> Iterator[str]:
    warnings = [f"{one.case} {text}" for one in end.told for text in one.warnings]
    yield from _details(count(len(warnings), "warning"), warnings)
    expected = [f"{one.case}: {text}" for one in end.told for text in one.expected]
    yield from _details(count(len(expected), "expected failure"), expected)
    yield from _details(f"{count(len(end.not_run), 'case')} not run", end.not_run)


def _details(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        items = [f"- {_text(text)}" for text in texts]
        yield _lines([f"<details><summary>{_text(title)}</summary>", "", *items, "", "</details>"])


def _fitting(blocks: Sequence[str], room: int) -> str:
    """Whole blocks in their order, as far as they fit."""
    last = _lines(["*More did not fit here: report.html has it all.*"])
    if sum(len(block.encode()) for block in blocks) <= room:
        return "".join(blocks)
    kept, left = "", room - len(last.encode())
    for block in blocks:
        left -= len(block.encode())
        if left < 0:
            break
        kept += block
    return kept + last if room >= len(last.encode()) else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """What Markdown would take for a smiley, as the ``:100:`` of a case, it leaves alone here."""
    return f"<code>{_text(text)}</code>"


def _case(told: Told) -> str:
    """The case, and the vendor code that it ran with."""
    return _code(told.case) + (f" with {_text(told.vendor_code)}" if told.vendor_code else "")


def _lines(texts: Iterable[str]) -> str:
    """A block with the empty line that ends it."""
    return "\n".join([*texts, "", ""])


def _text(text: str) -> str:
    """As it is: no markup, no table's bar, one line."""
    flat = " ".join(html.escape(text, quote=False).split())
    return "".join(f"\\{char}" if char in "|`*[]\\" else char for char in flat)
