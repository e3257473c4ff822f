"""The headline of a page, and what is known of its run and its machines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from flagperf_driver.addresses import HIDDEN
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.marks import NOT_VALID
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.results.verdicts.case_result import (
    BAD,
    EXPECTED,
    FAILED,
    PASSED,
    STATES,
    UNFINISHED,
    CaseSummary,
    counted_marks,
    counted_reasons,
    marked,
    not_judged,
)
from pytest_flagperf.stored import layout

from . import machine
from .html import address, css_class, folded
from .rows import Row

_MAX_SHOWN = 10
"""The number of lines in the headline from which on the others are folded."""
_MAX_NAMED = 6
"""The number of cases that a line of the headline names."""
_MAX_LISTED = 30
"""The maximum number of cases in the headline; the table has all of them."""
_FILES = ((layout.RESULTS, "all results"), (layout.TABLE, "as a table"), (layout.JUNIT, "JUnit"))


def headline(rows: Sequence[Row], info: RunInfo | None = None) -> str:
    """Return the verdict in a sentence, and a line for each case that needs attention."""
    bad = [row for row in rows if row.summary.state in BAD]
    others = [row for row in rows if row.summary.state in (UNFINISHED, EXPECTED)]
    with_code = _with_code(rows)
    not_run = info.not_run if info else ()
    lines = [_reason(row) for row in (*bad[:_MAX_LISTED], *others[:_MAX_LISTED])]
    more = len(bad) + len(others) - len(lines)
    if more:
        lines.append(f'<li>and {count(more, "more case")}: <a href="#overview">see the overview</a></li>')
    lines += [_marked(phrase, rows) for phrase in marked(row.summary for row in rows)]
    lines += [f"<li>{row.linked}: {escape(_state_with_code(row.summary))}</li>" for row in with_code[:_MAX_LISTED]]
    if len(with_code) > _MAX_LISTED:
        lines.append(f"<li>and {count(len(with_code) - _MAX_LISTED, 'more case')} with vendor code</li>")
    lines += [f"<li>not run: {escape(line)}</li>" for line in not_run[:_MAX_LISTED]]
    if len(not_run) > _MAX_LISTED:
        lines.append(f"<li>and {count(len(not_run) - _MAX_LISTED, 'more case')} not run</li>")
    doubtful = others or any(NOT_VALID in row.summary.marks for row in rows)
    kind = FAILED if bad or not rows else EXPECTED if doubtful else PASSED
    shown, rest = (lines, []) if len(lines) <= _MAX_SHOWN + 2 else (lines[:_MAX_SHOWN], lines[_MAX_SHOWN:])
    listed = f"<ul>{''.join(shown)}</ul>" if shown else ""
    listed += folded(f"{len(rest)} more lines", f"<ul>{''.join(rest)}</ul>") if rest else ""
    return f'<div class="headline {css_class(kind)}" id="summary"><p>{_verdict(rows, len(not_run))}</p>{listed}</div>'


def _marked(phrase: str, rows: Sequence[Row]) -> str:
    """Return one line for all cases with a mark, with its reasons."""
    found = [row for row in rows if phrase in row.summary.marks]
    linked = ", ".join(row.linked for row in found[:_MAX_NAMED])
    more = f" and {count(len(found) - _MAX_NAMED, 'more case')}" if len(found) > _MAX_NAMED else ""
    reasons = "; ".join(counted_reasons(phrase, [row.summary for row in found]))
    return f"<li>{escape(phrase)}: {linked}{more}: {escape(reasons)}</li>"


def _with_code(rows: Sequence[Row]) -> list[Row]:
    """Return the cases that passed with vendor code."""
    return [row for row in rows if row.summary.state == PASSED and row.summary.vendor_code]


def _verdict(rows: Sequence[Row], not_run: int) -> str:
    """Return for example ``2 of 12 cases failed, 9 passed`` or ``6 of 6 cases converged; alpha on 8 cards is ...``."""
    if not rows:
        return "No results"
    numbers = Counter(row.summary.state for row in rows)
    first, *others = (name for name in STATES if numbers[name])
    word = "converged" if first == PASSED and all(row.converged for row in rows) else first
    parts = [
        f'<span class="{css_class(first)}">{numbers[first]} of {count(len(rows), "case")} {word}</span>',
        *(f'<span class="{css_class(name)}">{numbers[name]} {name}</span>' for name in others),
    ]
    with_code = _with_code(rows)
    parts += [f"{len(with_code)} with vendor code"] if with_code else []
    parts += counted_marks(row.summary for row in rows)
    passed = [row for row in rows if row.summary.state == PASSED]
    invalid, rounds = sum(row.rounds - row.valid for row in passed), sum(row.rounds for row in passed)
    parts += [f"{invalid} of {count(rounds, 'round')} not valid"] if invalid else []
    parts += not_judged(row.summary for row in rows)
    parts += [f"{not_run} not run"] if not_run else []
    return "; ".join([", ".join(parts), *map(escape, filter(None, (_scaling(rows), _baselines(rows))))])


def _scaling(rows: Sequence[Row]) -> str:
    """Return how much faster most cards are than one, such as ``alpha on 2 cards is 1.66 times as fast as on one``.

    A speed-up above the number of cards is noise, and fewer than half of the rounds prove nothing.
    """
    good = [row for row in rows if row.summary.state not in (*BAD, UNFINISHED) and 2 * row.valid >= row.rounds]
    scaled = [row for row in good if row.speedup is not None and row.speedup <= row.cards]
    most = max((row.cards for row in scaled), default=1)
    ordered = sorted((row.speedup or 0.0, row.model) for row in scaled if row.cards == most)
    if most < 2:
        return ""
    (low, slowest), (high, fastest) = ordered[0], ordered[-1]
    if len(ordered) == 1:
        return f"{fastest} on {most} cards is {high:.2f} times as fast as on one"
    return f"{most} cards are {low:.2f} ({slowest}) to {high:.2f} times ({fastest}) as fast as one"


def _reason(row: Row) -> str:
    """Return the first reason in a few words, how many more there are, and what to do."""
    reasons = row.summary.short or row.summary.expected or (row.summary.state,)
    more = f" <small>(and {count(len(reasons) - 1, 'more reason')})</small>" if len(reasons) > 1 else ""
    code = f" <small>({escape(_state_with_code(row.summary))})</small>" if row.summary.vendor_code else ""
    advice = f'<span class="advice">{escape(row.advice)}</span>' if row.advice else ""
    return f"<li>{row.linked}: {escape(reasons[0])}{more}{code}{advice}</li>"


def machine_and_run(rows: Sequence[Row], info: RunInfo | None, run_dir: Path, page_dir: Path) -> str:
    """Return the machine and the time of the run in one line, which opens to all that is known of both."""
    groups = {name: [row for row in rows if row.machine == name] for name in dict.fromkeys(row.machine for row in rows)}
    shapes = {name: [row.shape for row in group] for name, group in groups.items()}
    facts = {name: [row.facts for row in group] for name, group in groups.items()}
    started = "" if info is None or info.started_ms is None else _started(info)
    content = _again(info) + (machine.block(shapes, facts) if rows else "") + _facts(rows, info, run_dir, page_dir)
    return folded("; ".join(filter(None, (machine.line(shapes, facts), started))) or "Run", content)


def _facts(rows: Sequence[Row], info: RunInfo | None, run_dir: Path, page_dir: Path) -> str:
    versions = info.versions.items() if info is not None else ()
    facts = {
        "Versions": escape(", ".join(f"{name} {version}" for name, version in versions)),
        "Controller": "" if info is None else escape(_controller(info)),
        "Files": ", ".join(_files(run_dir, page_dir)),
        "Warnings": escape(_warnings(rows)),
    }
    items = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _controller(info: RunInfo) -> str:
    """Return the load and memory of the machine that ran pytest, and what pytest-flagperf used."""
    figures, parts = info.controller, []
    if {"cores", "load_1min", "memory", "memory_available"} <= figures.keys():
        memory = f"{quantity(figures['memory_available'], 'bytes')} of {quantity(figures['memory'], 'bytes')}"
        parts.append(
            f"load {figures['load_1min']:.2f} on {figures['cores']:.0f} cores, {memory} memory available before the run"
        )
    if {"harness_cpu_s", "harness_memory"} <= figures.keys():
        used = f"{quantity(figures['harness_cpu_s'], 's')} of CPU time, {quantity(figures['harness_memory'], 'bytes')}"
        parts.append(f"pytest-flagperf used {used}")
    return "; ".join(parts)


def _again(info: RunInfo | None) -> str:
    """Return the command of the run, which can be copied."""
    if info is None or not info.command:
        return ""
    words = info.command if info.command[0] == "pytest" else ("pytest", *info.command)
    note = f"replace {HIDDEN} by the hidden value" if any(HIDDEN in word for word in words) else ""
    return f"<p>Run again: {machine.command(words, note)}</p>"


def _baselines(rows: Sequence[Row]) -> str:
    compared = [row.meets_baseline for row in rows if row.meets_baseline is not None]
    worse = compared.count(False)
    return f"{len(compared)} compared with accepted baselines, {worse or 'none'} worse" if compared else ""


def _started(info: RunInfo) -> str:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime((info.started_ms or 0) / 1000))
    return f"{text}, took {info.took}" if info.took else text


def _files(run_dir: Path, page_dir: Path) -> Iterator[str]:
    for name, description in _FILES:
        if (run_dir / name).is_file():
            yield f'<a href="{address(run_dir / name, page_dir)}">{name}</a> ({description})'


def _warnings(rows: Sequence[Row]) -> str:
    numbers = [len(row.summary.warnings) for row in rows if row.summary.warnings]
    return f"{count(sum(numbers), 'warning')} in {count(len(numbers), 'case')}" if numbers else ""


def _state_with_code(summary: CaseSummary) -> str:
    """Return the state of a case and its vendor code, such as "passed with acme's own step backward"."""
    return f"{summary.state} with {summary.vendor_code}" if summary.vendor_code else summary.state
