"""The two kinds of containers: those of Docker's engine, and those of a program, such as Apptainer, which end with it.

Each operation returns a task, so that the agent never waits: it asks ``ended`` again and again, and then ``result``,
which raises RuntimeError.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any, Callable, Mapping, Protocol, Sequence

from flagperf_driver.node import processes
from flagperf_driver.node.agent import rank_health
from flagperf_driver.node.folder import CONTAINER_LOG, LogFolder
from flagperf_driver.rank_process import inherited

_END_S = 3.0  # maximum time for Docker to notice that a container has ended
_TERM_S = 5.0  # from SIGTERM for a container's program to SIGKILL
_LOG_DIR = "FLAGPERF_LOG_DIR"  # by this variable leftovers of dead agents are found
# The round's own temporary folder is in the container's default place: a folder of the host may be missing there.
_NOT_PASSED = ("TMPDIR",)


class ContainerOperation(Protocol):
    """An operation on a container that takes time."""

    def ended(self) -> bool: ...

    def result(self) -> Any: ...


class Container(Protocol):
    """A container of a round. States are ``{"running": bool or None, "sentence", "last_line"}``."""

    name: str
    limits_memory: bool
    """Whether a memory limit that its processes see is its own, and not the host's."""

    def guard_by(self, reaper: processes.Reaper) -> None:
        """Let the reaper remove it if this process dies."""

    @property
    def gone(self) -> bool:
        """Whether it has certainly ended, although its agent may be connected."""

    def start(self) -> ContainerOperation: ...

    def state(self) -> ContainerOperation: ...

    def end_state(self) -> ContainerOperation:
        """Return the state after its agent has ended, when it should not run any more."""

    def remove(self) -> ContainerOperation: ...

    def abandon(self) -> None:
        """Remove it now, whatever happens."""


def container_of(order: Mapping[str, Any], folder: LogFolder, environ: Mapping[str, str] = os.environ) -> Container:
    """Return the container of a start message, which has a program's ``argv``, or ``socket`` and ``id`` of Docker."""
    if order.get("argv"):
        passed = {name: value for name, value in inherited(environ).items() if not name.startswith(_NOT_PASSED)}
        env = {**passed, **dict(order.get("env") or {}), _LOG_DIR: str(folder.path)}
        return ProgramContainer([str(word) for word in order["argv"]], env, folder)
    return DockerContainer(str(order["socket"]), str(order["id"]))


class DockerContainer:
    """A container that the controller has created. A child process calls Docker."""

    limits_memory = True
    gone = False  # the end of its first process, the agent, ends the connection

    def __init__(self, socket: str, container: str) -> None:
        from flagperf_driver.node.docker_engine import DockerEngine  # only a round in such a container needs it

        self.name = f"container {container[:12]}"
        self._socket, self._id = socket, container
        self._engine = DockerEngine(socket)

    def guard_by(self, reaper: processes.Reaper) -> None:
        reaper.guard_container(self._socket, self._id)

    def start(self) -> ContainerOperation:
        return processes.BackgroundTask(lambda: self._engine.start(self._id))

    def state(self) -> ContainerOperation:
        return processes.BackgroundTask(self._get_state)

    def end_state(self) -> ContainerOperation:
        return processes.BackgroundTask(self._wait_for_end)

    def remove(self) -> ContainerOperation:
        return processes.BackgroundTask(lambda: self._engine.remove(self._id, force=True))

    def abandon(self) -> None:
        self._engine.remove(self._id, force=True)

    def _get_state(self) -> dict[str, Any]:
        state = self._engine.state(self._id)
        lines = [line.strip() for line in self._engine.logs(self._id).splitlines() if line.strip()]
        return _state(state.running, state.sentence, lines)

    def _wait_for_end(self) -> dict[str, Any]:
        deadline = time.monotonic() + _END_S
        while (state := self._get_state())["running"] and time.monotonic() < deadline:
            time.sleep(0.1)
        return state


class ProgramContainer:
    """A container that exists while its program runs, a child of this process: ``apptainer exec``, or ``srun``."""

    limits_memory = False

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: LogFolder) -> None:
        self.name = f"container of {os.path.basename(argv[0])}"  # noqa: PTH119 - a Path would be slower to import
        self._argv = argv
        self._env = env
        self._folder = folder
        self._reaper: processes.Reaper | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._kill_at = 0.0

    def guard_by(self, reaper: processes.Reaper) -> None:
        self._reaper = reaper

    def start(self) -> ContainerOperation:
        return _Task(self._start)

    def _start(self) -> None:
        log = self._folder.path / CONTAINER_LOG
        try:
            self._child = processes.spawn(self._argv, self._env, str(self._folder.path), log)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise RuntimeError(f"{self._argv[0]}: {getattr(error, 'strerror', None) or error}") from error
        assert self._reaper is not None
        self._reaper.guard(self._child.pid)

    def state(self) -> ContainerOperation:
        return _Task(self._get_state)

    def end_state(self) -> ContainerOperation:
        deadline = time.monotonic() + _END_S
        return _Task(self._get_state, lambda: self._ended or time.monotonic() > deadline)

    def remove(self) -> ContainerOperation:
        """End the program: SIGTERM lets it unmount the image, and lets Slurm end a step."""
        if self._child is not None and not self._ended and not self._kill_at:
            self._kill_at = time.monotonic() + _TERM_S
            self._child.send_signal(signal.SIGTERM)
        return _Task(self._reap, self._ended_or_killed)

    def abandon(self) -> None:
        if self._child is not None:
            processes.kill_session(self._child.pid)

    @property
    def gone(self) -> bool:
        return self._child is not None and self._ended

    @property
    def _ended(self) -> bool:
        child = self._child
        return child is None or child.returncode is not None or processes.has_ended(child.pid)

    def _ended_or_killed(self) -> bool:
        if not self._ended and time.monotonic() > self._kill_at:
            self.abandon()
        return self._ended

    def _reap(self) -> None:
        child = self._child
        if child is None or child.returncode is not None:
            return
        processes.kill_session(child.pid)  # what it left, for example the process that mounts the image
        child.wait()
        if self._reaper is not None:
            self._reaper.forget(child.pid)

    def _get_state(self) -> dict[str, Any]:
        lines = [line.strip() for line in rank_health.last_lines(self._folder.path / CONTAINER_LOG) if line.strip()]
        if not self._ended:
            return _state(True, "is running", lines)
        self._reap()
        code = None if self._child is None else self._child.returncode
        how = "has not been started" if code is None else f"ended with exit code {code}"
        if code is not None and (code < 0 or code > 128):
            how = f"was killed by signal {-code if code < 0 else code - 128}"
        return _state(False, how, lines)


def _state(running: bool, sentence: str, lines: Sequence[str]) -> dict[str, Any]:
    last_line = f"; its last line: {lines[-1][:300]}" if lines else ""
    return {"running": running, "sentence": sentence + last_line, "last_line": last_line}


class _Task:
    """A task of this process, done when a condition holds."""

    def __init__(self, call: Callable[[], Any], ready: Callable[[], bool] = lambda: True) -> None:
        self.result, self.ended = call, ready
