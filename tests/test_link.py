"""SSH connections and gateways, without a host."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_flagperf.hosts import HostError, link
from pytest_flagperf.hosts.cluster import Address, ClusterConfig


def test_all_hosts_wait_for_one_attempt_at_an_unreachable_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def away(*_: object) -> None:
        tries.append(time.monotonic())
        time.sleep(0.2)
        raise HostError("port 22: no answer within 10 s")

    monkeypatch.setattr(link, "Link", away)
    gateway = link.Gateway(Address("login", "login", None, None), ClusterConfig())
    together = threading.Barrier(8)

    def enter(number: int) -> str:
        together.wait()
        with pytest.raises(HostError) as refused:
            gateway.enter(number)
        return str(refused.value)

    with ThreadPoolExecutor(8) as pool:
        reasons = set(pool.map(enter, range(8)))
    assert reasons == {"gateway port 22: no answer within 10 s"}
    assert len(tries) == 1
    with pytest.raises(HostError):
        gateway.enter("later")
    assert len(tries) == 2
