"""The page of a run, made from its directory alone: what came out, every case in one table, and a section a case.

``body`` is the part that pytest-html's report is extended by; ``alone`` makes a page of it that stands by itself.
Cases are read one after the other, and of long logs and series only parts: the memory does not grow with either.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from pytest_flagperf.report.page.html import anchor, css_class, document, script, style
from pytest_flagperf.report.page.rows import Row, machines, overview, row_of, scaling
from pytest_flagperf.report.page.section import Detail, section
from pytest_flagperf.report.terminal.summary import (
    BAD,
    EXPECTED,
    FAILED,
    INTERRUPTED,
    PASSED,
    STATES,
    UNFINISHED,
    CaseSummary,
    state_with_code,
    summarize_case,
)
from pytest_flagperf.results import store
from pytest_flagperf.results.store import CaseResult, RunInfo
from pytest_flagperf.results.units import count, quantity
from pytest_flagperf.stored import layout
from pytest_flagperf.stored.round import case_folders, rounds_of

BYTES = 2_500_000
"""What the page may weigh where that is possible; of many cases the charts have fewer points."""
_OF_A_CASE, _OF_A_ROUND, _OF_A_NUMBER = 20_000, 3_500, 6
"""What these weigh, charts apart."""
_CHARTS, _CURVES = 9, 18
"""As many numbers as fill a monitor's chart, and as lie on a line, a round has so many times."""
_READ = 16_000_000
"""Bytes of series that are read where there is so much, of all rounds together."""
_SHOWN = 30
"""So many failed cases are told at the top; the table has all."""
_FILES = ((layout.RESULTS, "all results"), (layout.TABLE, "as a table"), (layout.JUNIT, "JUnit"))


def alone(run_dir: Path, page: Path) -> str:
    """A page for a place on this machine, from which its links to logs are right."""
    return document(f"flagperf {run_dir.resolve().name}", body(run_dir, page.resolve().parent))


def extension(run_dir: Path, page: Path) -> str:
    """The body with its style and script, for a page that somebody else begins and ends."""
    return style() + body(run_dir, page.resolve().parent) + script()


def body(run_dir: Path, page_dir: Path) -> str:
    """The part between: needs the style before it and the script after it."""
    problems: list[str] = []
    run_dir = run_dir.resolve()
    info = store.load_info(run_dir, problems) if (run_dir / layout.RESULTS).is_file() else None
    detail = _detail(run_dir)
    made: list[tuple[Row, str]] = []
    for case in store.each_case(run_dir, problems):
        summary = summarize_case(case, interrupted=info is not None and info.exit_status == INTERRUPTED)
        case_dir = run_dir / case.outcomes[0].directory.parent
        made.append((row_of(case, summary), _section(case, summary, case_dir, page_dir, detail)))
    made.sort(key=lambda pair: pair[0].order)
    rows = [row for row, _ in made]
    parts = [
        _headline(rows, info),
        _facts(rows, info, run_dir, page_dir),
        "".join(f'<p class="warning">{escape(problem)}</p>' for problem in problems),
        overview(rows),
        scaling(rows),
        machines(rows),
        '<h2 id="cases">Cases <button class="plain" data-all="open">open all</button> '
        '<button class="plain" data-all="close">close all</button></h2>',
        *(text for _, text in made),
    ]
    text = f'<main class="flagperf">{"".join(parts)}</main>'
    # What a log says may be no text that can be written.
    return text.encode("utf-8", "replace").decode("utf-8")


def _section(case: CaseResult, summary: CaseSummary, case_dir: Path, page_dir: Path, detail: Detail) -> str:
    try:
        return section(case, summary, case_dir, page_dir, detail)
    except Exception as error:  # files that no check foresaw take no other case with them
        reason = f"{case_dir}: the details cannot be shown: {type(error).__name__}: {error}"
        return f'<p class="bad" id="{anchor(case.case)}">{escape(reason)}</p>'


def _detail(run_dir: Path) -> Detail:
    """As fine as there is room for."""
    folders = case_folders(run_dir)
    cases, rounds = len(folders), sum(len(rounds_of(folder)) for folder in folders)
    if not rounds:
        return Detail()
    full = Detail()
    numbers = max(BYTES - _OF_A_CASE * cases - _OF_A_ROUND * rounds, 0) // rounds // _OF_A_NUMBER
    return Detail(
        points=min(max(numbers // _CURVES, 36), full.points),
        samples=min(max(numbers // _CHARTS, 100), full.samples),
        bytes=min(_READ // rounds, full.bytes),
    )


# -- what one sees first -------------------------------------------------------------------------------------


def _headline(rows: Sequence[Row], info: RunInfo | None) -> str:
    bad = [row for row in rows if row.summary.state in BAD]
    others = [row for row in rows if row.summary.state in (UNFINISHED, EXPECTED)]
    with_code = _with_code(rows)
    unsupported = info.unsupported if info else ()
    told = [_reason(row) for row in (*bad[:_SHOWN], *others[:_SHOWN])]
    more = len(bad) + len(others) - len(told)
    if more:
        told.append(f'<li>and {count(more, "case")} more: <a href="#overview">all of them</a></li>')
    told += [f"<li>{_link(row)}: {escape(state_with_code(row.summary))}</li>" for row in with_code[:_SHOWN]]
    if len(with_code) > _SHOWN:
        told.append(f"<li>and {count(len(with_code) - _SHOWN, 'more case')} with vendor code</li>")
    told += [f"<li>not run: {escape(line)}</li>" for line in unsupported[:_SHOWN]]
    kind = FAILED if bad or not rows else EXPECTED if others else PASSED
    listed = f"<ul>{''.join(told)}</ul>" if told else ""
    return (
        f'<div class="headline {css_class(kind)}" id="summary"><p>{_counted(rows, len(unsupported))}</p>{listed}</div>'
    )


def _with_code(rows: Sequence[Row]) -> list[Row]:
    """The cases that passed with vendor code."""
    return [row for row in rows if row.summary.state == PASSED and row.summary.vendor_code]


def _counted(rows: Sequence[Row], unsupported: int) -> str:
    """``12 cases: 2 failed, 1 failed as expected, 9 passed``."""
    if not rows:
        return "No results"
    numbers = Counter(row.summary.state for row in rows)
    said = [f'<span class="{css_class(name)}">{numbers[name]} {name}</span>' for name in STATES if numbers[name]]
    if len(said) == 1 and numbers[PASSED]:
        said = [f'<span class="{css_class(PASSED)}">{"all passed" if len(rows) > 1 else "passed"}</span>']
    with_code = _with_code(rows)
    said += [f"{len(with_code)} with vendor code"] if with_code else []
    said += [f"{unsupported} cannot run"] if unsupported else []
    return f"{count(len(rows), 'case')}: {', '.join(said)}"


def _reason(row: Row) -> str:
    """The first sentence, and how many more there are."""
    why = row.summary.failures or row.summary.expected or (row.summary.state,)
    more = f" <small>(and {count(len(why) - 1, 'more sentence')})</small>" if len(why) > 1 else ""
    code = f" <small>({escape(state_with_code(row.summary))})</small>" if row.summary.vendor_code else ""
    return f"<li>{_link(row)}: {escape(why[0])}{more}{code}</li>"


def _link(row: Row) -> str:
    return f'<a href="#{anchor(row.case)}">{escape(row.case)}</a>'


def _facts(rows: Sequence[Row], info: RunInfo | None, run_dir: Path, page_dir: Path) -> str:
    facts = {
        "Hardware": escape("; ".join(_hardware(rows))),
        "Compared with": escape(_compared(rows)),
        "Began": "" if info is None or info.started_ms is None else escape(_began(info)),
        "Command": "" if info is None else f"<code>{escape(shlex.join(info.command))}</code>" * bool(info.command),
        "Made by": "" if info is None else escape(", ".join(f"{name} {said}" for name, said in info.versions.items())),
        "Run from": "" if info is None else escape(_controller(info)),
        "Files": ", ".join(_files(run_dir, page_dir)),
        "To be read": escape(_warned(rows)),
    }
    said = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
    return f'<dl class="facts">{said}</dl>'


def _controller(info: RunInfo) -> str:
    """The load and memory of the machine that ran pytest, and what the harness used there."""
    figures, words = info.controller, []
    if {"cores", "load_1min", "memory", "memory_available"} <= figures.keys():
        memory = f"{quantity(figures['memory_available'], 'bytes')} of {quantity(figures['memory'], 'bytes')}"
        words.append(
            f"load {figures['load_1min']:.2f} on {figures['cores']:.0f} cores, {memory} memory available before"
        )
    if {"harness_cpu_s", "harness_memory"} <= figures.keys():
        used = f"{quantity(figures['harness_cpu_s'], 's')} of CPU time, {quantity(figures['harness_memory'], 'bytes')}"
        words.append(f"the harness used {used}")
    return "; ".join(words)


def _hardware(rows: Sequence[Row]) -> Iterator[str]:
    """Each kind once, with the shapes it was measured in."""
    for machine in dict.fromkeys(row.machine for row in rows):
        mine = [row for row in rows if row.machine == machine]
        shapes = sorted({row.shape for row in mine}, key=lambda shape: (shape[0] * shape[1], shape))
        devices = [name for name in dict.fromkeys(row.device for row in mine) if name]
        device = f" ({', '.join(devices)})" if devices else ""
        yield f"{machine}{device}: {', '.join(f'{nodes}x{cards}' for nodes, cards in shapes)}"


def _compared(rows: Sequence[Row]) -> str:
    held = [row.held for row in rows if row.held is not None]
    if not held:
        return "no accepted baseline: throughputs were judged by themselves"
    bad = len(held) - sum(held)
    how = f"{bad} worse" if bad else "none worse"
    return f"accepted baselines ({len(held)} of {count(len(rows), 'case')}, {how})"


def _began(info: RunInfo) -> str:
    assert info.started_ms is not None
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.started_ms / 1000))
    if info.ended_ms is None:
        return said
    return f"{said}, took {quantity((info.ended_ms - info.started_ms) / 1000, 's')}"


def _files(run_dir: Path, page_dir: Path) -> Iterator[str]:
    base = Path(os.path.relpath(run_dir, page_dir))
    for name, said in _FILES:
        if (run_dir / name).is_file():
            yield f'<a href="{escape(quote((base / name).as_posix()))}">{name}</a> ({said})'


def _warned(rows: Sequence[Row]) -> str:
    found = [len(row.summary.warnings) for row in rows if row.summary.warnings]
    return f"{count(sum(found), 'warning')} on {count(len(found), 'case')}" if found else ""
