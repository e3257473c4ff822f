"""Performance tables in the format of FlagPerf's model READMEs: one row per shape, the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from pytest_flagperf.case import Shape
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir

FILE = "performance.md"
PUBLISHED = Shape.parse_list("1x1,1x8,2x8")
"""The shapes that FlagPerf publishes."""
NONE = "/"
"""FlagPerf's sign for a figure that was not measured."""
_FIGURES = ("precision", "e2e_time", "p_whole", "p_train", "p_core", "acc", "mem", "MFU")
"""The figures of a case; the name of the suite's metric replaces ``acc``."""
_GIB = 2**30
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
    head, *rows = _of_trainings(entries) if first.is_training else _of_measurements(entries)
    yield f"### {heading}"
    yield ""
    yield row(head)
    yield row(["---"] * len(head))
    yield from map(row, rows)
    yield ""
    yield " ".join(_notes(cases))


def _of_trainings(entries: Sequence[_Entry]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, without the MFU if no case has it."""
    end = None if any(case.median("mfu") is not None for _, case in entries) else -1
    precision, *others = figure_names(entries[0][1].first.target.name)
    yield ["configuration", precision, "fix_hp", *others][:end]
    for run, case in entries:
        precision, *others = figures(case)
        yield [_configuration(case.first), precision, _deviations(run, case), *others][:end]


def _of_measurements(entries: Sequence[_Entry]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, with the figures that any case has."""
    every = {figure.name: figure for _, case in entries for figure in case.first.figures}
    shown = [one for one in every.values() if any(case.median(one.name) is not None for _, case in entries)]
    yield ["configuration", *(figure.name for figure in shown), "fix_hp"]
    for run, case in entries:
        medians = [(case.median(figure.name), figure.unit) for figure in shown]
        cells = [NONE if value is None else quantity(value, unit) for value, unit in medians]
        yield [_configuration(case.first), *cells, _deviations(run, case)]


def figure_names(metric: str) -> list[str]:
    """Return the names of ``figures``, including that of the suite's metric."""
    return [metric or name if name == "acc" else name for name in _FIGURES]


def figures(case: CaseResult) -> list[str]:
    """Return the cells of a case in the order of ``figure_names``: the medians over the finished rounds."""
    first = case.first
    return [
        (case.finished or [first])[0].environment.get("precision") or str(first.fingerprint.get("precision") or NONE),
        NONE if first.throughput_only else _number(case.median("e2e_time"), 4),
        *(_number(case.median(name), 4) for name in ("p_whole", "p_train", "p_core")),
        NONE if case.quality is None else quantity(case.quality, first.target.unit).replace(" ", ""),
        _memory(case),
        _mfu(case),
    ]


def _configuration(outcome: Outcome) -> str:
    hosts = "1 host" if outcome.nnodes == 1 else f"{outcome.nnodes} hosts"
    return f"{outcome.hardware} {hosts} x {outcome.nproc} ({outcome.shape})"


def _deviations(run: StoredRun, case: CaseResult) -> str:
    """Return the values that differ from the suite's; the sign for "not measured" if the plan is unreadable."""
    try:
        plan = RoundDir(run.directory / case.first.directory).read_plan()
    except FormatError:
        return NONE
    texts = [f"{item.key}={item.value}" for item in plan.deviations if item.key != "data_dir"]
    texts += [f"own {item.name.partition(' ')[2]}" for item in plan.additions if item.name.startswith("step ")]
    return " ".join(texts) or NONE


def _memory(case: CaseResult) -> str:
    """Return the peak memory of a device and its size; without samples the peak memory of tensors."""
    most, size = case.median("device_memory"), case.median("device_memory_total")
    most = case.median("peak_memory") if most is None else most
    if most is None:
        return NONE
    return f"{most / _GIB:.1f}" + (f"/{size / _GIB:.1f}" if size else "")


def _mfu(case: CaseResult) -> str:
    value = case.median("mfu")
    return NONE if value is None else quantity(value, "share").replace(" ", "")


def _number(value: float | None, digits: int) -> str:
    """Return a number without thousands separators, as in FlagPerf's tables."""
    return NONE if value is None else plain(value, digits).replace(",", "")


def _notes(cases: Sequence[CaseResult]) -> Iterator[str]:
    first = cases[0].first
    if first.is_training:
        yield f"Throughputs in {first.rate_unit} over all cards, e2e_time in s, mem in GiB."
    else:
        yield f"Each figure is of the slowest process, at the {first.scale} scale."
    if first.target.value is not None:
        yield f"Target: {', '.join(targets.texts(first.target))}."
    if any(len(case.finished) > 1 for case in cases):
        yield f"Median of the rounds: {', '.join(f'{len(case.finished)} for {case.first.shape}' for case in cases)}."
    measured = {case.first.shape for case in cases if case.finished}
    missing = [str(shape) for shape in PUBLISHED if shape not in measured]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
    if first.scale != "reference" and first.is_training:
        yield f"At the {first.scale} scale: not comparable with the full-size model."
    if first.synthetic:
        yield "With synthetic data."
    for case in cases:
        if case.vendor_code:
            yield f"{case.first.shape} with {escape(case.vendor_code, quote=False)}."


def row(cells: Sequence[str]) -> str:
    """Return a row of a table; separators, line breaks and HTML in cells are escaped."""
    flat = (escape(" ".join(cell.split()), quote=False).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(flat)} |"
