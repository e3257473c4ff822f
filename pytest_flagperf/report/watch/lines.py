"""A followed run as plain lines, without a terminal: one for each phase, and one a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_flagperf.report.terminal.plain import PlainLines
from pytest_flagperf.report.terminal.progress import in_round
from pytest_flagperf.stored import live_record

from .follow import FollowedRun
from .state import ProcessState, state_text


class RunLines:
    """Writes the lines of a run: ``begin`` what runs now, ``take`` what happens then."""

    def __init__(
        self, run: FollowedRun, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._write, self._clock = run, write, clock
        self._lines: dict[str, PlainLines] = {}
        self._rounds: dict[str, str] = {}
        self._remarks: set[str] = set()
        self._last_note: object = None

    def begin(self) -> None:
        """Write the state of the run, and what each of its processes does."""
        cases = list(self._run.state.cases.values())
        states = dict.fromkeys(case.state for case in cases)
        counts = ", ".join(f"{self._run.state.count(state)} {state}" for state in states)
        self._write(f"{self._run.path}: {self._run.status().text}; {counts or 'no cases yet'}")
        if self._run.state.notes:
            self._last_note = self._run.state.notes[-1]
        for process in self._run.state.processes.values():
            if process.has_ended:
                continue
            if process.round is not None:
                self._rounds[process.name] = process.round.name
            lines = self._of(process.name)
            if process.round is not None and process.round.figures.step:
                lines.progress(process.round.figures)
            elif process.phase:
                lines.phase(in_round(_title(process), process.phase))

    def take(self, name: str, entry: Mapping[str, Any]) -> None:
        """Write what a new entry reports, which the state has taken already."""
        process, lines, kind = self._run.state.processes[name], self._of(name), entry["kind"]
        if kind == live_record.ROUND and process.round is not None:
            self._rounds[name] = process.round.name
            lines.phase(f"{process.round.name}  starting")
        elif kind == live_record.PHASE:
            (lines.phase if entry.get("begins") is True else lines.activity)(in_round(_title(process), process.phase))
        elif kind == live_record.PROGRESS and process.round is not None:
            lines.progress(process.round.figures)
        elif kind == live_record.ROUND_END and name in self._rounds:
            lines.end_round(self._rounds.pop(name), state_text(entry))
        self._write_new_notes()

    def tick(self) -> None:
        """Write the lines of the minute, and remarks on the record; called about once a second."""
        for lines in self._lines.values():
            lines.tick()
        for remark in self._run.notes():
            if remark not in self._remarks:
                self._remarks.add(remark)
                self._write(remark)

    def _write_new_notes(self) -> None:
        new = []
        for note in reversed(self._run.state.notes):
            if note is self._last_note:
                break
            new.append(note[1])
        if new:
            self._last_note = self._run.state.notes[-1]
        for text in reversed(new):
            self._write(text)

    def _of(self, name: str) -> PlainLines:
        if name not in self._lines:
            several = len(self._run.state.processes) > 1
            prefix = f"[{name}] " if several else ""
            self._lines[name] = PlainLines(lambda text: self._write(prefix + text), self._clock)
        return self._lines[name]


def _title(process: ProcessState) -> str:
    return "" if process.round is None else process.round.name
