"""A training of --restarts on lab hosts: one fault after the other, with spare hosts."""

import json

import pytest

from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.lab.test_faults_containers import kill_agent
from tests.lab.test_faults_links import prepare, ranks, reported_once, start
from tests.waiting import until


@pytest.mark.slow
def test_a_training_goes_on_after_each_fault_and_leaves_nothing(cluster: ClusterToy) -> None:
    one, two, three, four = prepare(cluster, hosts=4)
    for host in cluster.hosts:
        # Each host has its own: only the first rank of the toy reads and writes checkpoints.
        (host.root / "tmp/checkpoints").mkdir(mode=0o777)
        (host.root / "tmp/checkpoints").chmod(0o777)
    cluster.set(lease_time=2)
    going = start(
        cluster, "--restarts=4", "--set=step_s=0.3", "--set=learning_rate=0.025", "--set=max_steps=40",
        "--set=checkpoint_dir=/tmp/checkpoints", "--set=checkpoint_steps=1",
    )  # fmt: skip

    def restarted(times: int, *hosts: LabHost) -> None:
        going.wait_for(lambda: f"restart {times} of 4" in going.text, f"restart {times}")
        going.wait_for(lambda: all(cluster.trains(host) for host in hosts), "training on all hosts")

    (rank,) = [process.pid for process in two.processes() if "run_pretraining.py" in process.cmdline]
    two.run(["kill", "-9", str(rank)])
    restarted(1, one, two)
    kill_agent(two, with_reaper=True)
    restarted(2, one, three)
    three.freeze()
    restarted(3, one, four)
    assert going.wait() == 0, going.text
    reported_once(going.text, "h2 is left out of the next start: .*")
    reported_once(going.text, "h3 is left out of the next start: h3 is lost and did not come back.*")
    (path,) = cluster.toy.runs[-1].glob("alpha*/round1/outcome.json")
    outcome = json.loads(path.read_text())
    assert [(start["kind"], start["host"]) for start in outcome["starts"]] == [
        ("crash", "h2"), ("agent", "h2"), ("lost", "h3"), ("", None),
    ]  # fmt: skip
    assert outcome["hosts"] == ["h1", "h4"]
    assert [step["step"] for step in outcome["steps"]] == list(range(1, 33))
    values = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert values["restarts"] == 3
    three.thaw()
    until(lambda: not ranks(three), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one, two, four])
