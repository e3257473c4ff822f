"""A round that another controller left, where not all of its hosts are there any more."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf import venue
from pytest_flagperf.cluster import HostError, HostLost
from pytest_flagperf.cluster.fleet import Fleet
from pytest_flagperf.cluster.local import LocalHost
from pytest_flagperf.report.live import Live, silent
from pytest_flagperf.round.crew import Crew


class Away(LocalHost):
    """A host that cannot be reached."""

    here = False

    def reconnect(self) -> None:
        raise HostLost(f"{self.name}: no answer")


@pytest.fixture
def left(tmp_path: Path) -> Path:
    directory = tmp_path / "alpha_plain_CPU_2_1_1" / "round1"
    directory.mkdir(parents=True)
    hosts = [{"name": name, "noderank": rank, "log_dir": "/x"} for rank, name in enumerate(("h1", "h2"))]
    (directory / "plan.json").write_text(json.dumps({"hosts": hosts}))
    return directory


def place(*names: str) -> venue.Venue:
    made = venue.Venue.__new__(venue.Venue)
    made.__dict__["fleet"] = Fleet(tuple(map(Away, names)))
    made._settings = SimpleNamespace(lease_time=1.0)  # type: ignore[assignment]
    return made


def shown(said: list[str]) -> Live:
    return Live(said.append, width=80, live=False, quiet=False, follow=False)


def test_logs_that_a_host_out_of_reach_has_are_told_and_hold_up_nothing(left: Path) -> None:
    said: list[str] = []
    made = place("h1", "h2")
    made.salvage(left, shown(said))
    assert [line.strip() for line in said] == [
        f"alpha_plain_CPU_2_1_1 round1: the logs of {name} are missing here: {name}: no answer" for name in ("h1", "h2")
    ]
    assert made.fleet.usable == ()


def test_where_one_agent_cannot_be_taken_up_the_others_keep_their_logs(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Collection[str]] = []

    def take_up(host: Any, *_: Any) -> Any:
        if host.name == "h2":
            raise HostError("h2: no agent was there")
        return SimpleNamespace(name=host.name)

    def join(self: Any, agent: Any) -> None:
        self.agents.append(agent)

    def dismiss(self: Any, keep: Collection[str] = ()) -> None:
        self._closing = True
        kept.append(keep)

    monkeypatch.setattr(venue, "take_up", take_up)
    monkeypatch.setattr(Crew, "join", join)
    monkeypatch.setattr(Crew, "dismiss", dismiss)
    assert not place("h1", "h2").go_on(left, silent())
    assert kept == [["h1"]]
