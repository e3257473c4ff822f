"""The look at every host: one process on each does all of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pytest_flagperf.catalog import DataItem
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import open_module
from pytest_flagperf.hosts.fleet import each

from .findings import FAIL, Finding, Request
from .judge import NEWER, judge, meetings

_CHECKUP = "flagperf_driver.node.preflight_facts"
_ANSWER_S = 60.0
_PINGS = 5
_CONNECT_S = 4.0
_NEIGHBOURS = 8
# Checksums of a data set of terabytes take their time.
_DATA_S = 4 * 3600.0


def inspect(hosts: Sequence[Host], request: Request) -> list[Finding]:
    """Everything about every host, in the hosts' order; one process on each does all of it."""
    visits = {host: _Visit(host, request) for host in hosts}

    def all_at_once(work: Callable[[_Visit], None]) -> None:
        each([host for host, visit in visits.items() if not visit.gone], lambda host: work(visits[host]))

    try:
        all_at_once(_Visit.look)
        if request.nnodes > 1 and sum(not visit.gone for visit in visits.values()) > 1:
            all_at_once(_Visit.listen)
            places = [visit.place for visit in visits.values() if visit.place]
            all_at_once(lambda visit: visit.connect(_neighbours(visit.place, places)))
    finally:
        all_at_once(_Visit.close)
    met = meetings({host.name: visits[host].met for host in hosts}, {host.name: host.address for host in hosts})
    return [finding for host in hosts for finding in (*visits[host].findings, *met.get(host.name, ()))]


def _neighbours(own: Mapping[str, Any] | None, places: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Itself and the next few in the round: among many hosts a connection of all with all finds nothing more."""
    start = next(number for number, place in enumerate(places) if place is own)
    return [places[(start + step) % len(places)] for step in range(min(len(places), _NEIGHBOURS + 1))]


class _Visit:
    """One host's checkup, from the connection to the last answer."""

    def __init__(self, host: Host, request: Request) -> None:
        self.host = host
        self.request = request
        self.channel: Channel | None = None
        self.gone = False
        self.findings: list[Finding] = []
        self.place: dict[str, Any] | None = None
        self.met: dict[str, str | None] = {}  # by name, why each could not be reached, if so

    def look(self) -> None:
        with self._excused():
            self.channel = open_module(self.host, self.request.code, _CHECKUP)
            clock = None if self.host.here else self._clock()
            timeout_s = _DATA_S if self.request.data else _ANSWER_S
            facts = self._ask({"op": "check", "wants": _asked(self.request, self.host)}, "facts", timeout_s)
            self.findings = list(judge(self.host.name, facts, self.request, clock))

    def listen(self) -> None:
        with self._excused():
            answer = self._ask({"op": "listen"}, "listening")
            self.place = {"name": self.host.name, "address": self.host.address, **answer}

    def connect(self, places: Sequence[Mapping[str, Any]]) -> None:
        with self._excused():
            order = {"op": "connect", "places": places, "timeout_s": _CONNECT_S}
            failed = self._ask(order, "connected")["failed"]
            self.met = {place["name"]: failed.get(place["name"]) for place in places}

    def close(self) -> None:
        if self.channel:
            with suppress(HostError):
                self.channel.close(1.0)

    def _clock(self) -> tuple[float, float]:
        """The host's clock minus ours, and how far that can be wrong, in seconds; from the quickest of some pings."""
        pings = []
        for _ in range(_PINGS):
            before = time.time()
            theirs = float(self._ask({"op": "ping", "t": before}, "pong")["clock_ms"]) / 1000
            after = time.time()
            pings.append(((after - before) / 2, theirs - (before + after) / 2))
        doubt, offset = min(pings)
        return offset, doubt

    def _ask(self, message: Mapping[str, Any], wanted: str, timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        assert self.channel is not None
        self.channel.send(message)
        deadline = time.monotonic() + timeout_s
        while (answer := self.channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if answer.get("type") == wanted:
                return {key: value for key, value in answer.items() if key != "type"}
        last = self.channel.complaint().strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"the host check by {self.host.python} ended early: {last[0].strip()}")

    def _excused(self) -> _Excused:
        return _Excused(self)


class _Excused:
    """A host that fails is a finding, and is asked no more."""

    def __init__(self, visit: _Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, (HostError, TimeoutError)):
            return False
        name = self._visit.host.name
        sentence = str(error).removeprefix(f"{name}: ")
        if isinstance(error, TimeoutError):
            sentence = "no reply to the host check in time: a disk or a device may hang"
        self._visit.findings.append(_unreachable(name, sentence, lost=isinstance(error, HostLost)))
        self._visit.close()
        self._visit.gone = True
        return True


# No such program; one whose words or modules are not those of a Python that is new enough.
_NO_PYTHON = re.compile(
    r"\b127\b|not found|No such file|[Uu]nknown option|python -h|SyntaxError|ImportError|ModuleNotFoundError"
)


def _unreachable(host: str, sentence: str, *, lost: bool) -> Finding:
    if _NO_PYTHON.search(sentence):
        return Finding(host, "python", FAIL, sentence, "" if "Python >= 3.8" in sentence else NEWER)
    remedy = "check its power, its network and its sshd" if lost else ""
    return Finding(host, "host", FAIL, sentence, remedy)


def _asked(request: Request, host: Host) -> dict[str, Any]:
    return {
        "folder": request.folder if host.here else None,
        "nvml": request.nvml,
        "probe": request.probe,
        "docker": request.engine.socket if request.engine else None,
        "image": request.engine.image if request.engine else None,
        "data": [{"data_dir": one.folder, "entries": _entries(one.manifest)} for one in request.data],
        "clear_caches": request.clear_caches,
    }


def _entries(manifest: Sequence[DataItem]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(item).items() if value is not None} for item in manifest]
