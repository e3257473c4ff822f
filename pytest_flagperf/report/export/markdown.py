"""Performance tables in the format of FlagPerf's model READMEs: one row per shape, the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

PUBLISHED = Shape.parse_list("1x1,1x8,2x8")
"""The shapes that FlagPerf publishes."""
NONE = "/"
"""FlagPerf's sign for a figure that was not measured."""
_FIGURES = ("precision", "e2e_time", "p_whole", "p_train", "p_core", "acc", "mem", "MFU")
"""The figures of a case; the name of the suite's metric replaces ``acc``."""
_GIB = 2**30
_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "configuration": "configuration",
        "unit": "Throughputs in {unit} over all cards, e2e_time in s, mem in GiB.",
        "worst": "Each figure is of the slowest process, at the {scale} scale.",
        "rounds": "Median of the rounds: {rounds}.",
        "round": "{number} for {shape}",
        "target": "Target: {target}.",
        "missing": "Not measured: {shapes}.",
        "small": "At the {scale} scale: not comparable with the full-size model.",
        "synthetic": "With synthetic data.",
        "own": "{shape} with {code}.",
        "unverified": "Not listed: {case}: {reason}.",
        "and": ", ",
    },
    "zh": {
        "configuration": "配置",
        "unit": "吞吐量为所有卡之和，单位 {unit}；e2e_time 单位为秒；mem 单位为 GiB。",
        "worst": "各项指标取最慢进程的值，{scale} 规模。",
        "rounds": "多轮取中位数：{rounds}。",
        "round": "{shape} 共 {number} 轮",
        "target": "目标：{target}。",
        "missing": "未测：{shapes}。",
        "small": "{scale} 规模：并非真实模型的数据。",
        "synthetic": "使用合成数据。",
        "own": "{shape} 使用厂商代码：{code}。",
        "unverified": "未列出：{case}：芯片未经验证（{reason}）。",
        "and": "，",
    },
}


_Entry = tuple[StoredRun, CaseResult]


def performance_files(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return the tables of runs in each language, by the name of their file."""
    return {f"performance.{name}.md": "\n".join(performance_tables(runs, name)) + "\n" for name in _WORDS}


def performance_tables(runs: Sequence[StoredRun], language: str = "en") -> list[str]:
    """Return a heading, a table and notes for each model, framework and verified chip, and the other cases."""
    words = _WORDS[language]
    entries = sorted(
        ((run, case) for run in runs for case in run.cases), key=lambda entry: (_group(entry), entry[1].first.shape)
    )
    lines: list[str] = []
    listed = [entry for entry in entries if not marks.unverified_chip(entry[1].outcomes)]
    for _, group in groupby(listed, key=_group):
        lines += [*([""] if lines else []), *_section(list(group), words)]
    for _, case in entries:
        if reason := escape(marks.unverified_chip(case.outcomes), quote=False):
            lines += [*([""] if lines else []), words["unverified"].format(case=case.case, reason=reason)]
    return lines


def _group(entry: _Entry) -> tuple[str, str, str, str, str, bool]:
    first = entry[1].first
    return first.model, first.framework, first.vendor, first.hardware, first.scale, first.synthetic


def _section(entries: Sequence[_Entry], words: Mapping[str, str]) -> Iterator[str]:
    cases = [case for _, case in entries]
    first = cases[0].first
    heading = f"{first.model}-{first.framework}, {first.vendor} {first.hardware}"
    head, *rows = _of_trainings(entries, words) if first.is_training else _of_measurements(entries, words)
    yield f"### {heading}"
    yield ""
    yield row(head)
    yield row(["---"] * len(head))
    yield from map(row, rows)
    yield ""
    yield " ".join(_notes(cases, words))


def _of_trainings(entries: Sequence[_Entry], words: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, without the MFU if no case has it."""
    end = None if any(case.median("mfu") is not None for _, case in entries) else -1
    precision, *others = figure_names(entries[0][1].first.target.name)
    yield [words["configuration"], precision, "fix_hp", *others][:end]
    for run, case in entries:
        precision, *others = figures(case)
        configuration = _configuration(case.first, words is _WORDS["zh"])
        yield [configuration, precision, _deviations(run, case), *others][:end]


def _of_measurements(entries: Sequence[_Entry], words: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, with the figures that any case has."""
    every = {figure.name: figure for _, case in entries for figure in case.first.figures}
    shown = [one for one in every.values() if any(case.median(one.name) is not None for _, case in entries)]
    yield [words["configuration"], *(figure.name for figure in shown), "fix_hp"]
    for run, case in entries:
        medians = [(case.median(figure.name), figure.unit) for figure in shown]
        cells = [NONE if value is None else quantity(value, unit) for value, unit in medians]
        yield [_configuration(case.first, words is _WORDS["zh"]), *cells, _deviations(run, case)]


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


def _configuration(outcome: Outcome, chinese: bool) -> str:
    if chinese:
        hosts = {1: "单机", 2: "两机"}.get(outcome.nnodes, f"{outcome.nnodes}机")
        cards = "单卡" if outcome.nproc == 1 else f"{outcome.nproc}卡"
        return f"{outcome.hardware}{hosts}{cards}（{outcome.shape}）"
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


def _notes(cases: Sequence[CaseResult], words: Mapping[str, str]) -> Iterator[str]:
    first = cases[0].first
    yield words["unit" if first.is_training else "worst"].format(unit=first.rate_unit, scale=first.scale)
    if first.target.value is not None:
        yield words["target"].format(target=words["and"].join(targets.texts(first.target)))
    if any(len(case.finished) > 1 for case in cases):
        rounds = [words["round"].format(shape=case.first.shape, number=len(case.finished)) for case in cases]
        yield words["rounds"].format(rounds=words["and"].join(rounds))
    measured = {case.first.shape for case in cases if case.finished}
    missing = [str(shape) for shape in PUBLISHED if shape not in measured]
    if missing:
        yield words["missing"].format(shapes=words["and"].join(missing))
    if first.scale != "reference" and first.is_training:
        yield words["small"].format(scale=first.scale)
    if first.synthetic:
        yield words["synthetic"]
    for case in cases:
        if case.vendor_code:
            yield words["own"].format(shape=case.first.shape, code=escape(case.vendor_code, quote=False))


def row(cells: Sequence[str]) -> str:
    """Return a row of a table; separators, line breaks and HTML in cells are escaped."""
    flat = (escape(" ".join(cell.split()), quote=False).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(flat)} |"
