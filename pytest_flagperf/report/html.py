"""Pieces for the HTML report: columns for the main figures, and per item curves, figures, config and logs.

All of it is text made from what is stored; everything that a log or a config says is escaped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_flagperf.report import plots
from pytest_flagperf.results import jsons, monitors
from pytest_flagperf.results.jsons import FormatError
from pytest_flagperf.results.outcome import Failure, Outcome
from pytest_flagperf.results.statistics import summarize
from pytest_flagperf.results.units import compared, count, quantity
from pytest_flagperf.results.verdicts import Verdict, failed

COLUMNS = ("case", "metric", "p_core", "speedup")
_TITLES = {"case": "Case", "metric": "Metric", "p_core": "p_core", "speedup": "Speed-up"}
_NOTHING = ""


def style() -> str:
    """Once per page."""
    css = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return f"<style>{css}</style>"


def header_cells() -> list[str]:
    return [f'<th class="sortable col-{name}" data-column-type="{name}">{_TITLES[name]}</th>' for name in COLUMNS]


def row_cells(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict] = ()) -> list[str]:
    """An item's main figures over its rounds; empty cells where it is no item of ours."""
    values = _cells(outcomes, verdicts) if outcomes else {}
    return [f'<td class="col-{name}">{escape(values.get(name, _NOTHING))}</td>' for name in COLUMNS]


def _cells(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> dict[str, str]:
    p_core = summarize(outcome.value("p_core") for outcome in outcomes if outcome.ok).median
    return {
        "case": outcomes[0].case,
        "metric": _metric(outcomes),
        "p_core": _NOTHING if p_core is None else quantity(p_core, outcomes[0].rate_unit),
        "speedup": next((verdict.got for verdict in verdicts if verdict.name == "speedup"), _NOTHING),
    }


def details(round_dir: Path, outcome: Outcome, report_dir: Path, verdicts: Sequence[Verdict] = ()) -> str:
    """One round: what failed, curves, figures, config, environment, logs linked relative to the report."""
    parts = [
        _heading(outcome),
        *(_failed(verdict) for verdict in failed(verdicts) if verdict.name != "finished"),
        *(_failure(failure) for failure in outcome.failures),
        *(f'<p class="warning">{escape(warning)}</p>' for warning in outcome.warnings),
        _plots([outcome]),
        _figures(outcome),
        _monitors(round_dir),
        _config(round_dir),
        _environment(outcome),
        _logs(outcome, round_dir, report_dir),
    ]
    return f'<div class="flagperf">{"".join(parts)}</div>'


def _heading(outcome: Outcome) -> str:
    notes = [outcome.scale and f"{outcome.scale} scale", f"seed {outcome.seed}"]
    notes += ["synthetic data"] * outcome.synthetic + ["throughput only"] * outcome.throughput_only
    if outcome.broken_lines:
        notes.append(f"{count(outcome.broken_lines, 'broken log line')} passed over")
    mark = '<span class="ok">finished</span>' if outcome.ok else '<span class="bad">not finished</span>'
    said = escape(", ".join(note for note in notes if note))
    return f"<h3>{escape(outcome.case)} round {outcome.round}: {mark} <small>({said})</small></h3>"


def _failed(verdict: Verdict) -> str:
    return f'<p class="bad">{escape(verdict.sentence)}</p>'


def _failure(failure: Failure) -> str:
    lines = f'<pre class="tail">{escape(chr(10).join(failure.last_lines))}</pre>' if failure.last_lines else ""
    return f'<p class="bad">{escape(failure.sentence)}</p>{lines}'


def _plots(outcomes: Sequence[Outcome]) -> str:
    drawn = [
        ("Training loss", plots.loss(outcomes)),
        (f"{outcomes[0].target.name} against its target", plots.metric(outcomes)),
        ("Throughput", plots.throughput(outcomes)),
    ]
    return _pictures(drawn)


def _pictures(drawn: Sequence[tuple[str, str | None]]) -> str:
    figures = [
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in drawn if svg is not None
    ]
    return f'<div class="plots">{"".join(figures)}</div>' if figures else ""


def _figures(outcome: Outcome) -> str:
    if not outcome.metrics:
        return ""
    rows = [
        (metric.name, _Number(quantity(metric.value, metric.unit)), metric.direction or "", metric.how)
        for metric in outcome.metrics
    ]
    return f"<h3>Figures</h3>{_table(('figure', 'value', 'better', 'how it was measured'), rows)}"


def _monitors(round_dir: Path) -> str:
    """What the hosts and their devices did meanwhile, and what must be known of these figures."""
    found = monitors.read(round_dir)
    rows = [row for folder, samples in found.items() for row in _sampled(folder, samples)]
    if not rows:
        return ""
    drawn = _pictures([("Hosts", plots.hosts(found)), ("Devices", plots.devices(found))])
    notes = [f"<li>{escape(f'{folder}: {note}')}</li>" for folder, samples in found.items() for note in samples.notes]
    said = f"<ul>{''.join(notes)}</ul>" if notes else ""
    head = ("host", "device", "quantity", "mean", "highest", "read from")
    return _folded("Hosts and devices meanwhile", f"{drawn}{_table(head, rows)}{said}")


def _sampled(folder: str, samples: monitors.Samples) -> Iterator[tuple[str, ...]]:
    for name, series in samples.host.items():
        yield (folder, "", name, *_mean_and_highest(series), samples.read_from(name))
    for index, quantities in sorted(samples.devices.items()):
        for name, series in quantities.items():
            if name not in ("energy", "memory_total"):
                yield (folder, str(index), name, *_mean_and_highest(series), samples.read_from("devices"))
        energy = samples.energy(index)
        if energy is not None:
            covered = "" if energy.covered > 0.995 else f", {energy.covered:.0%} of the time"
            yield (folder, str(index), "energy", _Number(quantity(energy.joules, "J")), "", f"{energy.how}{covered}")
        for reason, share in samples.throttle.get(index, {}).items():
            yield (folder, str(index), f"clocks held back: {reason}", _Number(f"{share:.0%} of the time"), "", "")


def _mean_and_highest(series: monitors.Series) -> tuple[str, str]:
    unit = {"1": "share"}.get(series.unit, series.unit)
    return _Number(quantity(series.mean, unit)), _Number(quantity(series.highest, unit))


def _config(round_dir: Path) -> str:
    """The resolved config and where each value is from; what differs from the reference is marked."""
    try:
        plan = jsons.read(round_dir / "plan.json")
    except FormatError as error:
        return f'<p class="bad">{escape(str(error))}</p>'
    values = plan.get("values")
    values = values if isinstance(values, dict) else {}
    told = plan.get("deviations")
    told = told if isinstance(told, list) else []
    deviations = {item.get("key"): item for item in told if isinstance(item, dict)}
    rows, marked = [], []
    for key in sorted(values, key=lambda name: (name not in deviations, name)):
        said = values[key] if isinstance(values[key], dict) else {"value": values[key]}
        reference = repr(deviations[key].get("reference")) if key in deviations else ""
        marked.append(key in deviations)
        rows.append((key, repr(said.get("value")), reference, _place(said), str(said.get("layer") or "")))
    if not rows:
        return ""
    title = f"Config: {count(len(rows), 'value')}, {count(len(deviations), 'deviation')} from the reference"
    return _folded(title, _table(("key", "value", "reference", "from", "layer"), rows, marked))


def _place(said: Mapping[str, Any]) -> str:
    file, line = said.get("file"), said.get("line")
    return f"{file}:{line}" if file and line else str(file or "")


def _environment(outcome: Outcome) -> str:
    if not outcome.environment:
        return ""
    return _folded("Environment", _table((), list(outcome.environment.items())))


def _logs(outcome: Outcome, round_dir: Path, report_dir: Path) -> str:
    if not outcome.logs:
        return ""
    base = Path(os.path.relpath(round_dir, report_dir))
    links = [f'<a href="{escape(quote((base / log).as_posix()))}">{escape(log)}</a>' for log in outcome.logs]
    return f"<p>Logs: {', '.join(links)}</p>"


class _Number(str):
    """A cell that is aligned to the right."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    top = f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(
        f"<tr{' class=' + chr(34) + 'deviates' + chr(34) if mark else ''}>{''.join(map(_cell, row))}</tr>"
        for row, mark in zip(rows, marked or [False] * len(rows), strict=True)
    )
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    kind = ' class="number"' if isinstance(text, _Number) else ""
    return f"<td{kind}>{escape(text)}</td>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _metric(outcomes: Iterable[Outcome]) -> str:
    meant = [outcome for outcome in outcomes if not outcome.throughput_only]
    last = summarize(outcome.quality.last for outcome in meant).median
    if last is None or not math.isfinite(last):
        return _NOTHING
    target = meant[0].target
    got, wanted = compared(last, target.value, target.unit)
    return f"{target.name} {got} ({'<=' if target.direction == 'lower' else '>='} {wanted})"
