"""Trainings of --restarts and their replay on lab hosts: faults strike, it continues, a clean process repeats it."""

import json
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events
from flagperf_driver.perflog import Record, read_records
from tests.helpers.waiting import until
from tests.lab.lab import PYTHON
from tests.lab.random_faults import BASE, SHORT
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.lab.test_faults_containers import kill_agent
from tests.lab.test_faults_links import prepare, ranks, reported_once, start
from tests.plugin.conftest import SHARED_TRAINING


def with_checkpoints(cluster: ClusterToy) -> list[str]:
    """Return options for a folder of checkpoints on each host; only the toy's first rank writes there."""
    for host in cluster.hosts:
        folder = host.root / "tmp" / cluster.root.name
        folder.mkdir()
        folder.chmod(0o777)
    return [f"--set=checkpoint_dir=/tmp/{cluster.root.name}", "--set=checkpoint_steps=1"]


def test_a_lost_host_for_which_the_others_wait_is_given_up_before_its_lease_ends(cluster: ClusterToy) -> None:
    impatient = "from pytest_flagperf.engines.agents import standstill\nstandstill.PATIENCE_S = 2.0"
    one, two, three = prepare(cluster, hosts=3, more=impatient)
    options = with_checkpoints(cluster)
    (three.root / "tmp" / cluster.root.name / "step").write_text("1")
    cluster.set(lease_time=20)
    # The second rank hangs in its third step, as if it waited for the first one.
    going = start(cluster, "--restarts=1", "--set=fault=hang_once", "--set=step_s=0.3", *options)
    one.link(up=False)
    assert going.wait() == 0, going.text
    reported_once(going.text, r"h1 is left out of the next start: .*; the ranks of the other hosts have waited for \d+")
    assert [host["name"] for host in cluster.round_json("alpha*")["hosts"]] == ["h2", "h3"]
    one.link(up=True)
    until(lambda: not ranks(one), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([two, three])


def test_a_needed_host_is_awaited_and_then_the_training_goes_on_without_it(cluster: ClusterToy) -> None:
    one, two = prepare(cluster, hosts=2)
    cluster.set(lease_time=2, restart_wait=8, fewest_hosts=1)
    going = start(
        cluster, "--restarts=2", "--set=step_s=0.3",
        "--set=learning_rate=0.025", "--set=max_steps=40", *with_checkpoints(cluster),
    )  # fmt: skip
    kill_agent(two, with_reaper=True)
    going.wait_for(lambda: "restart 1 of 2" in going.text, "restart 1")
    going.wait_for(lambda: cluster.trains(one) and cluster.trains(two), "training on both hosts")
    two.freeze()
    assert going.wait() == 0, going.text
    reported_once(going.text, "h2 is used again: it passes the preflight")
    reported_once(going.text, r"waits for hosts, at most \d s: needs 2 hosts, 1 available: h1; h2 is left out: h2 .*")
    reported_once(going.text, "asks for 1 of 2 hosts: .*")
    (path,) = cluster.toy.runs[-1].glob("alpha*/round1/outcome.json")
    outcome = json.loads(path.read_text())
    assert (outcome["nnodes"], outcome["hosts"]) == (1, ["h1"])
    assert [(start["kind"], start["host"]) for start in outcome["starts"]] == [
        ("agent", "h2"), ("lost", "h2"), ("", None),
    ]  # fmt: skip
    steps = {step["step"]: step["samples"] for step in outcome["steps"]}
    assert steps == {step: step * steps[1] for step in range(1, 33)}, "as many samples in a step"
    assert "on 1 host instead of 2, with other random numbers (dropout)" in " ".join(outcome["warnings"])
    assert json.loads(path.with_name("case.json").read_text())["config"]["gradient_accumulation_steps"] == 2
    two.thaw()
    until(lambda: not ranks(two), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one])


# -- --drill: each fault strikes, and the figures are those of the logs --------------------------------------


DRILL = ("--restarts=2", "--drill=rank,host,link", "--drill-here", "--set=step_s=0.05")
BRIEF = """
from pytest_flagperf.engines.agents import drill
drill.HOST_AWAY_S, drill.LINK_CUT_S = 4.0, 4.0
"""


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_text())
    return body


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
    struck = [one for start in starts for one in read(start / "round.json")["drill"]]
    outcome = read(case / "round1" / "outcome.json")
    assert [fault["kind"] for fault in struck] == ["rank", "host", "link"]
    assert [start["kind"] for start in outcome["starts"]] == ["crash", "agent", ""]
    for fault, cost, before, after in zip(struck, outcome["struck"], starts, [*starts[1:], None], strict=True):
        assert f"drill: {cost['what']} at step {fault['step']}" in text
        assert cost["noticed_s"] == pytest.approx((fault["noticed_ms"] - fault["struck_ms"]) / 1000)
        if after is None:
            assert (cost["started_s"], cost["trains_s"], cost["steps_repeated"]) == (None, None, 0)
            continue
        begun_ms, first = read(after / "round.json")["started_ms"], logged(after, events.STEP_BEGIN)[0]
        last = logged(before, events.STEP_END)[-1]
        assert cost["started_s"] == pytest.approx((begun_ms - fault["struck_ms"]) / 1000, abs=0.001)
        assert cost["trains_s"] == pytest.approx((first.time_ms - fault["struck_ms"]) / 1000, abs=0.1)
        assert cost["steps_repeated"] == last.value["step"] - first.value["step"] + 1
    values = {figure["name"]: figure["value"] for figure in outcome["metrics"]}
    lost_s = sum(outcome["lost_s"].values())
    assert values["goodput"] == pytest.approx(1 - lost_s / (lost_s + values["raw_train_time"]))
    assert_nothing_left(cluster.hosts)


# -- the replay: a clean process repeats what it reads from the states, and nothing of them stays ------------


def options(cluster: ClusterToy, folder: str = "") -> list[str]:
    """Give a cluster a training that can be repeated; return options for its states in a folder that all hosts see."""
    cluster.toy.suite("alpha", BASE, SHARED_TRAINING)
    (cluster.root / "suites/conftest.py").write_text(SHORT.conftest)
    shared = cluster.lab.shared / cluster.root.name
    shared.mkdir()
    shared.chmod(0o777)
    place = folder or f"/shared/{shared.name}"
    return ["-k", "throughput", "--replay", "--set=step_s=0.05", f"--set=checkpoint_dir={place}"]


def states(cluster: ClusterToy) -> list[str]:
    return [path.name for path in (cluster.lab.shared / cluster.root.name).glob("*.states/*")]


def repeated(cluster: ClusterToy, *arguments: str) -> tuple[str, str]:
    """Run a training that is repeated, and leaves nothing; return what its verdicts got."""
    code, text = cluster.run(*arguments)
    assert_nothing_left(cluster.hosts)
    assert not [*(cluster.lab.shared / cluster.root.name).glob("*.states")]
    [case] = json.loads((cluster.toy.runs[-1] / "results.json").read_text())["cases"]
    got = {verdict["name"]: verdict["got"] for test in case["verdicts"].values() for verdict in test}
    assert code == (got["repeated"] in ("differs", "not repeated")), text
    assert got["repeated"] in cluster.page
    return got["repeated"], got["repeatable"]


def test_a_training_on_two_hosts_is_repeated_unless_its_states_are_damaged(cluster: ClusterToy) -> None:
    arguments = options(cluster)
    assert repeated(cluster, *arguments)[1] == "equal bit by bit"
    differs, by = repeated(cluster, *arguments, "--set=fault=damage")
    assert (differs, by[:10]) == ("differs", "differs by")


def test_an_interrupted_training_leaves_no_states(cluster: ClusterToy) -> None:
    going = cluster.start(*options(cluster))
    going.wait_for(lambda: states(cluster), "a state")
    going.interrupt()
    assert going.wait() == 2
    assert (states(cluster), [*cluster.lab.shared.glob("*/*.states")]) == ([], [])
    assert_nothing_left(cluster.hosts)


def test_the_last_start_is_repeated(cluster: ClusterToy) -> None:
    repeated_steps, equal = repeated(cluster, *options(cluster), "--restarts=1", "--drill=rank", "--drill-here")
    assert (len([*cluster.toy.runs[-1].glob("*/failed1-round1")]), equal) == (1, "equal bit by bit")
    assert int(repeated_steps.split()[2]) > 15, repeated_steps


def test_a_container_has_another_place_for_the_states_than_its_host(cluster: ClusterToy) -> None:
    del cluster.hosts[1:]
    arguments = options(cluster, "/states")
    cluster.use_docker(nodes="1x2")
    mounts = [*cluster.lab.container_options(PYTHON), f"-v /shared/{cluster.root.name}:/states"]
    cluster.set(container_opt=[" ".join(mounts)])
    assert repeated(cluster, *arguments)[1] == "equal bit by bit"
