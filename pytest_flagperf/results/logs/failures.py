"""Why a round is not whole: one sentence for each break, the first cause first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flagperf_driver import perflog
from pytest_flagperf.results.logs.ranklog import RankLog
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.round import RoundFault, RoundRecord

_SAID_AT_MOST = 300


@dataclass(frozen=True)
class Failure:
    """``kind``: crash, killed, hang, timeout, init_timeout, unfinished, no_log, interrupted, no_end, ... ."""

    kind: str
    host: str | None
    rank: int | None
    sentence: str
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankLocation:
    """A rank that the plan wants, and where."""

    rank: int
    host: str
    noderank: int

    @property
    def folder(self) -> str:
        return host_folder(self.host, self.noderank)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True)
class Exit:
    """How a rank ended, as its agent saw it."""

    code: int | None = None
    signal: str | None = None
    cause: str | None = None
    shared: bool = False
    """A launcher's, that stands for all its ranks."""

    def __str__(self) -> str:
        if self.signal:
            return self.signal
        return "exit code unknown" if self.code is None else f"exit code {self.code}"


def find(
    number: int,
    end: RoundRecord | None,
    places: Sequence[RankLocation],
    exits: Mapping[int, Exit],
    logs: Mapping[int, RankLog],
    unreadable_end: str | None = None,
) -> tuple[Failure, ...]:
    """Every break of round ``number``; ranks that another one's fault ended are not listed.

    ``end`` is None if there is no round.json, or if it cannot be read for the reason ``unreadable_end``.
    """
    found: list[Failure] = []
    if unreadable_end is not None:
        found.append(Failure("unreadable", None, None, f"round {number}: its end cannot be read: {unreadable_end}"))
    fault = end.fault if end else None
    if fault is not None and not _seen_in_the_log(fault, exits, logs):
        found.append(_from_fault(number, fault, places, logs))
    found.extend(_of_round(number, end) if unreadable_end is None else ())
    still_there = _still_there(end)
    for place in places:
        exit_ = exits[place.rank]
        told = found and (found[0].rank == place.rank or exit_.cause == "stopped")
        if told or (found and exit_.shared and not logs[place.rank].failed):
            continue
        found.extend(_of_rank(number, place, exit_, logs[place.rank], still_there.get(place.noderank)))
    if not found and end is not None and end.state != "finished":
        sentence = f"round {number}: its state is {end.state!r}, wanted 'finished'"
        found.append(Failure("failed", None, None, sentence))
    return tuple(found)


def _seen_in_the_log(fault: RoundFault, exits: Mapping[int, Exit], logs: Mapping[int, RankLog]) -> bool:
    """A missing FINISHED is found here too, and told with the exit code and the last line."""
    rank = fault.rank
    if fault.kind != "unfinished" or rank is None or rank not in logs:
        return False
    return exits[rank].code == 0 and logs[rank].present and logs[rank].finished is None


def _from_fault(number: int, fault: RoundFault, places: Sequence[RankLocation], logs: Mapping[int, RankLog]) -> Failure:
    rank = fault.rank
    place = next((place for place in places if place.rank == rank), None)
    host = fault.host or (place.host if place else None)
    lines = fault.last_lines
    if not lines and place is not None:
        lines = logs[place.rank].tail()
    sentence = _one_line(fault.sentence or fault.kind or "it failed, nobody said why")
    sentence = _with_host(sentence, rank, host)
    failed = logs[place.rank].failed if place else None
    if failed and str(failed.get("type")) not in sentence:
        sentence = f"{sentence}; it said: {_said(failed)}"
    return Failure(fault.kind or "unknown", host, rank, _with_round(sentence, number), lines)


def _with_host(sentence: str, rank: object, host: str | None) -> str:
    if host is None or host in sentence:
        return sentence
    named, times = re.subn(rf"\brank {rank}\b", f"rank {rank} on {host}".replace("\\", r"\\"), sentence, count=1)
    return named if times else f"{host}: {sentence}"


def _with_round(sentence: str, number: int) -> str:
    return sentence if re.match(rf"round {number}\b", sentence) else f"round {number}: {sentence}"


def _still_there(end: RoundRecord | None) -> dict[int, str]:
    """By noderank, where logs are that were not fetched: ``on h1 in /tmp/...``."""
    return {
        missing.noderank: f"on {missing.host} in {missing.log_dir}"
        for missing in (end.missing if end else ())
        if not missing.gone
    }


def _of_rank(number: int, place: RankLocation, end: Exit, log: RankLog, still_there: str | None) -> Iterator[Failure]:
    """At most one failure: the most telling."""
    kind, what = _break(end, log, still_there)
    if kind:
        yield Failure(kind, place.host, place.rank, f"round {number}: {place} {what}", log.tail())


def _break(end: Exit, log: RankLog, still_there: str | None) -> tuple[str, str]:
    last_line = f"its log is still {still_there}" if still_there and not log.present else _last_line(log)
    if end.signal:
        return "killed", f"was killed by {end.signal}; {last_line}"
    if log.failed:
        return "crash", f"failed with {_said(log.failed)} ({end})"
    if end.code is None:
        return "no_exit", f"has no exit code on record; {last_line}"
    if end.code != 0:
        return "crash", f"ended with {end}; {last_line}"
    if not log.present:
        return "no_log", f"ended without a log ({end}); {last_line if still_there else log.path.name + ' is missing'}"
    if log.finished is None:
        return "unfinished", f"ended without FINISHED ({end}); {last_line}"
    if end.cause:
        return end.cause, f"was ended by the harness ({end.cause}); {last_line}"
    return "", ""


def _of_round(number: int, end: RoundRecord | None) -> Iterator[Failure]:
    if end is None:
        yield Failure("no_end", None, None, f"round {number}: was not ended in order: it left no round.json")
    elif end.state == "interrupted":
        yield Failure("interrupted", None, None, f"round {number}: was interrupted")


def _said(failed: Mapping[str, Any]) -> str:
    return _short(f"{failed.get('type') or 'an error'}: {failed.get('error') or failed.get('text') or 'no text'}")


def _last_line(log: RankLog) -> str:
    """The last line a person wrote; where there are only records, the last of them in words."""
    lines = log.tail()
    if not lines:
        return "its log is empty" if log.present else "it left no log"
    spoken = [line for line in lines if perflog.MARK not in line]
    if spoken and spoken[-1] == lines[-1]:
        return f"its last line: {_short(spoken[-1])}"
    record = perflog.parse_line(lines[-1].encode())
    if record is None:
        return f"its last line: {_short(lines[-1])}"
    step = perflog.number(record.value.get("step"))
    return f"its last event: {record.event}" + (f" at step {step:.0f}" if math.isfinite(step) else "")


def _one_line(text: str) -> str:
    """An exception's text may have several lines, and a line of its own would read like one of ours."""
    return " ".join(text.split())


def _short(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= _SAID_AT_MOST else text[: _SAID_AT_MOST - 1] + "…"
