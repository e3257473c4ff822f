"""A training of --restarts on lab hosts: a lost host is given up, and a needed one is awaited."""

from tests.helpers.waiting import until
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.lab.test_faults_containers import kill_agent
from tests.lab.test_faults_links import prepare, ranks, reported_once, start


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
    outcome = cluster.round_json(name="outcome")
    assert (outcome["nnodes"], outcome["hosts"]) == (1, ["h1"])
    assert [(start["kind"], start["host"]) for start in outcome["starts"]] == [
        ("agent", "h2"), ("lost", "h2"), ("", None),
    ]  # fmt: skip
    steps = {step["step"]: step["samples"] for step in outcome["steps"]}
    assert steps == {step: step * steps[1] for step in range(1, 33)}, "as many samples in a step"
    assert "on 1 host instead of 2, with other random numbers (dropout)" in " ".join(outcome["warnings"])
    assert cluster.round_json(name="case")["config"]["gradient_accumulation_steps"] == 2
    two.thaw()
    until(lambda: not ranks(two), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one])
