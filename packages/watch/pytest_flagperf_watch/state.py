"""The state of a run, from the entries of its live record."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flagperf_driver.heartbeat import PHASES
from flagperf_driver.node.logs.ranklog import Curve
from flagperf_driver.node.logs.whole_numbers import LARGEST_COUNT
from flagperf_driver.perflog import number
from pytest_flagperf.case import folder as folder_of
from pytest_flagperf.printable import printable
from pytest_flagperf.progress import RoundProgress
from pytest_flagperf.report.terminal.progress import round_title
from pytest_flagperf.stored import layout, live_record, objects

_MOST_NOTES = 50
_LARGEST = 1e100
WAITING, RUNNING, PASSED, FAILED, EXPECTED = "waiting", "running", "passed", "failed", "failed as expected"
UNFINISHED = "not finished"
_INTERRUPTED_ROUND, _INTERRUPTED_RUN = "interrupted", 2
_LONGEST_NAME, _LONGEST_TEXT = 100, 500


@dataclass
class RankState:
    """The last heartbeat of a rank."""

    step: int
    phase: str
    idle_s: float


@dataclass
class HostState:
    """The ranks of a host, its load and its devices."""

    ranks: dict[int, RankState] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    devices: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass
class LiveRound:
    """A round that runs or has ended."""

    folder: str
    figures: RoundProgress
    began: float
    loss: Curve[float] = field(default_factory=Curve)
    throughput: Curve[float] = field(default_factory=Curve)
    metric: Curve[float] = field(default_factory=Curve)
    power: Curve[float] = field(default_factory=Curve)
    hosts: dict[str, HostState] = field(default_factory=dict)
    last: float = 0.0

    @property
    def name(self) -> str:
        """The title of the round."""
        return round_title(self.figures.case, self.folder)


@dataclass
class CaseState:
    """A case of the run."""

    case: str
    rounds: int
    done: int = 0
    running: LiveRound | None = None
    last: RoundProgress | None = None
    tests: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def state(self) -> str:
        if FAILED in self.tests.values():
            return FAILED
        if self.running is not None:
            return RUNNING
        if self.is_interrupted:
            return UNFINISHED
        if EXPECTED in self.tests.values():
            return EXPECTED
        return PASSED if self.tests else FAILED if self.failures else WAITING


@dataclass
class ProcessState:
    """A process of the run: pytest itself, or a worker of pytest-xdist."""

    name: str
    process: Mapping[str, Any] = field(default_factory=dict)
    began: float = 0.0
    last: float = 0.0
    phase: str = ""
    phase_since: float = 0.0
    round: LiveRound | None = None
    has_ended: bool = False
    exit: int | None = None


class RunState:
    """All cases and processes of a run; ``take`` adds an entry of a process's live file."""

    def __init__(self) -> None:
        self.cases: dict[str, CaseState] = {}
        self.processes: dict[str, ProcessState] = {}
        self.notes: deque[tuple[float, str]] = deque(maxlen=_MOST_NOTES)

    def take(self, name: str, entry: Mapping[str, Any]) -> None:
        process = self.processes.setdefault(name, ProcessState(name))
        process.last = entry["t"]
        take = _TAKE.get(entry["kind"])
        if take is not None:
            take(self, process, entry)

    @property
    def main(self) -> ProcessState | None:
        """Pytest's own process."""
        return self.processes.get(layout.CONTROLLER)

    @property
    def running(self) -> Sequence[LiveRound]:
        """The rounds that run now, in the order of their beginning."""
        rounds = [process.round for process in self.processes.values() if process.round is not None]
        return sorted(rounds, key=lambda each: each.began)

    def count(self, state: str) -> int:
        return sum(case.state == state for case in self.cases.values())

    def _begin(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        """Take a new process of the run, which may continue a run whose process was killed."""
        self._end_round_of(process)
        new = ProcessState(process.name, entry, entry["t"], entry["t"])
        self.processes[process.name] = new
        if process.name == layout.CONTROLLER:
            for case in self.cases.values():
                case.tests.clear()
                case.failures.clear()
                case.is_interrupted = False

    def _cases(self, _: ProcessState, entry: Mapping[str, Any]) -> None:
        for item in objects(entry.get("cases")):
            case = _text(item, "case")
            if case:
                self.cases.setdefault(case, CaseState(case, _count(item.get("rounds")) or 1))

    def _round(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        self._end_round_of(process)
        folder = _text(entry, "folder")
        number = layout.round_number(folder.rpartition("/")[2])
        process.round = LiveRound(
            folder, RoundProgress(_text(entry, "case"), number or 1, phase=""), entry["t"], last=entry["t"]
        )
        process.phase = ""
        case = self._case_of(folder, process.round.figures.case)
        case.running = process.round

    def _round_end(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        if process.round is None:
            return
        case = self._case_of(process.round.folder, process.round.figures.case)
        if layout.round_number(process.round.folder.rpartition("/")[2]) is not None:
            case.done, case.last = case.done + 1, process.round.figures
        case.is_interrupted |= _text(entry, "state") == _INTERRUPTED_ROUND
        sentence = _text(entry, "sentence", _LONGEST_TEXT)
        if sentence:
            case.failures.append(sentence)
            self.notes.append((entry["t"], f"{process.round.name} {_text(entry, 'state')}: {sentence}"))
        self._end_round_of(process)

    def _end_round_of(self, process: ProcessState) -> None:
        if process.round is not None:
            self._case_of(process.round.folder, process.round.figures.case).running = None
        process.round, process.phase = None, ""

    def _case_of(self, folder: str, case: str) -> CaseState:
        """Return the case of a round's folder; a short round of one card belongs to the case of its folder."""
        own = folder.partition("/")[0]
        for state in self.cases.values():
            if folder_of(state.case) == own:
                return state
        return self.cases.setdefault(case, CaseState(case, 1))

    def _phase(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        text = _text(entry, "text", _LONGEST_TEXT)
        if text and not process.phase:
            process.phase_since = entry["t"]
        process.phase = text

    def _progress(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        if process.round is None:
            return
        here, process.round.last = process.round, entry["t"]
        was = here.figures
        numbers = {
            name: number(entry[name])
            for name in ("loss", "metric", "target", "throughput", "time_left_s", "elapsed_s")
            if entry.get(name) is not None
        }
        now = RoundProgress(
            was.case,
            was.round,
            phase=_text(entry, "phase"),
            step=_count(entry.get("step")),
            metric_name=_text(entry, "metric_name"),
            sample_unit=_text(entry, "sample_unit") or RoundProgress.sample_unit,
            **numbers,
        )
        if now.step != was.step:
            _add(here.loss, now.loss)
            _add(here.throughput, now.throughput)
        if now.metric != was.metric:
            _add(here.metric, now.metric)
        here.figures = now

    def _host(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        name = _text(entry, "host")
        if process.round is None or not name:
            return
        host = process.round.hosts.setdefault(name, HostState())
        for rank, beat in _by_number(entry.get("ranks")).items():
            phase = _count(beat.get("phase"))
            idle_s = number(beat.get("idle_s", 0.0))
            host.ranks[rank] = RankState(
                _count(beat.get("step")), PHASES[phase] if phase < len(PHASES) else f"phase {phase}", idle_s
            )
        if isinstance(entry.get("slow"), Mapping):
            slow = {_count_text(rank): number(ratio) for rank, ratio in entry["slow"].items()}
            host.slow = {rank: ratio for rank, ratio in slow.items() if rank is not None}
        samples = entry.get("samples")
        if isinstance(samples, Mapping):
            host.load = _numbers(samples.get("host"))
            host.devices = {index: _numbers(values) for index, values in _by_number(samples.get("devices")).items()}
            watts = [device["power"] for each in process.round.hosts.values() for device in each.devices.values()
                     if "power" in device]  # fmt: skip
            _add(process.round.power, sum(watts) if watts else None)

    def _note(self, _: ProcessState, entry: Mapping[str, Any]) -> None:
        self.notes.append((entry["t"], _text(entry, "text", _LONGEST_TEXT)))

    def _test(self, _: ProcessState, entry: Mapping[str, Any]) -> None:
        name = _text(entry, "case")
        case = self.cases.setdefault(name, CaseState(name, 1))
        outcome = _text(entry, "outcome")
        case.tests[_text(entry, "test")] = EXPECTED if outcome == "expected" else outcome
        if outcome == FAILED:
            sentences = entry.get("sentences")
            texts = [text for text in sentences if isinstance(text, str)] if isinstance(sentences, list) else []
            for text in texts or [f"{_text(entry, 'test')} failed"]:
                if text not in case.failures:
                    case.failures.append(_shown(text))
                    self.notes.append((entry["t"], f"{name}: {_shown(text)}"))

    def _end(self, process: ProcessState, entry: Mapping[str, Any]) -> None:
        self._end_round_of(process)
        process.has_ended = True
        process.exit = entry["exit"] if type(entry.get("exit")) is int else None
        if process.name == layout.CONTROLLER and process.exit == _INTERRUPTED_RUN:
            for case in self.cases.values():
                case.is_interrupted |= 0 < case.done < case.rounds


_TAKE = {
    live_record.PROCESS: RunState._begin,
    live_record.CASES: RunState._cases,
    live_record.ROUND: RunState._round,
    live_record.ROUND_END: RunState._round_end,
    live_record.PHASE: RunState._phase,
    live_record.PROGRESS: RunState._progress,
    live_record.HOST: RunState._host,
    live_record.NOTE: RunState._note,
    live_record.TEST: RunState._test,
    live_record.END: RunState._end,
}


def _add(curve: Curve[float], value: float | None) -> None:
    if value is not None and abs(value) < _LARGEST:  # not NaN
        curve.add(lambda: value)


# -- values of entries, which may be anything --------------------------------------------------------------------


def _text(entry: Mapping[str, Any], key: str, longest: int = _LONGEST_NAME) -> str:
    value = entry.get(key)
    return _shown(value, longest) if isinstance(value, str) else ""


def _shown(text: str, longest: int = _LONGEST_TEXT) -> str:
    return printable(text[:longest]).replace("\n", " ")


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else 0


def _count_text(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10 else None


def _numbers(values: object) -> dict[str, float]:
    items = values.items() if isinstance(values, Mapping) else ()
    found = {str(name): number(value) for name, value in items}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _by_number(values: object) -> dict[int, Mapping[str, Any]]:
    """Return the objects under keys that are numbers of ranks or devices."""
    items = values.items() if isinstance(values, Mapping) else ()
    found = {_count_text(key): value for key, value in items if isinstance(value, Mapping)}
    return {key: value for key, value in found.items() if key is not None}
