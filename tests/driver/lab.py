"""An agent with tiny ranks that need nothing but the standard library."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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


class Lab:
    """One agent, its ranks' programs, and all that it said."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.log_dir = folder / "logs"
        self.log_dir.mkdir()
        self.mark = uuid.uuid4().hex
        self.python = python
        self.env = {**os.environ, "PYTHONPATH": str(REPO), "FLAGPERF_LAB": self.mark, "PYTHONUNBUFFERED": "1"}
        self.messages: list[Message] = []
        self.listening = threading.Event()
        self.listening.set()
        self.lost = False
        self._arrived: queue.Queue[Message | None] = queue.Queue()
        self.agent = subprocess.Popen(
            [python, "-m", "flagperf_driver.node.agent"],
            env=self.env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, daemon=True).start()

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

    def order(self, ranks: list[Mapping[str, Any]]) -> Message:
        return {
            "op": "start",
            "ranks": ranks,
            "init_timeout_s": 20,
            "hang_timeout_s": 20,
            "round_timeout_s": 25,
            "grace_s": 1,
        }

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.agent.stdin is not None
        self.agent.stdin.write(json.dumps(message).encode() + b"\n")
        self.agent.stdin.flush()

    def hang_up(self) -> None:
        self.lost = True
        assert self.agent.stdin is not None
        self.agent.stdin.close()

    def wait_for(self, kind: str, **fields: object) -> Message:
        """The first message of this kind with these fields, that came or is to come."""
        deadline = time.monotonic() + DEADLINE_S
        seen = 0
        while True:
            for message in self.messages[seen:]:
                if message["type"] == kind and fields.items() <= message.items():
                    return message
            seen = len(self.messages)
            arrived = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            assert arrived is not None, f"the agent ended without {kind} {fields}: {self.messages}"
            self.messages.append(arrived)

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
            if self.of("hello") and not self.of("over") and not self.lost:
                self.over()
            self.send({"op": "leave", "remove": False})
        while (arrived := self._arrived.get(timeout=DEADLINE_S)) is not None:
            self.messages.append(arrived)
        assert self.agent.wait(DEADLINE_S) == 0
        assert self.messages[-1] == {"type": "end"}
        assert self.left() == []
        return self.messages

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    def exit(self, rank: int) -> Message:
        [message] = [message for message in self.of("exit") if message["rank"] == rank]
        return message

    def log(self, rank: int) -> str:
        path = self.log_dir / f"rank{rank}.out.log"
        return path.read_text() if path.exists() else ""

    def left(self) -> list[int]:
        """Every living process of this lab, known by its environment."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_ours(path)]

    def wait_until_empty(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.left():
            assert time.monotonic() < deadline, f"still there: {self.left()}"
            time.sleep(0.02)

    def close(self) -> None:
        self.agent.kill()
        for pid in self.left():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue

    def _is_ours(self, path: Path) -> bool:
        try:
            ours = self.mark.encode() in (path / "environ").read_bytes()
            return ours and b") Z" not in (path / "stat").read_bytes()
        except OSError:
            return False

    def _listen(self) -> None:
        assert self.agent.stdout is not None
        for line in self.agent.stdout:
            self._arrived.put(json.loads(line))
            self.listening.wait()
        self._arrived.put(None)
