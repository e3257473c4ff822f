"""The container of a round's ranks on this host: a program that ends with it, in which a starter starts the ranks.

The program is ``apptainer exec`` or ``srun``, or docker_container.py for a container of Docker's engine. The starter
(starter.py) sees the round's log folder; all that this module and it tell each other are files there.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Sequence

from flagperf_driver.node import processes, silence, temporary
from flagperf_driver.node.agent import rank_health
from flagperf_driver.node.agent.connections import Message
from flagperf_driver.node.agent.starter import ALL, Report
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv
from flagperf_driver.node.folder import CONTAINER_LOG, RANKS, SIGNALS, STARTER, STARTER_BEATS, LogFolder
from flagperf_driver.rank_process import inherited

_CHECK_S = 1.0
_TERM_S = 5.0  # from SIGTERM for a program to SIGKILL: it unmounts the image, or ends a step of Slurm
_DOCKER_TERM_S = 90.0  # deleting a container with many files takes time, and Docker may be restarting
_LOG_DIR = "FLAGPERF_LOG_DIR"  # by this variable leftovers of dead agents are found
# The round's own temporary folder is in the container's default place: a folder of the host may be missing there.
_NOT_PASSED = ("TMPDIR",)
_NOT_FOR_STARTER = ("container", "files", "monitors", "order_secret")  # ranks may read the starter's order


class Container:
    """One round's container, used as the starter of its ranks, from ``start`` until it is over."""

    def __init__(self, order: Message, folder: LogFolder, reaper: processes.Reaper) -> None:
        container = order["container"]
        self.over = False
        self._folder = folder
        self._reaper = reaper
        self._docker: tuple[str, str] | None = None
        if container.get("argv"):
            self._argv = [str(word) for word in container["argv"]]
            passed = {name: value for name, value in inherited(os.environ).items() if not name.startswith(_NOT_PASSED)}
            self._env = {**passed, **dict(container.get("env") or {}), _LOG_DIR: str(folder.path)}
            self._name = f"container of {os.path.basename(self._argv[0])}"  # noqa: PTH119 - a Path is slower to import
        else:
            self._docker = str(container["socket"]), str(container["id"])
            module = "flagperf_driver.node.agent.docker_container"
            self._argv = [*module_argv(sys.executable, str(CODE_ROOT), module), *self._docker]
            self._env = dict(os.environ)
            self._name = f"container {self._docker[1][:12]}"
        self._order = {name: value for name, value in order.items() if name not in _NOT_FOR_STARTER}
        self._child: subprocess.Popen[bytes] | None = None
        self._signals: int | None = None
        self._reports: BinaryIO | None = None
        self._unread = b""
        self._failure: str | None = None
        self._remove_at = math.inf
        self._removing = False
        self._heartbeat = rank_health.RankHeartbeat(folder.path / STARTER_BEATS)
        self._timer = Timer()
        self._timer.every(_CHECK_S, self._check_silence)

    def start(self) -> None:
        """Write the order of the ranks for the starter, and start the container."""
        if self._docker is not None:
            self._reaper.guard_container(*self._docker)
        try:
            self._make_files()
            self._child = processes.spawn(self._argv, self._env, str(self._folder.path), self._log)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._fail(f"could not be started: {processes.spawn_problem(error, self._argv[0])}")
            return
        self._reaper.guard(self._child.pid)
        self._folder.note(f"{self._name}: pid {self._child.pid}")

    def reports(self) -> Sequence[Report]:
        """Return what the starter has reported since the last call; a ``container`` report ends the ranks."""
        self._timer.run_due_calls()
        if time.monotonic() >= self._remove_at:
            self._remove()
        child = self._child
        # Before its last reports are read.
        has_ended = not self.over and (child is None or processes.has_ended(child.pid))
        reports = [report for report in self._read_reports() if self._takes(report)]
        if has_ended:
            self._reap()
            self.over = True
            self._folder.note(f"{self._name} removed")
        if self._failure is not None:
            reports.append({"type": "container", "sentence": self._failure + self._last_line()})
            self._failure = None
        return reports

    def signal(self, number: int, rank: int = ALL) -> None:
        """Let the starter signal the ranks."""
        if self._signals is not None:
            with suppress(OSError):  # if it does not read, it is stuck
                os.write(self._signals, b"%d %d\n" % (number, rank))

    def finish(self, within_s: float) -> None:
        """Remove the container, if it does not end by itself within these seconds."""
        self._remove_at = min(self._remove_at, time.monotonic() + within_s)

    def abandon(self) -> None:
        """Remove it now, whatever happened to this process."""
        child = self._child
        if child is not None and child.returncode is None:
            processes.kill_session(child.pid)
        if self._docker is not None and (child is None or child.returncode != 0):
            processes.remove_container(*self._docker)

    def close(self) -> None:
        """Remove what the starter of a killed container may have left, where the container shares the host's /tmp."""
        if self._signals is not None:  # a starter that still runs reads its end
            os.close(self._signals)
            self._signals = None
        list(temporary.remove_leftovers(temporary.SHORT))

    # -- files in the round's folder -----------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self._folder.path / CONTAINER_LOG

    def _make_files(self) -> None:
        """Make the files that the starter reads and writes. Only the user reads the order: it has all variables."""
        for name in (RANKS, SIGNALS, STARTER, STARTER_BEATS):
            with suppress(FileNotFoundError):
                (self._folder.path / name).unlink()
        with open(os.open(RANKS, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({**self._order, "limits_memory": self._docker is not None}, file)
        os.mkfifo(SIGNALS, 0o600)
        # This process also reads, so that it may write before the starter reads. Its end is the end of the pipe.
        self._signals = os.open(SIGNALS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._reports = open(STARTER, "w+b", buffering=0)  # noqa: SIM115, PTH123

    def _read_reports(self) -> Sequence[Report]:
        if self._reports is None:
            return []
        *lines, self._unread = (self._unread + self._reports.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def _takes(self, report: Report) -> bool:
        """Act on a report of the container itself; return True for one about the ranks."""
        if report["type"] == "over":
            self._remove()
        elif report["type"] == "container":
            self._fail(str(report["sentence"]))
        else:
            return True
        return False

    # -- the container's end -------------------------------------------------------------------------------

    def _fail(self, sentence: str) -> None:
        if not self._removing:
            self._failure = sentence
            self._remove()

    def _check_silence(self, passed_s: float) -> None:
        self._heartbeat.read(passed_s)
        if self._heartbeat.beat is None:
            if self._heartbeat.idle_s >= silence.STARTER_S:
                self._fail(f"is running, but its starter did not begin within {silence.STARTER_S:g} s")
        elif self._heartbeat.idle_s >= silence.CONTAINER_S:
            silent = f"has shown no sign of life for {silence.CONTAINER_S:g} s"
            self._fail(f"{silent}: it is paused, or stuck in the kernel")

    def _remove(self) -> None:
        if self._removing:
            return
        self._removing = True
        if self._child is not None and self._child.returncode is None:
            os.kill(self._child.pid, signal.SIGTERM)
            self._timer.after(_TERM_S if self._docker is None else _DOCKER_TERM_S, self._kill)

    def _kill(self) -> None:
        if self._child is not None and not self.over:
            processes.kill_session(self._child.pid)

    def _reap(self) -> None:
        child = self._child
        if child is None:
            return
        processes.kill_session(child.pid)  # what it left, for example the process that mounts the image
        code = child.wait()
        self._reaper.forget(child.pid)
        is_killed = code < 0 or code > 128
        killed = f"was killed by signal {-code if code < 0 else code - 128}"
        self._fail(killed if is_killed else f"ended with exit code {code}")

    def _last_line(self) -> str:
        lines = [line.strip() for line in rank_health.last_lines(self._log) if line.strip()]
        return f"; its last line: {lines[-1][:300]}" if lines else ""
