"""The failures of a round, one sentence each, with the first cause first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flagperf_driver import perflog
from flagperf_driver.node.logs.ranklog import RankLog
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.round_dir import RankEnd, RoundFault, RoundRecord

_MAX_TEXT = 300
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|memory limit|can(no|')t allocate memory|ALLOC_FAILED|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)
"""The words of frameworks, of their libraries and of the kernel for memory that ran out."""


@dataclass(frozen=True)
class RankLocation:
    """A planned rank and its host."""

    rank: int
    host: str
    noderank: int

    @property
    def folder(self) -> str:
        return host_folder(self.host, self.noderank)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def find(
    number: int,
    end: RoundRecord | None,
    places: Sequence[RankLocation],
    exits: Mapping[int, RankEnd],
    logs: Mapping[int, RankLog],
    unreadable_end: str | None = None,
) -> tuple[RoundFault, ...]:
    """Return the failures of round ``number``, without ranks that were stopped because of another rank's failure.

    ``end`` is None if there is no round.json, or if it cannot be read for the reason ``unreadable_end``.
    """
    failures: list[RoundFault] = []
    if unreadable_end is not None:
        sentence = f"round {number}: round.json cannot be read: {unreadable_end}"
        failures.append(RoundFault("unreadable", None, None, sentence))
    fault = end.fault if end else None
    if fault is not None and not _is_missing_finished(fault, exits, logs):
        failures.append(_from_fault(number, fault, places, logs))
    failures.extend(_of_round(number, end) if unreadable_end is None else ())
    log_places = _logs_on_hosts(end)
    for place in places:
        exit_ = exits[place.rank]
        is_known = failures and (failures[0].rank == place.rank or exit_.cause == "stopped")
        if is_known:
            continue
        failures.extend(_of_rank(number, place, exit_, logs[place.rank], log_places.get(place.noderank)))
    if not failures and end is not None and end.state != "finished":
        sentence = f"round {number}: its state is {end.state!r}, expected 'finished'"
        failures.append(RoundFault("failed", None, None, sentence))
    return tuple(failures)


def ran_out_of_memory(failures: Iterable[RoundFault]) -> bool:
    """Return True if a round ended because the memory of a device or a host ran out."""
    return any(_OUT_OF_MEMORY.search(failure.sentence) for failure in failures)


def _is_missing_finished(fault: RoundFault, exits: Mapping[int, RankEnd], logs: Mapping[int, RankLog]) -> bool:
    """Return True if the fault is a missing FINISHED, which is reported from the log with the exit code."""
    rank = fault.rank
    if fault.kind != "unfinished" or rank is None or rank not in logs:
        return False
    return exits[rank].code == 0 and logs[rank].present and logs[rank].finished is None


def _from_fault(
    number: int, fault: RoundFault, places: Sequence[RankLocation], logs: Mapping[int, RankLog]
) -> RoundFault:
    rank = fault.rank
    place = next((place for place in places if place.rank == rank), None)
    host = fault.host or (place.host if place else None)
    lines = fault.last_lines
    if not lines and place is not None:
        lines = logs[place.rank].tail()
    sentence = _one_line(fault.sentence or fault.kind or "failed for an unknown reason")
    sentence = _with_host(sentence, rank, host)
    failed = logs[place.rank].failed if place else None
    if failed and str(failed.get("type")) not in sentence:
        sentence = f"{sentence}; its error: {_error(failed)}"
    text = sentence if re.match(rf"round {number}\b", sentence) else f"round {number}: {sentence}"
    return RoundFault(fault.kind or "unknown", host, rank, text, lines)


def _with_host(sentence: str, rank: object, host: str | None) -> str:
    if host is None or host in sentence:
        return sentence
    named, times = re.subn(rf"\brank {rank}\b", f"rank {rank} on {host}".replace("\\", r"\\"), sentence, count=1)
    return named if times else f"{host}: {sentence}"


def _logs_on_hosts(end: RoundRecord | None) -> dict[int, str]:
    """The places of logs that were not fetched, by noderank: ``on h1 in /tmp/...``."""
    return {
        missing.noderank: f"on {missing.host} in {missing.log_dir}"
        for missing in (end.missing if end else ())
        if not missing.gone
    }


def _of_rank(
    number: int, place: RankLocation, end: RankEnd, log: RankLog, log_place: str | None
) -> Iterator[RoundFault]:
    """Yield at most one failure of the rank."""
    kind, text = _kind_and_text(end, log, log_place)
    if kind:
        yield RoundFault(kind, place.host, place.rank, f"round {number}: {place} {text}", log.tail())


def _kind_and_text(end: RankEnd, log: RankLog, log_place: str | None) -> tuple[str, str]:
    if end.is_clean and log.finished is not None and not log.failed:
        return "", ""  # without a look at the last line of each rank's log
    last_line = f"its log is still {log_place}" if log_place and not log.present else _last_line(log)
    if end.signal:
        return "killed", f"was killed by {end.signal}; {last_line}"
    if log.failed:
        return "crash", f"failed with {_error(log.failed)} ({end})"
    if end.code is None:
        return "no_exit", f"has no recorded exit code; {last_line}"
    if end.code != 0:
        return "crash", f"ended with {end}; {last_line}"
    if not log.present:
        return "no_log", f"ended without a log ({end}); {last_line if log_place else log.path.name + ' is missing'}"
    if log.finished is None:
        return "unfinished", f"ended without FINISHED ({end}); {last_line}"
    if end.cause:
        return end.cause, f"was stopped by the harness ({end.cause}); {last_line}"
    return "", ""


def _of_round(number: int, end: RoundRecord | None) -> Iterator[RoundFault]:
    if end is None:
        yield RoundFault("no_end", None, None, f"round {number}: did not end properly: no round.json")
    elif end.state == "interrupted":
        yield RoundFault("interrupted", None, None, f"round {number}: was interrupted")


def _error(failed: Mapping[str, Any]) -> str:
    return _short(f"{failed.get('type') or 'an error'}: {failed.get('error') or failed.get('text') or 'no text'}")


def _last_line(log: RankLog) -> str:
    """Describe the end of the log: its last line, or its last event if that line is a record."""
    lines = log.tail()
    if not lines:
        return "its log is empty" if log.present else "it left no log"
    if perflog.MARK not in lines[-1]:
        return f"its last line: {_short(lines[-1])}"
    record = perflog.parse_line(lines[-1].encode())
    if record is None:
        return f"its last line: {_short(lines[-1])}"
    step = perflog.number(record.value.get("step"))
    return f"its last event: {record.event}" + (f" at step {step:.0f}" if math.isfinite(step) else "")


def _one_line(text: str) -> str:
    """Join the lines of a text, such as an exception's, so that none of them looks like a message of its own."""
    return " ".join(text.split())


def _short(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
