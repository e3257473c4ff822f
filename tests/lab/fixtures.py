"""The lab as tests get it: a plugin that tests/conftest.py names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.lab.needs import missing, require

if TYPE_CHECKING:
    from tests.lab.lab import Lab
    from tests.lab.runs import ClusterToy


@pytest.fixture(scope="session")
def lab_or_skip(request: pytest.FixtureRequest) -> None:
    """Without what a lab needs its tests are skipped, loudly; where skips count as errors they fail."""
    require(request.config, missing(), "NO LAB ON THIS MACHINE, so nothing is tested on real hosts: ")


@pytest.fixture(scope="session")
def lab(lab_or_skip: None) -> Iterator[Lab]:
    """One lab for all tests; `lab.hosts(2)` gives two healthy hosts, whatever earlier tests did to them."""
    from tests.lab.lab import Lab

    with Lab() as made:
        yield made


@pytest.fixture
def cluster(lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterToy]:
    """A toy suite on two healthy hosts of the lab, by SSH and with the hosts' own Python."""
    from tests.lab.runs import ClusterToy
    from tests.plugin.conftest import Toy, ignore_other_load

    ignore_other_load(monkeypatch)
    monkeypatch.setenv("FLAGPERF_LEASES", str(pytester.path / "leases"))
    toy = Toy(pytester)
    toy.suite("alpha")
    made = ClusterToy(toy, lab, lab.hosts(2))
    made.settings(nodes="2x1", runtime="host")
    yield made
    made.toy.end()


@pytest.fixture
def gpus(cluster: ClusterToy) -> ClusterToy:
    """One host of eight A100s, as the vendor nvidia sees them."""
    cluster.use_nvidia(nodes="1x2")
    return cluster


@pytest.fixture
def foreign_pid(gpus: ClusterToy) -> Iterator[int]:
    """The pid of a foreign process on the host, which does not use a device yet."""
    from tests.helpers.waiting import until

    host = gpus.hosts[0]
    host.start(["sleep", "1000"])

    def pids() -> list[int]:  # without the process that starts it
        return [one.pid for one in host.processes() if one.cmdline == "sleep 1000"]

    until(pids, "the foreign process")
    (pid,) = pids()
    yield pid
    host.run(["kill", str(pid)], check=False)
