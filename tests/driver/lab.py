"""An agent with tiny ranks that need nothing but the standard library."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.processes import running

REPO = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0
Message = dict[str, Any]

BEATING = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    from flagperf_driver import events, heartbeat
    from flagperf_driver.perflog import PerfLog

    rank = int(os.environ["RANK"])
    log = PerfLog(rank)
    heart = heartbeat.Heartbeat(Path("rank%d.progress" % rank))

    def train(first, last):
        for step in range(first, last):
            heart.beat(step, heartbeat.TRAIN)
            time.sleep(0.02)
"""


class Caller:
    """A controller that attaches to an agent that runs already."""

    def __init__(self, log_dir: Path, after: int = 0, first: bytes | None = None) -> None:
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        # By way of the folder's descriptor: the path itself may be too long for a socket's.
        folder = os.open(log_dir, os.O_RDONLY)
        self._socket.connect(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(first or json.dumps({"op": "attach", "after": after}).encode() + b"\n")

    def send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def next(self) -> Message | None:
        """What the agent says next; None when it hung up."""
        line = self._lines.readline()
        if not line:
            return None
        self.messages.append(json.loads(line))
        return self.messages[-1]

    def wait_for(self, kind: str) -> Message:
        while (message := self.next()) is not None:
            if message["type"] == kind:
                return message
        raise AssertionError(f"the agent hung up before {kind}: {self.messages}")

    def leave(self, remove: bool = False) -> None:
        self.send({"op": "leave", "remove": remove})
        self.wait_for("end")
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Lab:
    """One agent, its ranks' programs, and all that it said."""

    def __init__(self, folder: Path, python: str = sys.executable, patch: str = "pass") -> None:
        main = f"{patch}; import sys; from flagperf_driver.node.agent import main; sys.exit(main.main([]))"
        self.folder = folder
        self.log_dir = folder / "logs"
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.python = python
        self.env = {**os.environ, "PYTHONPATH": str(REPO), "FLAGPERF_LAB": self.mark, "PYTHONUNBUFFERED": "1"}
        self.messages: list[Message] = []
        self.listening = threading.Event()
        self.listening.set()
        self.started = False
        self.lost = False
        self.deaf = False
        self._arrived: queue.Queue[Message | None] = queue.Queue()
        folder.mkdir(exist_ok=True)
        with (folder / "complaint").open("wb") as complaint:
            self.agent = subprocess.Popen(
                [python, "-c", main],
                env=self.env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaint,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def hello(self, **settings: object) -> Message:
        """Begin; with a controller that may be lost for no time at all."""
        self.send({"op": "hello", "log_dir": str(self.log_dir), "name": "lab", "lease_s": 0, **settings})
        return self.wait_for("hello")

    def start(self, *programs: str, **settings: object) -> None:
        """Rank i runs ``programs[i]`` after ``BEATING``."""
        if not self.of("hello"):
            self.hello()
        ranks = [self.rank(number, program) for number, program in enumerate(programs)]
        self.send({**self.order(ranks), **settings})

    def rank(self, number: int, program: str) -> Mapping[str, Any]:
        path = self.folder / f"rank{number}.py"
        path.write_text(textwrap.dedent(BEATING) + textwrap.dedent(program))
        return {
            "rank": number,
            "local_rank": number,
            "argv": [self.python, str(path)],
            "env": {"RANK": str(number)},
            "cwd": str(self.log_dir),
        }

    def order(self, ranks: Sequence[Mapping[str, Any]]) -> Message:
        return {
            "op": "start",
            "ranks": ranks,
            "init_timeout_s": 20,
            "hang_timeout_s": 20,
            "round_timeout_s": 25,
            "grace_s": 1,
        }

    def send(self, message: Mapping[str, Any]) -> None:
        self.started = self.started or message.get("op") == "start"
        assert self.agent.stdin is not None
        self.agent.stdin.write(json.dumps(message).encode() + b"\n")
        self.agent.stdin.flush()

    def vanish(self) -> None:
        """Be gone like a controller that was killed: nobody speaks and nobody reads."""
        self.deaf = True
        self.hang_up()

    def hang_up(self) -> None:
        self.lost = True
        assert self.agent.stdin is not None
        self.agent.stdin.close()

    def wait_for(self, kind: str, **fields: object) -> Message:
        """The first message of this kind with these fields, that came or is to come."""
        for message in self.messages:
            if message["type"] == kind and fields.items() <= message.items():
                return message
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = self.next()
            if message["type"] == kind and fields.items() <= message.items():
                return message
        raise AssertionError(f"no {kind} {fields}: {self.messages}")

    def wait_for_line(self, rank: int, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.log(rank):
            assert time.monotonic() < deadline, f"rank {rank} never said {text!r}: {self.log(rank)}"
            time.sleep(0.02)

    def over(self) -> list[Message]:
        """Everything the agent said until all its ranks had ended."""
        self.wait_for("over")
        return self.messages

    def end(self) -> list[Message]:
        """Everything the agent said, when it has ended as it should: exit code 0, no process left."""
        with suppress(OSError, ValueError):  # it may have ended by itself
            if self.started and not self.lost:
                self.over()
            self.send({"op": "leave", "remove": False})
        while (arrived := self._arrived.get(timeout=DEADLINE_S)) is not None:
            self.messages.append(arrived)
        assert self.agent.wait(DEADLINE_S) == 0
        assert self.messages[-1] == {"type": "end"}
        # What was killed with a container takes a moment to be gone, on a busy machine.
        self.wait_until_empty(2.0)
        return self.messages

    def of(self, *kinds: str) -> list[Message]:
        return [message for message in self.messages if message["type"] in kinds]

    def exit(self, rank: int) -> Message:
        [message] = [message for message in self.of("exit") if message["rank"] == rank]
        return message

    def log(self, rank: int) -> str:
        path = self.log_dir / f"rank{rank}.out.log"
        return path.read_text() if path.exists() else ""

    def left(self) -> list[int]:
        """Every living process of this lab, known by its environment."""
        return [each.pid for each in running() if each.environment.get("FLAGPERF_LAB") == self.mark]

    def wait_until_empty(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.left():
            assert time.monotonic() < deadline, f"still there: {self.left()}"
            time.sleep(0.02)

    def attach(self, after: int = 0) -> Caller:
        return Caller(self.log_dir, after)

    def taken(self, wanted: int, **settings: object) -> Message:
        """The answer to one attempt at ``wanted`` of two devices."""
        known = len(self.of("leased", "busy"))
        order = {"op": "lease", "count": wanted, "candidates": [0, 1], "whole_host": False, "owner": {"pid": 1}}
        self.send({**order, "directory": str(self.folder / "leases"), **settings})
        while len(answers := self.of("leased", "busy")) == known:
            self.next()
        return answers[-1]

    def next(self) -> Message:
        arrived = self._arrived.get(timeout=DEADLINE_S)
        assert arrived is not None, f"the agent ended: {self.messages}"
        self.messages.append(arrived)
        return arrived

    def close(self) -> None:
        """End it by force, wherever it is."""
        self.agent.kill()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.agent.wait(10)
        self._reader.join(10)
        for stream in (self.agent.stdin, self.agent.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def __enter__(self) -> Lab:  # noqa: PYI034 - Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        left = self.left()
        self.close()
        assert left == [], "the test left processes of its ranks"

    def _listen(self) -> None:
        assert self.agent.stdout is not None
        for line in self.agent.stdout:
            if self.deaf:
                self.agent.stdout.close()
                break
            self._arrived.put(json.loads(line))
            self.listening.wait()
        self._arrived.put(None)
