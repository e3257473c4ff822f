"""--drill on lab hosts: each fault strikes a training that continues, and the figures are those of the logs."""

import json
from pathlib import Path

import pytest

from flagperf_driver import events
from flagperf_driver.perflog import Record, read_records
from tests.lab.random_faults import BASE, SHORT
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.plugin.conftest import SHARED_TRAINING

DRILL = ("--restarts=2", "--drill=rank,host,link", "--drill-here", "--set=step_s=0.05")
BRIEF = """
from pytest_flagperf.engines.agents import drill
drill.HOST_AWAY_S, drill.LINK_CUT_S = 4.0, 4.0
"""


def logged(start: Path, event: str) -> list[Record]:
    """The records of an event that the first rank of a start logged."""
    with next(start.glob("*/rank0.out.log")).open("rb") as log:
        return [*read_records(log, events=[event])]


def test_three_faults_strike_and_their_costs_are_those_of_the_logs(cluster: ClusterToy) -> None:
    cluster.toy.suite("alpha", BASE, SHARED_TRAINING)
    (cluster.root / "suites/conftest.py").write_text(SHORT.conftest + BRIEF)
    cluster.hosts = cluster.lab.hosts(3)
    cluster.settings(nodes="2x1", runtime="host", lease_time=SHORT.lease_s)
    (cluster.lab.shared / cluster.root.name).mkdir(mode=0o777)
    options = (*DRILL, "--min-goodput=0.01", f"--set=checkpoint_dir=/shared/{cluster.root.name}")
    code, text = cluster.run("-k", "converges", *options)
    assert code == 0, text
    (case,) = cluster.toy.runs[-1].glob("alpha*")
    starts = [case / name for name in ("failed1-round1", "failed2-round1", "round1")]
    struck = [one for start in starts for one in json.loads((start / "round.json").read_text())["drill"]]
    outcome = cluster.round_json(name="outcome")
    assert [fault["kind"] for fault in struck] == ["rank", "host", "link"]
    assert [start["kind"] for start in outcome["starts"]] == ["crash", "agent", ""]
    for fault, cost, before, after in zip(struck, outcome["struck"], starts, [*starts[1:], None], strict=True):
        assert f"drill: {cost['what']} at step {fault['step']}" in text
        assert cost["noticed_s"] == pytest.approx((fault["noticed_ms"] - fault["struck_ms"]) / 1000)
        if after is None:
            assert (cost["started_s"], cost["trains_s"], cost["steps_repeated"]) == (None, None, 0)
            continue
        begun_ms = json.loads((after / "round.json").read_text())["started_ms"]
        first = logged(after, events.STEP_BEGIN)[0]
        last = logged(before, events.STEP_END)[-1]
        assert cost["started_s"] == pytest.approx((begun_ms - fault["struck_ms"]) / 1000, abs=0.001)
        assert cost["trains_s"] == pytest.approx((first.time_ms - fault["struck_ms"]) / 1000, abs=0.1)
        assert cost["steps_repeated"] == last.value["step"] - first.value["step"] + 1
    values = {figure["name"]: figure["value"] for figure in outcome["metrics"]}
    lost_s = sum(outcome["lost_s"].values())
    assert values["goodput"] == pytest.approx(1 - lost_s / (lost_s + values["raw_train_time"]))
    assert_nothing_left(cluster.hosts)
