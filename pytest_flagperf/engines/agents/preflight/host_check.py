"""The check of all hosts: one process on each host collects the facts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from pytest_flagperf.catalog import DataItem
from pytest_flagperf.engines import FAIL, Finding
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost, Message
from pytest_flagperf.hosts.clock import clock_offset
from pytest_flagperf.hosts.deploy import open_module
from pytest_flagperf.hosts.host_pool import run_on_each
from pytest_flagperf.progress import note
from pytest_flagperf.results.figures.units import count, quantity

from .host_requirements import HostRequirements
from .host_rules import NEWER, host_findings, network_findings

_CHECKUP = "flagperf_driver.node.preflight_facts"
_ANSWER_S = 60.0
# Over a bad line: a host that lost three packets in a row tries to connect for the fourth time after 7 s.
_CONNECT_S = 8.0
_NEIGHBOURS = 8
# Checksums of a data set of terabytes take hours.
_DATA_S = 4 * 3600.0


def inspect(
    hosts: Sequence[Host],
    request: HostRequirements,
    meanwhile: Callable[[Host], None] = lambda _: None,
) -> list[Finding]:
    """Check all hosts at once and return the findings in the order of the hosts.

    ``meanwhile`` is called for each host while it collects its facts, which takes at least 0.1 s.
    """
    meet = request.nnodes > 1 and len(hosts) > 1
    visits = {host: _Visit(host, request, meanwhile, meet) for host in hosts}

    def all_at_once(work: Callable[[_Visit], None]) -> None:
        run_on_each([host for host, visit in visits.items() if not visit.gone], lambda host: work(visits[host]))

    try:
        all_at_once(_Visit.look)
        places = [visit.place for visit in visits.values() if visit.place]
        if len(places) > 1:
            numbers = {place["name"]: number for number, place in enumerate(places)}
            all_at_once(lambda visit: visit.connect(_neighbours(numbers[visit.host.name], places)))
    finally:
        all_at_once(_Visit.close)
    connections = {host.name: visits[host].connections for host in hosts}
    network = network_findings(connections, {host.name: host.address for host in hosts})
    return [finding for host in hosts for finding in (*visits[host].findings, *network.get(host.name, ()))]


def _neighbours(start: int, places: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a host and the next few: connections of all with all would find nothing more."""
    return [places[(start + step) % len(places)] for step in range(min(len(places), _NEIGHBOURS + 1))]


class _Visit:
    """The check of one host, from the connection to the last answer."""

    def __init__(
        self,
        host: Host,
        request: HostRequirements,
        meanwhile: Callable[[Host], None],
        meet: bool,
    ) -> None:
        self.host = host
        self.request = request
        self.meanwhile = meanwhile
        self.meet = meet  # whether other hosts try to reach this one
        self.channel: Channel | None = None
        self.gone = False
        self.findings: list[Finding] = []
        self.place: dict[str, Any] | None = None
        self.connections: dict[str, str | None] = {}  # by target: why it cannot be reached, or None

    def look(self) -> None:
        with self._errors_as_findings():
            code = self.request.code
            self.channel = open_module(self.host, code, _CHECKUP, self._report)
            clock = None if self.host.is_local else clock_offset(self._ask)
            timeout_s = _DATA_S if self.request.data else _ANSWER_S
            self._send({"op": "check", "options": {**_check_options(self.request, self.host), "listen": self.meet}})
            self.meanwhile(self.host)
            facts = self._answer("facts", timeout_s)
            if facts.get("listening"):
                self.place = {"name": self.host.name, "address": self.host.address, **facts["listening"]}
            self.findings = list(host_findings(self.host.name, facts, self.request, clock))

    def connect(self, places: Sequence[Mapping[str, Any]]) -> None:
        with self._errors_as_findings():
            order = {"op": "connect", "places": places, "timeout_s": _CONNECT_S}
            failed = self._ask(order, "connected")["failed"]
            self.connections = {place["name"]: failed.get(place["name"]) for place in places}

    def close(self) -> None:
        if self.channel:
            with suppress(HostError):
                self.channel.close(1.0)

    def _ask(self, message: Message, expected: str, timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        self._send(message)
        return self._answer(expected, timeout_s)

    def _send(self, message: Message) -> None:
        assert self.channel is not None
        self.channel.send(message)

    def _answer(self, expected: str, timeout_s: float) -> dict[str, Any]:
        assert self.channel is not None
        deadline = time.monotonic() + timeout_s
        while (answer := self.channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if answer["type"] == expected:
                return {key: value for key, value in answer.items() if key != "type"}
            if answer["type"] == "checking":
                self._report(f"checking {answer['data_dir']}: {_amounts(answer)}")
        last = self.channel.error_output().strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"the host check by {self.host.python} ended early: {last[0].strip()}")

    def _report(self, text: str) -> None:
        where = "" if self.host.is_local else f"{self.host.name}: "
        note("activity", text=f"preflight: {where}{text}")

    @contextmanager
    def _errors_as_findings(self) -> Iterator[None]:
        """Turn an error of the host into a finding; the host is not contacted any more."""
        name = self.host.name
        try:
            yield
            return
        except TimeoutError:
            sentence, lost = "no reply to the host check in time: a disk or a device may hang", False
        except HostError as error:
            sentence, lost = str(error).removeprefix(f"{name}: "), bool(self.channel) and isinstance(error, HostLost)
        self.findings.append(_unreachable(name, sentence, lost=lost))
        self.close()
        self.gone = True


# The errors of a missing program, of a program that is not Python, and of a Python that is too old.
_NO_PYTHON = re.compile(
    r"\b127\b(?!\.)|not found|No such file|[Uu]nknown option|python -h|SyntaxError|ImportError|ModuleNotFoundError"
)


def _unreachable(host: str, sentence: str, *, lost: bool) -> Finding:
    if _NO_PYTHON.search(sentence):
        return Finding(host, "python", FAIL, sentence, "" if "Python >= 3.8" in sentence else NEWER)
    remedy = "check its power, its network and its sshd" if lost else ""
    return Finding(host, "host", FAIL, sentence, remedy)


def _amounts(answer: Mapping[str, Any]) -> str:
    """Return what of the data is checked, such as ``2 of 5 parts, 1.5 GiB of 140 GiB``."""
    done, total = answer["done"], answer["total"]
    texts = [f"{done['parts']:,} of {count(total['parts'], 'part')}"]
    if total["files"]:
        texts.append(f"{done['files']:,} of {count(total['files'], 'file')}")
    if total["bytes"]:
        texts.append(f"{quantity(done['bytes'], 'bytes', 3)} of {quantity(total['bytes'], 'bytes', 3)}")
    return ", ".join(texts)


def _check_options(request: HostRequirements, host: Host) -> dict[str, Any]:
    engine = request.engine
    return {
        "folder": request.folder if host.is_local else None,
        "nvml": request.nvml,
        "probe": request.probe,
        "docker": engine.socket if engine else None,
        "apptainer": engine is not None and engine.socket is None,
        "image": engine.image if engine else None,
        "data": [{"data_dir": data.folder, "entries": _entries(data.manifest)} for data in request.data],
        "clear_caches": request.clear_caches,
    }


def _entries(manifest: Sequence[DataItem]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(item).items() if value is not None} for item in manifest]
