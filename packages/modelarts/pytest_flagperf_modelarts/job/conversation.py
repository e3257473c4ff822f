"""The agent of this instance, which gets its orders from this process instead of a controller."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any, Callable, Iterator, Mapping

from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv

Message = Mapping[str, Any]

_MODULE = "flagperf_driver.node.agent.main"


class AgentFailed(RuntimeError):
    """The agent ended without an answer, or refused an order."""


class Conversation:
    """The agent's process, and the messages that it sends without being asked."""

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        argv = module_argv(sys.executable, str(CODE_ROOT), _MODULE)
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._on_message = on_message
        self._lines: list[bytes] = []
        self._is_writing = False
        self.over = False

    def send(self, message: Message) -> None:
        """Send an order; in a signal handler that interrupts this method, the order follows that being written."""
        self._lines.append(json.dumps(message).encode() + b"\n")
        while self._lines and not self._is_writing:
            self._is_writing = True
            try:
                while self._lines:
                    self._write(self._lines.pop(0))
            finally:
                self._is_writing = False

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            raise AgentFailed(f"the agent does not read its orders: {error}") from error

    def stop(self, reason: str) -> None:
        """End the ranks; may be called by a signal handler."""
        with suppress(AgentFailed):
            self.send({"op": "stop", "reason": reason})

    def ask(self, message: Message, *answers: str) -> dict[str, Any]:
        """Send an order and return its answer; AgentFailed if the agent refuses or ends."""
        self.send(message)
        for received in self._messages():
            if received["type"] in answers:
                return received
            if received["type"] == "error":
                raise AgentFailed(str(received["sentence"]))
        raise AgentFailed(
            f"the agent ended with exit code {self._process.wait()} before it sent {' or '.join(answers)}"
        )

    def follow(self) -> None:
        """Pass the agent's messages on until its ranks have ended and its devices are free."""
        for _ in self._messages():
            if self.over:
                return
        raise AgentFailed(f"the agent ended with exit code {self._process.wait()} before its ranks were over")

    def collect(self, archive: IO[bytes]) -> dict[str, Any]:
        """Write the packed logs; return their size, checksum and number of files."""
        chunk = self.ask({"op": "collect", "offset": 0}, "chunk")
        first = {name: chunk[name] for name in ("size", "sha256", "files")}
        while True:
            archive.write(base64.b64decode(chunk["data"]))
            if archive.tell() >= first["size"]:
                return first
            chunk = self.ask({"op": "collect", "offset": archive.tell()}, "chunk")

    def close(self) -> None:
        """End the agent; its files remain."""
        try:
            self.send({"op": "leave", "remove": False})
            self._process.wait(20)
        except (AgentFailed, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _messages(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "seq" in message:
                self._on_message(message)
                self.over = self.over or message["type"] == "over"
            yield message
