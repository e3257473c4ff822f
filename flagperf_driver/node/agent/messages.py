"""What is told of a round: to its controller, and in the log folder for whoever looks there later."""

from __future__ import annotations

import json
import time
from typing import Sequence

from flagperf_driver import layout
from flagperf_driver.node.agent.connections import ControllerLink, Message
from flagperf_driver.node.folder import LogFolder


class Messages:
    """The first fault is told, for later ones follow from it; every rank's end is."""

    def __init__(self, folder: LogFolder, wire: ControllerLink) -> None:
        self.folder = folder
        self._wire = wire
        self._fault = False

    @property
    def heard(self) -> bool:
        """Whether there is somebody to hear what will not be of interest later."""
        return self._wire.gone_s() is None

    def tell(self, message: Message, expendable: bool = False) -> None:
        self._wire.tell(message, expendable)

    def alive(self) -> None:
        """For as long as no rank has a beat: the controller takes an agent that says nothing for gone."""
        if self.heard:
            self.tell({"type": "beat", "ranks": {}, "slow": {}}, expendable=True)

    def note(self, text: str) -> None:
        self.folder.note(text)

    def fault(self, kind: str, rank: int | None, sentence: str) -> None:
        if self._fault:
            return
        self._fault = True
        self.note(f"{kind}: {sentence}")
        self.folder.state(fault={"kind": kind, "rank": rank, "sentence": sentence})
        self.tell({"type": "fault", "kind": kind, "rank": rank, "sentence": sentence})

    def warning(self, sentence: str) -> None:
        self.note(f"warning: {sentence}")
        self.tell({"type": "warning", "sentence": sentence})

    def exit(
        self,
        rank: int,
        *,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        pid: int | None = None,
        started_ms: int | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        """How a rank ended; nothing is known of a code where nobody saw it end."""
        end = {"rank": rank, "code": code, "signal": signal, "cause": cause}
        times = {"pid": pid, "started_ms": started_ms, "ended_ms": now_ms()}
        self.folder.write(layout.rank_exit(rank), json.dumps({**end, **times}) + "\n")
        self.note(f"rank {rank} ended: code {code}, signal {signal}, cause {cause}")
        self.tell({"type": "exit", **end, "last_lines": list(last_lines)})


def now_ms() -> int:
    return time.time_ns() // 1_000_000
