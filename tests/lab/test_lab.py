"""The lab itself: what hosts are, and that each switch does what it says."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.lab import Lab


def ssh(argv: list[str], timeout: float = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


def test_hosts_are_machines_of_their_own_on_one_network(lab: Lab) -> None:
    hosts = lab.hosts(4)
    for host in hosts:
        assert ssh(host.ssh("hostname")).stdout == f"{host.name}\n"
    assert ssh(hosts[0].ssh("ssh h3 hostname")).stdout == "h3\n"
