"""The figures of a job as ais-bench names them: one number in each file, below the job's output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from flagperf_driver import events
from flagperf_driver.layout import CASE

from . import layout

Message = Mapping[str, Any]


class Finished:
    """The final events of an instance's ranks."""

    def __init__(self) -> None:
        self._events: dict[int, Mapping[str, Any]] = {}

    def take(self, message: Message) -> None:
        if message["type"] == "perflog" and message["event"] == events.FINISHED:
            self._events[int(message["rank"])] = message["value"]

    def write(self, folder: Path, start: Message, server: int, together: bool) -> list[str]:
        """Write each finished rank's share of the throughput, and the final metric; return the files' names.

        Instances that train alone have a folder each.
        """
        case = json.loads(start["files"][CASE])
        world = int(case["nnodes"]) * int(case["nproc"])
        own = folder if together else folder / str(server)
        written: list[str] = []

        def put(path: Path, value: Any) -> None:
            if isinstance(value, (int, float)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(repr(value))
                written.append(str(path.relative_to(folder)))

        for rank, value in sorted(self._events.items()):
            rate = value.get("p_train")
            put(own / layout.throughput(rank), rate / world if isinstance(rate, (int, float)) else None)
        first = self._events.get(min(self._events, default=0), {})
        metric = (first.get("final_metrics") or {}).get(case["metric"]["name"])
        put(folder / layout.accuracy(server), metric)
        if server == 0:
            put(folder / layout.RANK_SIZE, world)
            put(folder / layout.accuracy(), metric)
        return written
