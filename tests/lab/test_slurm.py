"""Runs on a real Slurm: inside a job, with a job for each case, and every fault that can be provoked."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_flagperf.hosts import HostLost, silence
from pytest_flagperf_slurm.host import hosts_of
from pytest_flagperf_slurm.jobs_and_nodes import read_job
from tests.helpers.waiting import until
from tests.hosts.test_stream import DEAF, talk
from tests.lab.lab import PYTHON, Lab
from tests.lab.needs import SLURM, SYSTEM_PATH, missing_programs, require
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.lab.slurm import Slurm
from tests.lab.test_replays import options, repeated
from tests.lab.test_restarts import with_checkpoints
from tests.plugin.conftest import Going, Toy, ignore_other_load


@pytest.fixture(scope="module")
def slurm(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """One Slurm on four hosts, for all tests of this module."""
    require(request.config, missing_programs(SLURM))
    with Slurm(lab, lab.hosts(4, fresh=True)) as started:
        yield started


@dataclass
class SlurmToy(ClusterToy):
    """A toy tree whose runs use the lab's Slurm."""

    slurm: Slurm | None = None

    def settings(self, *_: object, slurm: str = "", **more: Any) -> None:
        """Write flagperf.toml: the text of its table [slurm], and options by their names in Python."""
        (self.root / "flagperf.toml").write_text(f"[slurm]\n{slurm}\n")
        self.set(**{"cluster": "slurm", "runtime": "host", "nodes": "2x1", "lease": "device", **self.always, **more})

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Going:
        assert self.slurm is not None
        path = f"{PYTHON.parent}:{SYSTEM_PATH}"
        return super().start(*arguments, env={"SLURM_CONF": str(self.slurm.conf), "PATH": path, **(env or {})})


@contextmanager
def slurm_toy(
    slurm: Slurm, lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, **always: Any
) -> Iterator[SlurmToy]:
    """A toy tree with the settings ``always``; nothing is left on the hosts after it."""
    ignore_other_load(monkeypatch)
    for name in ("FLAGPERF_CACHE", "FLAGPERF_LEASES", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    tree = Toy(pytester)
    tree.suite("alpha")
    made = SlurmToy(tree, lab, list(slurm.hosts), slurm=slurm, always=always)
    made.settings()
    yield made
    made.toy.end()
    try:
        slurm.wait_until_idle()
        assert_nothing_left(slurm.hosts)
    finally:
        slurm.recover()


@pytest.fixture
def toy(slurm: Slurm, lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmToy]:
    with slurm_toy(slurm, lab, pytester, monkeypatch) as made:
        yield made


@dataclass(frozen=True)
class Started:
    """A run that trains, with the number and the only node of its job."""

    going: Going
    job: str
    node: str


def started_beside(toy: SlurmToy, slurm: Slurm, step_s: float, select: str = "converges") -> Started:
    """Start a run of one node, beside others."""
    before = slurm.nodes_of_jobs()
    going = toy.start("-k", select, f"--set=step_s={step_s}", f"--reports=reports{len(toy.toy.going)}")
    going.wait_for(lambda: slurm.nodes_of_jobs().keys() > before.keys(), "a job")
    ((job, node),) = slurm.nodes_of_jobs().items() - before.items()
    (host,) = (host for host in slurm.hosts if host.name == node)
    going.wait_for(lambda: toy.trains(host, "TRAIN_START"), "training", 40)
    return Started(going, job, node)


def test_every_end_of_a_job_is_named(toy: SlurmToy, slurm: Slurm) -> None:
    """All at once, because Slurm looks at time limits only every half minute."""
    toy.settings(slurm='options = ["--requeue"]', nodes="1x1", lease="host")
    requeued = started_beside(toy, slurm, step_s=5)
    toy.settings(nodes="1x1", lease="host")
    cancelled, down, too_long = (started_beside(toy, slurm, step_s=5) for _ in range(3))
    slurm.command("scontrol", "update", f"jobid={too_long.job}", "timelimit=0")
    slurm.command("scontrol", "requeue", requeued.job)
    slurm.command("scancel", cancelled.job)
    slurm.command("scontrol", "update", f"node={down.node}", "state=down", "reason=bad disk")
    for run, end in (
        (requeued, "was requeued: restart 1, now PENDING"),
        (cancelled, "was cancelled (scancel)"),
        (down, "ended because a node went down"),
        (too_long, "reached its time limit"),
    ):
        assert run.going.wait() == 1, run.going.text
        assert f"round 1: job {run.job} on {run.node} {end}" in run.going.text


def test_lost_nodes_and_controllers(toy: SlurmToy, slurm: Slurm) -> None:
    """All at once, because a node is lost only after some seconds."""
    hosts = {host.name: host for host in slurm.hosts}
    options = {"slurm": 'options = ["--exclude=h1,h4"]', "nodes": "1x1", "lease": "host"}
    toy.toy.suite("beta")  # the next case of the run whose node is lost
    toy.settings(**{**options, "slurm": 'options = ["--nodelist=h4"]'})
    lost = started_beside(toy, slurm, step_s=5)
    toy.settings(**options)
    cut = started_beside(toy, slurm, step_s=0.7, select="converges and alpha")
    hosts[cut.node].link(up=False)
    hosts[lost.node].link(up=False)
    toy.settings(**options, lease_time=2)
    alone = started_beside(toy, slurm, step_s=5)
    alone.going.kill()
    assert alone.job in slurm.queue

    cut.going.wait_for(lambda: f"{cut.node} is lost" in cut.going.text, "the loss")
    hosts[cut.node].link(up=True)
    assert cut.going.wait() == 0, cut.going.text
    assert f"{cut.node} is back" in cut.going.text

    lost.going.wait_for(lambda: f"{lost.node} is lost" in lost.going.text, "the loss")
    # By itself slurmctld needs half a minute to notice.
    slurm.command("scontrol", "update", f"node={lost.node}", "state=down", "reason=no power")
    lost.going.wait_for(lambda: "beta:plain:CPU:1:1:1 waits: job" in lost.going.text, "the next case", 60)
    hosts[lost.node].link(up=True)
    lost.going.wait_for(lambda: "the logs of h4 were fetched late" in lost.going.text, "the logs, in the next job", 90)
    lost.going.interrupt()
    assert lost.going.wait() == 2
    assert f"{lost.node} is lost ({lost.node}: job {lost.job}: the connection is lost: no" in lost.going.text
    assert f"job {lost.job} on {lost.node} ended because a node went down: {lost.node} is DOWN" in lost.going.text

    until(lambda: slurm.queue == [], "the end of the job of the dead controller", 30)
    slurm.wait_until_idle()
    for host in slurm.hosts:  # its logs wait for --resume
        host.run(["sh", "-c", "rm -rf /tmp/pytest-flagperf-0/rounds/*"])
    assert_nothing_left(slurm.hosts)  # slurmd ends a lost job's steps some time after its node is back


def test_a_training_goes_on_in_its_job_on_a_spare_node(toy: SlurmToy, slurm: Slurm) -> None:
    toy.settings(slurm="spares = 1")
    going = toy.start("-k", "converges", "--restarts=2", "--set=step_s=0.3", *with_checkpoints(toy))
    going.wait_for(lambda: toy.trains(slurm.hosts[1]), "training", 40)
    (job,) = slurm.queue
    steps = slurm.command("squeue", "--steps", "--noheader", "--format=%i").split()
    assert [step for step in steps if not step.endswith("batch")] == [f"{job}.0"], "one srun for all nodes"
    slurm.update(slurm.hosts[1], state="down", reason="bad disk")
    assert going.wait() == 0, going.text
    assert f"job {job} on h1, h2, h3 lost a node: h2 is " in going.text
    assert going.text.count("has job") == 1, "no second one"
    outcome = toy.round_json(name="outcome")
    assert outcome["hosts"] == ["h1", "h3"]
    assert [(start["kind"], start["host"]) for start in outcome["starts"]] == [("lost", "h2"), ("", None)]
    # The logs and the temporary files of the lost node wait there for a week.
    slurm.hosts[1].run(["sh", "-c", "rm -rf /tmp/pytest-flagperf-0/rounds/* /tmp/pytest-flagperf-0/tmp/*"])


def test_a_training_is_repeated_in_its_job(toy: SlurmToy) -> None:
    assert repeated(toy, *options(toy))[1] == "equal bit by bit"
    assert toy.toy.going[-1].text.count("has job") == 1


def test_too_little_memory_of_a_job_is_named(toy: SlurmToy, slurm: Slurm) -> None:
    toy.settings(slurm='options = ["--mem=500"]', nodes="1x1")
    output = toy.failed("--set=fault=oom")
    assert "rank 0 on h1 was killed by SIGKILL (the memory limit of its control group, 500 MiB)" in output
    assert f"(job {slurm.last_job})" in output
    toy.settings(slurm='options = ["--mem=100"]', nodes="1x1")
    output = toy.failed()
    assert re.search(rf"job {slurm.last_job}: h1: memory: \d+ MiB of 100 MiB free", output)


def test_a_wrong_partition_is_refused_with_the_right_ones(toy: SlurmToy) -> None:
    toy.settings(slurm='partition = "gpus"')
    output = toy.refused()
    assert "Slurm refuses the job: sbatch: invalid partition specified: gpus" in output
    assert "set partition in [slurm] of flagperf.toml; available are main, short (case alpha:plain:CPU:2:1:1)" in output


def test_drained_nodes_are_named_while_a_case_waits(toy: SlurmToy, slurm: Slurm) -> None:
    for host in slurm.hosts[1:]:
        slurm.update(host, state="drain", reason="bad disk")
    going = toy.start("-k", "converges")
    going.wait_for(lambda: "PENDING" in going.text, "the reason")
    for host in slurm.hosts[1:]:
        slurm.update(host, state="resume")
    assert going.wait() == 0, going.text
    assert "h2 is IDLE+DRAIN (bad disk); h3 is IDLE+DRAIN (bad disk)" in going.text


def test_an_interrupted_run_leaves_no_job(toy: SlurmToy, slurm: Slurm) -> None:
    toy.settings(nodes="1x1", lease="host")
    runs = [started_beside(toy, slurm, step_s=5) for _ in range(2)]
    for run, number in zip(runs, (signal.SIGINT, signal.SIGTERM), strict=True):
        run.going.process.send_signal(number)
    for run in runs:
        assert run.going.wait() == 2
    assert slurm.queue == []


def test_an_interrupted_run_cancels_a_waiting_job(toy: SlurmToy, slurm: Slurm) -> None:
    other = slurm.allocate("--nodes=4", "--exclusive")
    going = toy.start("-k", "converges")
    going.wait_for(lambda: "is PENDING" in going.text, "a waiting job")
    assert len(slurm.queue) == 2
    going.interrupt()
    assert going.wait() == 2
    assert slurm.queue == [other]
    slurm.command("scancel", other)


def test_a_killed_run_is_resumed_in_its_job(toy: SlurmToy, slurm: Slurm) -> None:
    toy.settings(nodes="1x1")
    run = started_beside(toy, slurm, step_s=0.3)
    run.going.kill()
    code, output = toy.run("-k", "converges", "--resume", str(next(toy.root.glob("reports0/run*"))))
    assert code == 0, output
    assert "resuming it" in output
    assert "has job" not in output  # no second one


def test_a_case_uses_only_the_devices_of_its_job(toy: SlurmToy, slurm: Slurm) -> None:
    toy.use_nvidia(nodes="1x2")
    other = slurm.allocate("--nodes=1", "--nodelist=h1", "--gres=gpu:3")
    number = slurm.allocate("--nodes=1", "--nodelist=h1", "--gres=gpu:2")
    code, output = toy.run("-k", "converges", env={"SLURM_JOB_ID": number})
    assert code == 0, output
    assert toy.round_json(name="plan")["hosts"][0]["devices"] == [3, 4]
    code, output = toy.run("-k", "converges", "--nodes=1x4", env={"SLURM_JOB_ID": number})
    assert code == 4
    assert f"h1: devices: 2 available from job {number}, 4 needed" in output
    for job in (other, number):
        slurm.command("scancel", job)


@pytest.mark.parametrize("nodes", [1, 2], ids=["own srun", "one srun"])
@pytest.mark.parametrize("program", [["yes", "{}"], [str(PYTHON), "-c", DEAF]], ids=["from the node", "to the node"])
def test_a_frozen_node_is_lost_while_data_are_under_way(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, program: list[str], nodes: int
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setattr(silence, "LINK_S", 4.0)
    number = slurm.allocate(f"--nodes={nodes}")
    job = read_job(number)
    node = next(host for host in slurm.hosts if host.name == job.nodes[-1])
    hosts = hosts_of(job, str(PYTHON), own=False, report=[])
    try:
        channel = hosts[-1].open(program)
        assert {host.run(["hostname"], timeout_s=30).code for host in hosts} == {0}
        node.freeze()
        with pytest.raises(HostLost, match=f"{node.name}: job {number}: the connection is lost: no sign of life for"):
            talk(channel, sends=DEAF in program)
        assert [host.run(["true"], timeout_s=30).code for host in hosts[:-1]] == [0] * (nodes - 1), "the other one"
    finally:
        node.thaw()
        for host in hosts:
            host.close()
        slurm.command("scancel", number)
        slurm.recover()
