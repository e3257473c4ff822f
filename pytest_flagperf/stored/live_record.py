"""The live record of a run: what each of its processes does at the moment, as JSON lines for ``flagperf watch``.

pytest, and each worker of pytest-xdist, appends to its own file. A line is written whole, so a killed process loses at
most its last line. Values that change often are written at a limited rate, which keeps the files small: a round
of an hour writes about 0.3 MB, and a day at most 3 MB for each 8 devices.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flagperf_driver.node.processes import process_stat
from pytest_flagperf.progress import RoundProgress, Subscriber

from . import layout
from .files import FormatError, check_schema, to_json_types

SCHEMA = 1
BEAT_S = 5.0
"""A process without news touches its file at this interval."""
SILENT_S = 60.0
"""After this time without a sign of life, a process on another machine is considered dead."""
PROCESS, CASES, ROUND, ROUND_END, PHASE, PROGRESS, HOST, NOTE, TEST, END = (
    "process", "cases", "round", "round_end", "phase", "progress", "host", "note", "test", "end",
)  # fmt: skip
"""The kinds of lines."""

_SHORTEST_S, _LONGEST_S = 1.0, 10.0
_LINES_AT_FULL_RATE = 600
_LONGEST_LINE = 1 << 18
_LONGEST_TEXT = 2000
_MOST_SENTENCES = 3
_ENDED = -1
"""The start of a process that has ended and whose parent has not asked for its exit code yet."""


class LiveRecord:
    """Appends to the live file of this process; a path of None writes nothing, and so does a full disk."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._file: int | None = None
        self._is_cut = False
        self._written_at = 0.0
        self._since: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._waiting: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._has_phase = False

    @property
    def subscriber(self) -> Subscriber:
        """What writes the notes of the run."""
        return {
            "cases": lambda cases: self.write(CASES, cases=cases),
            "round": self._begin_round,
            "progress": self._progress,
            "host": lambda host, values: self.write_latest(
                f"host {host} {' '.join(values)}", HOST, host=host, **values
            ),
            "round_end": lambda state, sentence="": self.write(ROUND_END, state=state, sentence=_shortened(sentence)),
            "line": lambda text: self.write(NOTE, text=_shortened(text)),
            "phase": lambda text, **_: self._phase(text, self.write),
            "activity": lambda text: self._phase(text, partial(self.write_latest, "phase")),
            "phase_end": self._end_phase,
            "test": self._test,
            "end": lambda exit_status: self.write(END, exit=exit_status),
            "tick": self.beat,
        }

    def _begin_round(self, case: str, folder: str) -> None:
        with self._lock:  # a new round is written at the full rate again
            self._since.clear()
            self._due.clear()
        self.write(ROUND, case=case, folder=folder)

    def _progress(self, progress: RoundProgress) -> None:
        values = {name: value for name, value in asdict(progress).items() if value is not None}
        del values["case"], values["round"]  # the line of the round has them
        self.write_latest("progress", PROGRESS, **values)

    def _phase(self, text: str, write: Callable[..., None]) -> None:
        self._has_phase = True
        write(PHASE, text=_shortened(text))

    def _end_phase(self) -> None:
        if self._has_phase:
            self._has_phase = False
            self.write_latest("phase", PHASE, text="")

    def _test(self, sentences: Sequence[str], **values: str) -> None:
        self.write(TEST, **values, sentences=[_shortened(sentence) for sentence in sentences[:_MOST_SENTENCES]])

    def write(self, kind: str, **values: Any) -> None:
        """Append a line at once, after the values that wait for their turn."""
        if self._path is not None:
            with self._lock:
                self._write_waiting(self._clock(), everything=True)
                self._append(kind, values)

    def write_latest(self, key: str, kind: str, **values: Any) -> None:
        """Append a line at a limited rate; values that come earlier replace those that still wait under this key."""
        if self._path is None:
            return
        with self._lock:
            self._waiting[key] = kind, values
            self._write_if_due(key, self._clock())

    def beat(self) -> None:
        """Write what is due, or else give a sign of life; called about once a second."""
        if self._path is None:
            return
        with self._lock:
            now = self._clock()
            self._write_waiting(now)
            if now - self._written_at >= BEAT_S and self._file is not None:
                self._written_at = now
                with suppress(OSError):
                    os.utime(self._file)

    def close(self) -> None:
        with self._lock:
            self._write_waiting(self._clock(), everything=True)
            if self._file is not None:
                os.close(self._file)
            self._file = self._path = None

    def _write_waiting(self, now: float, *, everything: bool = False) -> None:
        for key in list(self._waiting):
            self._write_if_due(key, now, anyway=everything)

    def _write_if_due(self, key: str, now: float, *, anyway: bool = False) -> None:
        if not anyway and now < self._due.get(key, 0.0):
            return
        kind, values = self._waiting.pop(key)
        began = self._since.setdefault(key, now)
        self._due[key] = now + min(max(_SHORTEST_S, (now - began) / _LINES_AT_FULL_RATE), _LONGEST_S)
        self._append(kind, values)

    def _append(self, kind: str, values: Mapping[str, Any]) -> None:
        now = self._clock()
        if self._file is None:
            self._append_line({"t": round(now, 1), "kind": PROCESS, "schema": SCHEMA, **this_process()})
        self._append_line({"t": round(now, 1), "kind": kind, **values})
        self._written_at = now

    def _append_line(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(to_json_types(values), allow_nan=False)
        data = (b"\n" if self._is_cut else b"") + text.encode("ascii") + b"\n"
        # The record must never fail a round: lines that cannot be written are left out.
        with suppress(OSError):
            if self._file is None:
                data = self._open() + data
            assert self._file is not None
            self._is_cut = os.write(self._file, data) < len(data)

    def _open(self) -> bytes:
        """Open the file; return a line feed if an earlier process of a resumed run was killed within a line."""
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        return b"\n" if size and os.pread(self._file, 1, size - 1) != b"\n" else b""


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


# -- the process that writes -----------------------------------------------------------------------------------


def this_process() -> dict[str, Any]:
    """Return what identifies this process on its machine."""
    return {"machine": _machine(), "space": _pid_space(), "pid": os.getpid(), "since": _start(os.getpid())}


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Return whether the process still runs; None if it is on another machine, or in another container."""
    pid, since = process.get("pid"), process.get("since")
    here = process.get("machine") == _machine() and process.get("space") == _pid_space()
    if not here or process.get("space") is None or type(pid) is not int or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process of another user
    now = _start(pid)
    return now != _ENDED and (since is None or now is None or now == since)


def _machine() -> str:
    import socket  # slow to import, and needed once

    return socket.gethostname()


def _pid_space() -> str | None:
    """Return what is the same for all processes that see the same pids; None on systems without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - a link to no file
    except OSError:
        return None


def _start(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None if it cannot be read."""
    stat = process_stat(pid)
    return None if stat is None else _ENDED if stat.state in "ZX" else int(stat.started)


# -- reading ---------------------------------------------------------------------------------------------------


class LiveFile:
    """Follows one live file; ``unreadable`` counts invalid lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the entries that were added; a line without its end waits for the rest."""
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                entry = self._entry(line)
                if entry is not None:
                    yield entry

    @property
    def changed_at(self) -> float:
        """When the process last gave a sign of life, by the clock of the disk."""
        return self.path.stat().st_mtime

    def _entry(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            entry = json.loads(line) if len(line) <= _LONGEST_LINE else None
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str) or type(entry.get("t")) is not float:
            self.unreadable += 1
            return None
        if entry["kind"] == PROCESS:
            check_schema(entry, SCHEMA, str(self.path))
        return entry


def state_of(run_dir: Path) -> tuple[bool, int] | None:
    """Return whether a run still runs, and the number of its cases; None if it has ended or left no record."""
    path = run_dir / layout.LIVE / layout.live_file(layout.CONTROLLER)
    if not path.is_file():
        return None
    file = LiveFile(path)
    last: dict[str, dict[str, Any]] = {}
    for entry in file.new():
        if entry["kind"] == PROCESS:  # a run that was resumed has several
            last.clear()
        last[entry["kind"]] = entry
    if END in last or PROCESS not in last:
        return None
    alive = is_alive(last[PROCESS])
    runs = time.time() - file.changed_at <= SILENT_S if alive is None else alive
    cases = last.get(CASES, {}).get("cases")
    return runs, len(cases) if isinstance(cases, list) else 0


def live_files(run_dir: Path) -> list[Path]:
    """Return the live files of a run, that of pytest first; FormatError if the folder cannot be read."""
    folder = run_dir / layout.LIVE
    if not folder.is_dir():
        return []
    try:
        # Another user may have put anything there: a pipe, which would block, or a name with control characters.
        names = [path for path in folder.iterdir() if layout.is_live_file(path.name) and path.is_file()]
    except OSError as error:
        raise FormatError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(names, key=lambda path: (path.name != layout.live_file(layout.CONTROLLER), path.name))
