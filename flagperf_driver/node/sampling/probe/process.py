"""The process that runs a vendor's probe.py, as its caller sees it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Mapping

from flagperf_driver.node import run_tool
from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv
from flagperf_driver.node.sampling.probe.tool import ProbeError

_MODULE = "flagperf_driver.node.sampling.probe.server"
_LOAD_S = 30.0
_ANSWER_S = 10.0  # in addition to the tool's own deadline
_END_S = 3.0


class ToolProcess:
    """The process of a probe, from its start to its end; what the probe starts ends with it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except Exception:
            self.close()
            raise

    def _start(self) -> None:
        if run_tool.is_ending():
            raise run_tool.SamplerEnding("the sampler is ending")
        run_tool.on_end(self._end)
        self._server = subprocess.Popen(
            [*module_argv(sys.executable, str(CODE_ROOT), _MODULE), self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # it lives until it has ended all that the probe has started
        )
        facts = self._receive(_LOAD_S)
        self.command = [str(word) for word in facts["command"]]
        self.every_s, self.deadline_s = float(facts["every_s"]), float(facts["deadline_s"])
        self.environment: Mapping[str, str] = facts["environment"]
        self.not_confined: str | None = facts["not_confined"]

    def read(self) -> list[Mapping[str, Any]]:
        """Run the command and return the readings; raise CommandError or ProbeError on failure."""
        if self._server is None:
            self._start()
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(OSError):  # it has ended: no answer will come
            self._server.stdin.write(b"\n")
        return _checked(self._receive(self.deadline_s + _ANSWER_S).get("readings"))

    def close(self) -> None:
        """End the probe and all that it has started."""
        run_tool.forget(self._end)
        server = self._end()
        self._server = None
        if server is not None and server.stdout is not None:
            server.stdout.close()

    def _end(self) -> subprocess.Popen[bytes] | None:
        """End the processes; the thread that reads an answer then finds the end of it."""
        server = self._server
        if server is not None and server.stdin is not None:
            with suppress(OSError):
                server.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                server.wait(_END_S)
        return server

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer; raise ProbeError for an error or for no answer."""
        line = self._line(time.monotonic() + timeout_s)
        if run_tool.is_ending():
            raise run_tool.SamplerEnding("the sampler is ending")
        if not line:
            server = self._end()
            self.close()
            code = None if server is None or line is None else server.returncode
            reason = f"did not answer within {timeout_s:g} s" if code is None else f"ended with exit code {code}"
            raise ProbeError(f"the probe's process {reason}")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ProbeError("the probe's process gave an invalid answer")
        if "error" in answer:
            raise ProbeError(str(answer["error"]))
        return answer

    def _line(self, end: float) -> bytes | None:
        """Return the next line, empty if the process has ended; None if none came in time."""
        assert self._server is not None
        assert self._server.stdout is not None
        line = b""
        pipe = self._server.stdout.fileno()
        while not line.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(pipe, 1 << 16)
            if not part:
                return b""
            line += part
        return line


def _checked(readings: Any) -> list[Mapping[str, Any]]:
    if not isinstance(readings, list) or not all(isinstance(reading, dict) for reading in readings):
        raise ProbeError("parse() must return a list of dictionaries, one for each device")
    numbers = [reading.get("device", position) for position, reading in enumerate(readings)]
    wrong = [number for number in numbers if type(number) is not int or numbers.count(number) > 1]
    if wrong:
        raise ProbeError(f"parse() returned the device number {wrong[0]!r}; expected a unique integer")
    return readings
