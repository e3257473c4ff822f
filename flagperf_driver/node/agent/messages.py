"""Report a round: to its controller, and in the round's log folder."""

from __future__ import annotations

import json
from typing import Callable, Mapping, Sequence

from flagperf_driver import layout
from flagperf_driver.node.agent.connections import ControllerLink, Message
from flagperf_driver.node.agent.timer import now_ms
from flagperf_driver.node.folder import LogFolder


class Messages:
    """Report the first fault only, because later faults follow from it, and the end of every rank.

    The last message has the ranks that ended well: with many hosts, each message costs the controller.
    """

    def __init__(self, folder: LogFolder, link: ControllerLink) -> None:
        self.folder = folder
        self._link = link
        self._fault = False
        self._ended_well: list[int] = []

    @property
    def connected(self) -> bool:
        """Whether the controller is connected. Messages that soon lose their value are sent only then."""
        return self._link.gone_s() is None

    def watch(self, handle: int, read: Callable[[], None]) -> None:
        """Let input of a descriptor wake the agent, which then calls ``read``."""
        self._link.watch(handle, read)

    def send(self, message: Message) -> None:
        self._link.send(message)

    def tell(self, message: Message) -> None:
        """Send a message that soon loses its value; it is not kept."""
        if self.connected:
            self._link.reply(message)

    def alive(self) -> None:
        """Send an empty beat before any rank has one: the controller considers a silent agent lost."""
        self.tell({"type": "beat", "ranks": {}, "slow": {}})

    def samples(self, samples: Mapping[str, Mapping[str, object]]) -> None:
        """Send the latest samples of the host and its devices."""
        self.tell({"type": "samples", **samples})

    def note(self, text: str) -> None:
        self.folder.note(text)

    def fault(self, kind: str, rank: int | None, sentence: str) -> None:
        if self._fault:
            return
        self._fault = True
        self.note(f"{kind}: {sentence}")
        self.folder.update_state(fault={"kind": kind, "rank": rank, "sentence": sentence})
        self.send({"type": "fault", "kind": kind, "rank": rank, "sentence": sentence})

    def warning(self, sentence: str) -> None:
        self.note(f"warning: {sentence}")
        self.send({"type": "warning", "sentence": sentence})

    def exit(
        self,
        rank: int,
        *,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        pid: int | None = None,
        started_ms: int | None = None,
        finished: bool = False,
        last_lines: Sequence[str] = (),
    ) -> None:
        """Report how a rank ended, and whether it logged FINISHED; ``code`` and ``signal`` are None if not known."""
        end = {"rank": rank, "code": code, "signal": signal, "cause": cause}
        times = {"pid": pid, "started_ms": started_ms, "ended_ms": now_ms()}
        self.folder.write(layout.rank_exit(rank), json.dumps({**end, **times}) + "\n")
        self.note(f"rank {rank} ended: code {code}, signal {signal}, cause {cause}")
        if code == 0 and finished:
            self._ended_well.append(rank)
        else:
            self.send({"type": "exit", **end, "finished": finished, "last_lines": list(last_lines)})

    def over(self, ended_ms: int) -> None:
        self.send({"type": "over", "ended_ms": ended_ms, "ended_well": self._ended_well})
