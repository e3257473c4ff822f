"""The figures of a job as ais-bench names them: one number in each file, below the job's output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from flagperf_driver import events, perflog
from flagperf_driver.layout import CASE, rank_log

from . import layout

Message = Mapping[str, Any]


def write(folder: Path, logs: Path, start: Message, server: int, together: bool) -> list[str]:
    """Write each finished rank's share of the throughput, and the final metric; return the files' names.

    ``logs`` has the ranks' logs. Instances that train alone have a folder each.
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

    ends = {int(one["rank"]): _finished(logs / rank_log(int(one["rank"]))) for one in start["ranks"]}
    for rank, value in sorted(ends.items()):
        rate = value.get("p_train")
        put(own / layout.throughput(rank), rate / world if isinstance(rate, (int, float)) else None)
    first = next(filter(None, (ends[rank] for rank in sorted(ends))), {})
    metric = (first.get("final_metrics") or {}).get(case["metric"]["name"])
    put(folder / layout.accuracy(server), metric)
    if server == 0:
        put(folder / layout.RANK_SIZE, world)
        put(folder / layout.accuracy(), metric)
    return written


def _finished(log: Path) -> Mapping[str, Any]:
    """Return the figures of a rank's FINISHED; none if its log has none."""
    if not log.is_file():
        return {}
    with log.open("rb") as stream:
        found = [record.value for record in perflog.read_records(stream, events=[events.FINISHED])]
    return found[-1] if found else {}
