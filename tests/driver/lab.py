"""An agent with small ranks that need only the standard library."""

import json
import os
import queue
import re
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
from typing import Any, Self

from tests.helpers.processes import kill, running
from tests.helpers.waiting import until

REPO = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
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
FOREVER = "train(1, 10**6)"
"""A rank that ends only if it is ended."""


class Caller:
    """A controller that attaches to a running agent."""

    def __init__(self, log_dir: Path, after: int = 0, first: bytes | None = None) -> None:
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        # Through the folder's descriptor, because the path may be too long for a socket.
        folder = os.open(log_dir, os.O_RDONLY)
        self._socket.connect(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(first or json.dumps({"op": "attach", "after": after}).encode() + b"\n")

    def send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def next(self) -> Message | None:
        line = self._lines.readline()
        if not line:
            return None
        self.messages.append(json.loads(line))
        return self.messages[-1]

    def wait_for(self, kind: str) -> Message:
        while (message := self.next()) is not None:
            if message["type"] == kind:
                return message
        raise AssertionError(f"the agent closed the connection before {kind}: {self.messages}")

    def leave(self) -> None:
        self.send({"op": "leave", "remove": False})
        self.wait_for("end")
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Lab:
    """One agent, the programs of its ranks, and all its messages."""

    def __init__(self, folder: Path, python: str = sys.executable, patch: str = "pass") -> None:
        main = f"{patch}; import sys; from flagperf_driver.node.agent import main; sys.exit(main.main())"
        self.folder = folder
        self.log_dir = folder / "logs"
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.python = python
        self.env = {**os.environ, "PYTHONPATH": str(REPO), "FLAGPERF_LAB": self.mark, "PYTHONUNBUFFERED": "1"}
        self.env |= {"ATEN_CPU_CAPABILITY": "default", "TORCH_HOME": "http://me:secret@h/x", "MKL_A": "1"}
        self.messages: list[Message] = []
        self.listening = threading.Event()
        self.listening.set()
        self.started = False
        self.lost = False
        self.deaf = False
        self._received: queue.Queue[Message | None] = queue.Queue()
        folder.mkdir(exist_ok=True)
        with (folder / "stderr").open("wb") as stderr:
            self.agent = subprocess.Popen(
                [python, "-c", main], env=self.env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def hello(self, **settings: object) -> Message:
        """Send the first order; by default the lease of a lost controller expires immediately."""
        self.send({"op": "hello", "log_dir": str(self.log_dir), "name": "lab", "lease_s": 0, **settings})
        return self.wait_for("hello")

    def start(self, *programs: str, **settings: object) -> None:
        """Start ranks; rank i runs ``BEATING`` and then ``programs[i]``."""
        if not self.of("hello"):
            self.hello()
        ranks = [self.rank(number, program) for number, program in enumerate(programs)]
        self.send({**self.order(ranks), **settings})

    def rank(self, number: int, program: str) -> Mapping[str, Any]:
        path = self.folder / f"rank{number}.py"
        path.write_text(textwrap.dedent(BEATING) + textwrap.dedent(program))
        return {
            "rank": number,
            "argv": [self.python, "-u", str(path)],
            "env": {"RANK": str(number), "PYTHONPATH": self.env["PYTHONPATH"], "MKL_A": "2"},
            "cwd": str(self.log_dir),
        }

    def order(self, ranks: Sequence[Mapping[str, Any]]) -> Message:
        return {
            "op": "start", "ranks": ranks, "init_timeout_s": 20, "hang_timeout_s": 20, "round_timeout_s": 25,
            "grace_s": 1, "beat_s": 0.5, "samples_s": 1,
        }  # fmt: skip

    def send(self, message: Mapping[str, Any]) -> None:
        self.started = self.started or message.get("op") == "start"
        assert self.agent.stdin is not None
        self.agent.stdin.write(json.dumps(message).encode() + b"\n")
        self.agent.stdin.flush()

    def vanish(self) -> None:
        """Behave as a killed controller: send and read nothing any more."""
        self.deaf = True
        self.disconnect()

    def disconnect(self) -> None:
        self.lost = True
        assert self.agent.stdin is not None
        self.agent.stdin.close()

    def wait_for(self, kind: str, **fields: object) -> Message:
        """Return the first message of this kind with these fields, received before or from now on."""
        for message in self.messages:
            if message["type"] == kind and fields.items() <= message.items():
                return message
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = self.next()
            if message["type"] == kind and fields.items() <= message.items():
                return message
        raise AssertionError(f"no {kind} {fields}: {self.messages}")

    def wait_for_start(self, rank: int = 0) -> int:
        """Wait until a rank was started, as the agent's log says; return its pid."""
        log, line = self.log_dir / "start_task.log", re.compile(rf"rank {rank} started, pid (\d+)")
        until(lambda: log.exists() and line.search(log.read_text()), f"the start of rank {rank}")
        return int(line.findall(log.read_text())[0])

    def wait_for_line(self, rank: int, text: str) -> None:
        until(lambda: text in self.log(rank), f"{text!r} of rank {rank}", DEADLINE_S)

    def over(self) -> list[Message]:
        self.wait_for("over")
        return self.messages

    def end(self) -> list[Message]:
        """Return all messages after the agent's normal end: exit code 0, and no process left."""
        with suppress(OSError, ValueError):  # it may have ended already
            if self.started and not self.lost:
                self.over()
            self.send({"op": "leave", "remove": False})
        while (message := self._received.get(timeout=DEADLINE_S)) is not None:
            self.messages.append(message)
        assert self.agent.wait(DEADLINE_S) == 0
        assert self.messages[-1] == {"type": "end"}
        # On a busy machine, processes that were killed with a container take a moment to end.
        self.wait_until_empty()
        return self.messages

    def fault(self) -> Message:
        fault = self.wait_for("fault")
        self.end()
        return fault

    def of(self, *kinds: str) -> list[Message]:
        return [message for message in self.messages if message["type"] in kinds]

    @property
    def exits(self) -> list[Message]:
        """How the ranks ended, by their own messages and the last one."""
        well: Message = {"code": 0, "signal": None, "cause": None, "finished": True, "last_lines": []}
        ended_well = [rank for message in self.of("over") for rank in message["ended_well"]]
        return [*self.of("exit"), *({"type": "exit", "rank": rank, **well} for rank in ended_well)]

    def exit(self, rank: int) -> Message:
        [message] = [message for message in self.exits if message["rank"] == rank]
        return message

    def log(self, rank: int) -> str:
        path = self.log_dir / f"rank{rank}.out.log"
        return path.read_text() if path.exists() else ""

    def living(self) -> list[int]:
        """Return the pids of this lab's living processes, found by their environment."""
        return [process.pid for process in running() if process.environment.get("FLAGPERF_LAB") == self.mark]

    def wait_until_empty(self) -> None:
        until(lambda: not self.living(), "the end of all processes", DEADLINE_S)

    def attach(self, after: int = 0) -> Caller:
        return Caller(self.log_dir, after)

    def lease(self, count: int, **settings: object) -> Message:
        """Try to lease ``count`` of two devices; return the reply."""
        known = len(self.of("leased", "busy"))
        order = {"op": "lease", "count": count, "candidates": [0, 1], "whole_host": False, "owner": {"pid": 1}}
        self.send({**order, "directory": str(self.folder / "leases"), **settings})
        while len(replies := self.of("leased", "busy")) == known:
            self.next()
        return replies[-1]

    def next(self) -> Message:
        message = self._received.get(timeout=DEADLINE_S)
        assert message is not None, f"the agent ended: {self.messages}"
        self.messages.append(message)
        return message

    def close(self) -> None:
        self.agent.kill()
        for pid in self.living():
            with suppress(ProcessLookupError):
                kill(pid)
        self.agent.wait(10)
        self._reader.join(10)
        for stream in (self.agent.stdin, self.agent.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        living = self.living()
        self.close()
        assert living == [], "the test living processes of its ranks"

    def _listen(self) -> None:
        assert self.agent.stdout is not None
        for line in self.agent.stdout:
            if self.deaf:
                self.agent.stdout.close()
                break
            self._received.put(json.loads(line))
            self.listening.wait()
        self._received.put(None)
