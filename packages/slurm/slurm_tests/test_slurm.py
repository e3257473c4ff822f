"""Requests to Slurm, its output and the relay, without a Slurm; tests/lab/test_slurm.py uses a real one."""

import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine
from pytest_flagperf.engines.agents.allocation import LostHosts
from pytest_flagperf.engines.agents.collect import LateLogs
from pytest_flagperf.engines.open_engine import open_engine
from pytest_flagperf.hosts import HostError, HostLost
from pytest_flagperf.hosts.host_pool import HostPool, run_on_each
from pytest_flagperf.hosts.stream import HostStream
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import SettingsError, read_settings
from pytest_flagperf.stored.round_dir import MissingLogs, RoundFault
from pytest_flagperf_slurm import allocation as allocation_module
from pytest_flagperf_slurm import host as slurm_host
from pytest_flagperf_slurm import jobs_and_nodes, one_srun, relay, request
from pytest_flagperf_slurm.allocation import JobPerCase
from pytest_flagperf_slurm.config import SlurmConfig, SlurmConfigError, read_slurm
from pytest_flagperf_slurm.jobs_and_nodes import Job, Node, SlurmError, explain, parse_job, parse_node
from pytest_flagperf_slurm.request import JobRequest
from tests.helpers.processes import kill
from tests.helpers.rounds import Elsewhere, tiny_plan
from tests.helpers.trees import tree, write

# As Slurm 22.05 prints them, shortened.
JOB = (
    "JobId=12 JobName=flagperf UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=1"
    " ExitCode=0:0 TimeLimit=04:00:00 SubmitTime=2026-11-24T22:15:10 Partition=main NodeList=h2 NumNodes=1"
    " JOB_GRES=gpu:3   Nodes=h2 CPU_IDs=0 Mem=0 GRES=gpu:a100:3(IDX:0-1,6) MinCPUsNode=1 Power= "
)
NODE = (
    "NodeName=h2 Arch=x86_64 Gres=gpu:8 NodeAddr=10.77.0.3 NodeHostName=h2 State=IDLE+DRAIN ThreadsPerCore=1"
    " AveWatts=0 ExtSensorsTemp=n/s Reason=bad disk, ask Ann [root@2026-11-24T22:25:00]"
)


def pretend(monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """Let the commands of Slurm exist, and these functions of the allocation answer."""
    for name, answer in {"require_commands": lambda: None, **answers}.items():
        monkeypatch.setattr(allocation_module, name, answer)


def test_a_job_is_read() -> None:
    job = parse_job(JOB)
    assert (job.number, job.state, job.reason, job.nodes, job.restarts) == ("12", "RUNNING", "", ("h2",), 1)
    assert (job.time_limit, job.partition) == ("04:00:00", "main")
    assert job.devices == {"h2": (0, 1, 6)}
    job = parse_job("JobId=3 JobState=PENDING Reason=Resources NodeList=(null)")
    assert (job.reason, job.nodes, job.devices, job.has_ended) == ("Resources", (), {}, False)
    for line in ("", "slurm_load_jobs error: Invalid job id specified", "JobId=3"):
        with pytest.raises(SlurmError, match="unexpected description of a job"):
            parse_job(line)


def test_a_round_of_an_ended_job_is_looked_for_in_this_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = replace(parse_job(JOB), state="NODE_FAIL")
    pretend(monkeypatch, read_job=lambda _: ended)
    allocation = JobPerCase(SlurmConfig(), lambda _: False, 60)
    allocation._job = replace(ended, number="13", state="RUNNING")
    allocation._pool = HostPool((Elsewhere("h1"),))
    (tmp_path / "plan.json").write_text('{"slurm_job": "12"}')
    assert allocation.pool_of(tmp_path) is allocation._pool
    # Without the node, the user learns where the logs are.
    late = LateLogs(allocation.pool_of, LogLimits())
    with pytest.raises(HostError) as error:
        late._fetch_from(tmp_path, MissingLogs("h3", 0, "/tmp/rounds/one", "lost"))
    assert str(error.value).startswith("the run does not have h3 now; they stay there in /tmp/rounds/one for a week")


def test_a_job_that_loses_a_node_is_kept_as_long_as_enough_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("h1", "h2", "h3", "h4")
    before = replace(parse_job(JOB), nodes=names)
    nodes = {name: Node(name, "", ("IDLE",)) for name in names}
    now = [before]
    cancelled: list[str] = []
    pretend(
        monkeypatch, read_job=lambda _: now[-1], wait_until_settled=lambda *_: now[-1], read_nodes=lambda _: nodes,
        cancel=cancelled.append,
    )  # fmt: skip
    monkeypatch.setattr(slurm_host, "read_nodes", lambda _: nodes)
    asked: list[float | None] = []

    def wait_until_it_runs(_number: str, _show: object, wait_s: float | None) -> Job:
        asked.append(wait_s)
        return before

    monkeypatch.setattr(request, "submit", lambda _, wanted: str(wanted.replaces))
    monkeypatch.setattr(request, "wait_until_it_runs", wait_until_it_runs)
    allocation, plan = JobPerCase(SlurmConfig(spares=2), lambda _: False, 60), tiny_plan(nnodes=2)
    assert allocation.obtain(plan)
    assert not allocation.obtain(plan)
    assert allocation.explain() is None
    nodes["h2"] = Node("h2", "", ("DOWN",), "no power")
    assert allocation.explain() == LostHosts(
        "job 12 on h1, h2, h3, h4 lost a node: h2 is DOWN (no power)", hosts=("h2",)
    )
    assert allocation.explain() is None, "the loss was reported already"
    # Slurm took it from the job; it is back, but not in the job.
    now.append(replace(before, nodes=("h1", "h3", "h4")))
    nodes["h2"] = Node("h2", "", ("IDLE",))
    assert not allocation.obtain(plan)
    assert [host.name for host in allocation.pool.usable] == ["h1", "h3", "h4"]
    now.append(replace(before, nodes=("h1",)))
    assert not allocation.obtain(plan, 0.0), "a start that must not wait uses the rest of the job"
    assert cancelled == []
    assert allocation.obtain(plan, 9.0), "one node is not enough"
    assert cancelled == ["False"], "the first job takes no other's place"
    assert len(allocation.pool.usable) == 4
    for state in ("CANCELLED", "TIMEOUT", "NODE_FAIL"):
        now.append(replace(before, state=state))
        loss = allocation.explain()
        assert loss is not None
        assert (loss.kind == "cancelled", loss.hosts) == (state == "CANCELLED", ()), "only the user's end is final"
    assert allocation.obtain(plan, 0.0)
    assert (cancelled, asked) == (["False", "True"], [None, 9.0, 0.0])


def test_a_job_that_replaces_another_is_awaited_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, states = [0.0], ["PENDING"]
    clock: Any = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(request, "time", clock)
    monkeypatch.setattr(request, "read_job", lambda number: Job(number, states[0], "Resources"))
    monkeypatch.setattr(request, "read_nodes", lambda: {"h2": Node("h2", "", ("DOWN",), "no power")})

    def wait(wait_s: float | None, until: Callable[[], bool] = lambda: False) -> float:
        def show(*_: object) -> None:
            states[0] = "RUNNING" if until() else states[0]

        now[0] = 0.0
        request.wait_until_it_runs("12", show, wait_s)
        return now[0]

    late = "job 12 did not start in time (Resources): h2 is DOWN (no power)"
    for wait_s, least in ((90.0, 90.0), (0.0, 60.0)):
        with pytest.raises(SlurmError, match=re.escape(late)):
            wait(wait_s)
        assert least <= now[0] < least + 5
    assert wait(None, lambda: now[0] > 900) > 900, "a first start waits without limit"
    states[0] = "CONFIGURING"
    assert wait(0.0, lambda: now[0] > 900) > 900, "nodes boot"


def test_a_lost_spare_does_not_hide_the_fault_of_a_round() -> None:
    loss = LostHosts("job 12 lost a node: h3 is DOWN", hosts=("h3",))
    fault = RoundFault("crash", "h1", 0, "rank 0 failed")
    engine: Any = SimpleNamespace(_allocation=SimpleNamespace(explain=lambda: loss))
    explained = AgentsEngine._explained(engine, fault, ["h1", "h2"])
    assert explained == replace(fault, sentence="rank 0 failed (job 12 lost a node: h3 is DOWN)")
    explained = AgentsEngine._explained(engine, fault, ["h1", "h3"])
    assert explained == RoundFault("lost", "h3", None, "job 12 lost a node: h3 is DOWN: rank 0 failed")


def test_a_node_is_read() -> None:
    node = parse_node(NODE)
    assert (node.address, node.is_down, node.is_drained) == ("10.77.0.3", False, True)
    assert str(node) == "h2 is IDLE+DRAIN (bad disk, ask Ann)"
    for state, down in (("DOWN", True), ("DOWN*", True), ("MIXED+NOT_RESPONDING", False)):
        assert parse_node(f"NodeName=h1 State={state}").is_down is down, "without an answer it may come back"


BEFORE = Job("12", "RUNNING", nodes=("h1", "h2"))
UP = {"h2": Node("h2", "", ("IDLE",))}
DOWN = {"h2": Node("h2", "", ("DOWN",), "no power")}


@pytest.mark.parametrize(
    ("state", "more", "nodes", "reason"),
    [
        ("RUNNING", {}, {}, None),
        ("RUNNING", {"nodes": ("h1", "h2")}, UP, None),
        ("RUNNING", {"nodes": ("h1",)}, UP, "lost a node: h2 is IDLE"),
        ("RUNNING", {}, DOWN, "lost a node: h2 is DOWN (no power)"),
        ("CANCELLED", {}, {}, "was cancelled (scancel)"),
        ("TIMEOUT", {"time_limit": "00:30:00"}, {}, "reached its time limit of 00:30:00"),
        ("COMPLETING", {"reason": "TimeLimit", "time_limit": "00:30:00"}, {}, "reached its time limit of 00:30:00"),
        ("NODE_FAIL", {}, DOWN, "ended because a node went down: h2 is DOWN (no power)"),
        ("OUT_OF_MEMORY", {}, {}, "ran out of memory"),
        ("PREEMPTED", {}, {}, "was preempted"),
        ("FAILED", {"exit_code": "3:0"}, {}, "has ended with exit code 3:0"),
        ("PENDING", {"restarts": 1, "reason": "BeginTime"}, {}, "was requeued: restart 1, now PENDING (BeginTime)"),
        ("LATER_STATE", {}, {}, "is LATER_STATE"),
    ],
)
def test_the_end_of_a_job_is_explained(state: str, more: dict[str, Any], nodes: dict[str, Node], reason: str) -> None:
    expected = None if reason is None else f"job 12 on h1, h2 {reason}"
    assert explain(BEFORE, Job("12", state, **more), nodes) == expected


def test_slurm_is_asked_once_for_lost_nodes_and_only_the_one_down_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"n{number}" for number in range(64))
    asked: list[str] = []

    def read_nodes(nodes: tuple[str, ...]) -> dict[str, Node]:
        asked.append(",".join(nodes))
        return {name: Node(name, name, ("DOWN",) if name == "n7" else ("IDLE",), "no power") for name in nodes}

    job = Job("12", "RUNNING", nodes=names)
    monkeypatch.setattr(slurm_host, "read_job", lambda _: job)
    monkeypatch.setattr(slurm_host, "read_nodes", read_nodes)
    state = slurm_host.JobState(job)
    problems = {name: problem for name in names if (problem := state.problem(name))}
    assert [*problems] == ["n7"]
    assert problems["n7"].endswith("lost a node: n7 is DOWN (no power)")
    assert asked == [",".join(names)]
    monkeypatch.setattr(slurm_host, "_ASK_S", 0.0)
    monkeypatch.setattr(slurm_host, "read_job", lambda _: jobs_and_nodes.parse_job("no job"))
    assert state.problem("n7") is None, "Slurm does not answer: the job may still run"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"partitoin": "gpu"}, "slurm.partitoin: unknown setting; did you mean partition or options?"),
        ({"partition": "two words"}, "slurm.partition is 'two words'; expected the name of a partition"),
        ({"spares": -1}, "slurm.spares is -1; expected a number of nodes, 0 or more"),
        ({"time": "soon"}, "slurm.time is 'soon'; expected a time limit"),
        ({"gres": "gpu:a100:8"}, "expected the name of a generic resource"),
        ({"options": "--qos=x"}, "expected a list of options of sbatch"),
        ({"options": ["--qos x", "script.sh"]}, "'script.sh': expected one option in each string"),
        ({"options": ["--nodes=2"]}, "--nodes is set by the harness or by another key of [slurm]; remove it"),
        ({"options": ["-N2"]}, "-N2 is set by the harness"),
    ],
)
def test_problems_of_the_table_are_named(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(SlurmConfigError) as caught:
        read_slurm(table, Path("flagperf.toml"))
    assert problem in str(caught.value)


def test_slurm_is_one_table(tmp_path: Path) -> None:
    for text, problem in (
        ('slurm = "gpu"\n', r"slurm: expected a table, \[slurm\]; got"),
        ("[slurm]\n[engines.slurm]\n", r"\[slurm\] and \[engines.slurm\] are the same table: remove one of them"),
    ):
        (tmp_path / "flagperf.toml").write_text(text)
        with pytest.raises(SettingsError, match=problem):
            read_settings({}, tmp_path)


@pytest.mark.parametrize("option", ["cluster", "engine"])
def test_both_options_open_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    catalog, file = tree(tmp_path), tmp_path / "flagperf.toml"

    def opened(text: str = "") -> Any:
        file.write_text(text)
        return open_engine(read_settings({option: "slurm"}, tmp_path), catalog, tmp_path)

    with pytest.raises(Problems, match="--cluster=slurm: sbatch, scancel, scontrol, sinfo, srun not found on the PATH"):
        opened()
    pretend(monkeypatch)
    assert opened().header() == ["  hosts: of Slurm, one job for each case (--cluster=slurm)"]
    for table in ("slurm", "engines.slurm"):
        engine = opened(f"[{table}]\npartition = 'big'\n[cluster]\nmax_log_entries = 7\n")
        assert engine.header() == [f"  hosts: of Slurm, one job for each case, partition big ({file})"]
        assert (engine.host_count, engine._limits.max_entries) == (None, 7)


def arguments(conf: SlurmConfig, **more: Any) -> list[str]:
    values = {"nnodes": 2, "nproc": 4, "accelerators": True, "exclusive": False, **more}
    return JobRequest("flagperf-1", **values).arguments(conf)


def test_a_job_requests_what_its_case_needs_and_no_command_sees_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    words = arguments(SlurmConfig(partition="big", time="30", gres="gpu:a100"))
    assert {"--nodes=2", "--gres=gpu:a100:4", "--partition=big", "--time=30", "--no-requeue"} <= set(words)
    assert not [word for word in words if word.startswith(("--account", "--exclusive", "--cpus"))]
    assert "--exclusive" in arguments(SlurmConfig(), exclusive=True)
    words = arguments(SlurmConfig(), accelerators=False)
    assert "--cpus-per-task=4" in words
    assert not [word for word in words if word.startswith("--gres")]
    words = arguments(SlurmConfig(options=("--gpus-per-node=8", "--requeue")))
    assert words[-2:] == ["--gpus-per-node=8", "--requeue"]
    assert "--no-kill" not in words
    assert {"--nodes=4", "--no-kill"} <= set(arguments(SlurmConfig(spares=2)))
    assert "--nodes=2-4" in arguments(SlurmConfig(spares=2), replaces=True)
    assert not [word for word in words if word.startswith("--gres")]
    for name in ("SLURM_NTASKS", "SRUN_CPUS_PER_TASK", "SBATCH_PARTITION", "SLURM_CONF", "HOME"):
        monkeypatch.setenv(name, "/1")
    env = jobs_and_nodes.environment()
    assert {"SLURM_CONF", "HOME"} <= env.keys()
    assert not {"SLURM_NTASKS", "SRUN_CPUS_PER_TASK", "SBATCH_PARTITION"} & env.keys()


def test_a_full_queue_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm 22.05 prints this again and again until there is room."""
    full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    for name, command in (("sbatch", f"echo {full} >&2; exec sleep 60"), ("scancel", ":")):
        write(tmp_path, name, f"#!/bin/sh\n{command}\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SlurmError, match=r"sleeping and retrying; the queue accepts no further job now"):
        request.submit(SlurmConfig(), JobRequest("full", 1, 1, accelerators=False, exclusive=False), timeout_s=1)


SQUEUE = """#!/bin/sh
echo "$@" >> asked
case $(wc -l < asked) in
1) exit 1 ;;
2) printf '12.batch\\n12.0\\n' ;;
*) printf '12.batch\\n12.extern\\n' ;;
esac
"""


def test_a_job_does_not_end_while_other_nodes_work_or_slurm_does_not_answer(tmp_path: Path) -> None:
    write(tmp_path, "squeue", SQUEUE).chmod(0o755)
    hold = "import relay; relay.lock_file = lambda _: 'lock'; relay.hold(0.1)"
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(relay.__file__).parent),
        "SLURM_JOB_ID": "12",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    subprocess.run([sys.executable, "-c", hold], cwd=tmp_path, env=env, check=True, timeout=60)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--steps --noheader --format=%i --jobs=12"] * 3


def test_the_words_of_srun_are_its_reason() -> None:
    text = "srun: error: Unable to create step for job 1\nsrun: error: node1 lacks support for cpu binding"
    made = one_srun.srun("h1: job 1", ["sh", "-c", f"echo '{text}' >&2"], dict(os.environ))
    with pytest.raises(HostLost, match=r"h1: job 1: sh: Unable to create step for job 1$"):
        HostStream("h1: job 1", "python3", made, b"", 1.0)


# A double of srun and scontrol; a program on h3 cannot find the machine of srun.
SLURM = """\
import os, subprocess, sys
if sys.argv[1:] == ["show", "config"]:
    print("SrunPortRange           = 42000-42999")
    sys.exit()
(nodes,) = (word.partition("=")[2].split(",") for word in sys.argv if word.startswith("--nodelist="))
open(sys.argv[0] + ".nodes", "a").write(" ".join(nodes) + "\\n")
words = sys.argv[sys.argv.index("/bin/sh"):]
def env(node):
    address = "300.0.0.1" if node == "h3" else "127.0.0.1"
    return {**os.environ, "SLURMD_NODENAME": node, "SLURM_LAUNCH_NODE_IPADDR": address, "SLURM_NTASKS": "9"}
if len(nodes) == 1:
    os.execve(words[0], words, env(nodes[0]))
tasks = [subprocess.Popen(words, stdin=subprocess.PIPE, env=env(node)) for node in nodes]
data = sys.stdin.buffer.read()
for task in tasks:
    task.stdin.write(data)
    task.stdin.close()
for task in tasks:
    task.wait()
"""


def test_one_srun_serves_all_nodes_and_others_those_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("srun", "scontrol"):
        write(tmp_path, name, f"#!{sys.executable}\n{SLURM}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    names = ("h1", "h2", "h3")
    state = slurm_host.JobState(Job("12", "RUNNING", nodes=names))
    hosts = [
        slurm_host.SlurmHost(name, name, sys.executable, state, own=False, report=["SLURM_NTASKS", "SLURMD_NODENAME"])
        for name in names
    ]
    show = ["sh", "-c", "echo $SLURMD_NODENAME; cat"]
    data = random.Random(3).randbytes(300_000)
    pool = HostPool(tuple(hosts))
    try:
        outputs: Any = run_on_each(hosts, lambda host: host.run(show, timeout_s=30, stdin=data).raw)
        assert [outputs[host] for host in hosts] == [name.encode() + b"\n" + data for name in names]
        assert [host.variable("SLURM_NTASKS") for host in hosts] == ["1", "1", "9"]
        assert state._srun is not None
        kill(int(hosts[0].run(["sh", "-c", "echo $PPID"], timeout_s=30).out))
        with pytest.raises(HostLost, match="h1: job 12: the connection is lost: "):
            hosts[0].run(["true"], timeout_s=30)
        monkeypatch.setattr(state, "problem", lambda _: None)
        hosts[0].reconnect()
        assert hosts[0].run(["true"], timeout_s=30).code == 0
        assert hosts[1].run(["true"], timeout_s=30).code == 0
    finally:
        pool.close()
    assert (tmp_path / "srun.nodes").read_text().splitlines() == ["h1 h2 h3", "h3", "h1"]


def test_a_connection_without_the_token_or_for_no_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_srun, "run", lambda _: "SrunPortRange           = 0-0")
    relays = one_srun.OneSrun("job 12", ["sleep", "60"], dict(os.environ), {}, ["h1"])
    try:

        def connect(token: str, node: str) -> socket.socket:
            made = socket.create_connection(relays._listener.getsockname()[:2], 5)
            made.sendall(token.encode() + node.encode().ljust(256))
            return made

        refused = [connect("0" * 64, "h1"), connect(relays._token, "h2")]
        assert [one.recv(1) for one in refused] == [b"", b""]
        relay = connect(relays._token, "h1")
        connection = relays.connection("h1")
        assert connection is not None
        relay.sendall(b"word")
        assert connection.read() == b"word"
        assert relays.connection("h1") is None
        connection.close()
        for each in (*refused, relay):
            each.close()
    finally:
        relays._srun.process.kill()
        relays.close()
