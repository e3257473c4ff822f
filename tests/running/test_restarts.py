"""Whether a training that ended early is started again."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.heartbeat import CHECKPOINT, EVALUATE, TRAIN
from flagperf_driver.node.logs.ranklog import LogTotals, RankLog
from pytest_flagperf.case import Case, Shape
from pytest_flagperf.engines.agents import agents
from pytest_flagperf.engines.agents.allocation import Blamed, FixedHosts
from pytest_flagperf.engines.agents.standstill import waiting_s
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.plan import plan_on_fewer_hosts
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.results.measured.starts import StartFiles
from pytest_flagperf.results.tables import store
from pytest_flagperf.running import restarts
from pytest_flagperf.running.records import Records
from pytest_flagperf.running.restarts import Restarts, ended_starts, reason_to_end
from pytest_flagperf.running.rounds import Rounds
from pytest_flagperf.stored import layout
from pytest_flagperf.stored.round_dir import RoundFault, RoundRecord
from tests.helpers.recording import write
from tests.helpers.rounds import tiny_plan
from tests.results.measured.test_starts import FIELDS, FIRST
from tests.results.measured.test_starts import KILLED as KILLED_AT


def ended(kind: str = "crash", error: str = "", rank: int = 1, *, step: int = 120, checkpoints: int = 1) -> StartFiles:
    log = RankLog(0, first_step=1 if step else None, checkpoints=checkpoints, totals=LogTotals(step=step))
    return StartFiles("round1", RoundRecord("failed", RoundFault(kind, rank=rank)), log, error=error)


KILLED = ended()
STUCK = ended("hang", checkpoints=0)
RAISED = ended(error="RuntimeError")
AT_START = ended(error="ImportError", rank=0, step=0, checkpoints=0)


@pytest.mark.parametrize(
    ("starts", "decision"),
    [
        ([KILLED, KILLED, KILLED], None),
        ([STUCK, STUCK], None),
        ([RAISED], None),
        ([ended(error="RuntimeError", step=90), RAISED], None),
        ([KILLED, AT_START], None),
        ([replace(AT_START, error="")], None),
        ([ended("interrupted")], "it was interrupted"),
        ([ended("cancelled")], "it was cancelled"),
        ([replace(KILLED, error="NonFiniteLoss")], "another start would meet NonFiniteLoss again"),
        ([replace(KILLED, error="CheckpointError")], "another start would meet CheckpointError again"),
        ([RAISED, RAISED], "rank 1 failed twice with RuntimeError after step 120"),
        ([AT_START], "no start reached its first step"),
        ([STUCK, STUCK, STUCK], "3 starts in a row completed no checkpoint"),
    ],
)
def test_a_training_is_started_again_unless_that_would_not_help(starts: list[StartFiles], decision: str | None) -> None:
    done = len(starts) - 1
    assert reason_to_end(starts, 3, done) == decision
    assert reason_to_end(starts, done, done) == "no restart is left"


def test_starts_before_resume_do_not_count_as_starts_without_a_checkpoint() -> None:
    assert [reason_to_end([STUCK] * 4, 9, done) is None for done in range(4)] == [True, True, False, False]


def test_a_start_whose_controller_died_counts_with_the_steps_of_its_logs(tmp_path: Path) -> None:
    folder = write(FIRST, tmp_path / "round1")
    (folder / layout.RECORD).unlink()
    (start,) = ended_starts(folder)
    assert (start.fault.kind, start.first_step, start.last_step) == ("no_end", 1, KILLED_AT)
    assert reason_to_end([start, AT_START], 3, 0) is None


def test_a_host_of_faults_is_left_out_while_others_suffice(notes: list[str]) -> None:
    pool = HostPool(tuple(LocalHost(name) for name in ("h1", "h2", "h3")))
    blamed = Blamed(FixedHosts(pool=pool))
    blamed.begin(Path("round1"))
    blamed.leave_out(RoundFault("crash", "h1", 1, "rank 1 was killed"), 2)
    assert pool.excluded == {}
    blamed.leave_out(RoundFault("lost", "h2", None, "h2 is lost"), 2)
    assert pool.excluded == {"h2": "h2 is lost"}
    blamed.begin(Path("round1"))
    blamed.leave_out(RoundFault("crash", "h1", 1, "rank 1 was killed"), 2)
    assert pool.excluded == {"h2": "h2 is lost"}, "h1 is needed"
    blamed.begin(Path("round2"))
    assert pool.excluded == {}
    blamed.leave_out(RoundFault("hang", "h3", 1, "rank 1 hangs"), 2)
    blamed.leave_out(RoundFault("crash", "h3", 1, "rank 1 was killed"), 2)
    assert pool.excluded == {"h3": "rank 1 was killed"}
    blamed.leave_out(RoundFault("agent", "", None, "no host"), 2)
    assert [host.name for host in blamed.hosts] == ["h3"]
    blamed.leave_out(RoundFault("lost", "h1", None, "h1 is lost"), 2)
    assert [host.name for host in blamed.hosts] == ["h1", "h3"]
    assert notes[-2:] == [
        "h3 is left out of the next start: rank 1 was killed\n",
        "h1 is needed, and must pass the preflight before the next start: h1 is lost\n",
    ]


def test_a_lost_host_is_gone_if_the_ranks_of_all_others_wait_within_the_training() -> None:
    def host(name: str, **its: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"name": name, "is_started": True, "over": False, "gone": None, "lost": None, **its})

    def waiting(*hosts: SimpleNamespace, **beats: tuple[int, int, float]) -> float:
        for one in hosts:
            step, phase, idle_s = beats.get(one.name, (0, 0, 0.0))
            beat = {"0": {"step": step, "phase": phase, "idle_s": idle_s}} if one.name in beats else {}
            one.started = SimpleNamespace(beats=beat)
        agents: Any = SimpleNamespace(all=hosts)
        return waiting_s(agents)

    lost, two, three = host("h1", lost="cut"), host("h2"), host("h3")
    assert waiting(lost, two, three, h1=(7, TRAIN, 0.1), h2=(7, TRAIN, 50.0), h3=(7, TRAIN, 60.0)) == 50.0
    assert waiting(lost, two, three, h2=(7, TRAIN, 1.0), h3=(7, TRAIN, 60.0)) == 1.0, "one of them goes on"
    assert waiting(lost, two, three, h2=(8, TRAIN, 1.0), h3=(7, TRAIN, 60.0)) == 60.0, "the rank that is behind waits"
    assert waiting(lost, two, three, h2=(7, EVALUATE, 50.0), h3=(7, TRAIN, 60.0)) == 0.0
    assert waiting(lost, two, three, h2=(7, CHECKPOINT, 50.0), h3=(7, TRAIN, 60.0)) == 0.0
    assert waiting(lost, two, three, h2=(0, TRAIN, 50.0), h3=(0, TRAIN, 60.0)) == 0.0
    assert waiting(lost, two, three, h3=(7, TRAIN, 60.0)) == 0.0, "no beat of h2"
    assert waiting(host("h1"), two, three, h1=(7, TRAIN, 60.0), h2=(7, TRAIN, 60.0), h3=(7, TRAIN, 60.0)) == 0.0
    assert waiting(host("h1", lost="cut", gone="cut"), two, h2=(7, TRAIN, 60.0)) == 0.0
    assert waiting(lost) == 0.0


def test_the_last_start_is_the_result_if_no_other_can_begin(tmp_path: Path, notes: list[str]) -> None:
    folder, left, given_back = tmp_path / "run" / "case" / "round1", [FIRST], list[str]()
    limits: list[float | None] = []

    def run(plan: Any, _number: int, directory: Path, wait_s: float | None) -> Callable[[], None]:
        limits.append(wait_s)
        assert directory == folder
        assert not given_back, "the next start needs the hosts"
        if not left:
            raise Problems([f"case {plan.case}: needs 2 hosts, 1 available"])
        write(left.pop(), directory)
        return lambda: given_back.append("hosts")

    engine: Any = SimpleNamespace(run=run, leave_out=None)
    of_run: Any = SimpleNamespace(path=tmp_path / "run")
    plan: Any = SimpleNamespace(
        case=Case.parse("toy:pytorch:CPU:1:1:1"), config=FIELDS["config"], throughput_only=False, saves_states=False
    )
    rounds = Rounds(lambda _: plan, engine, of_run, Records(of_run), Restarts(3))
    assert rounds.run(plan, 1, folder).failures[0].sentence.endswith("was killed")
    assert "toy:pytorch:CPU:1:1:1 round 1: not started again: needs 2 hosts, 1 available\n" in notes
    assert (given_back, limits) == (["hosts"], [None, 0.0])
    assert [path.name for path in folder.parent.iterdir()] == ["round1"]
    assert store.read_round(folder).failures[0].sentence.endswith("was killed")


def test_the_states_of_a_round_that_a_killed_worker_left_are_removed(tmp_path: Path) -> None:
    case, of_run, removed = Case.parse("toy:pytorch:CPU:1:1:2"), tmp_path / "run", list[Path]()
    write(FIRST, folder := of_run / case.folder / "round1")
    (folder / layout.RECORD).unlink()
    engine: Any = SimpleNamespace(resume=lambda *_: True, end_replay=lambda *words: removed.append(words[-1]))
    plan = replace(tiny_plan(config={"checkpoint_dir": "/kept"}), replay={"states": ""})
    begun, never = (SimpleNamespace(case=one, rounds=(1, 2)) for one in (case, Case.parse("other:pytorch:CPU:1:1:2")))

    def plan_of(selected: Any) -> Any:
        assert selected is begun, "the plan of a case that was not started may be invalid"
        return plan

    directory: Any = SimpleNamespace(path=of_run)
    selected: Any = [never, begun]
    Rounds(plan_of, engine, directory, Records(directory), Restarts(0)).end_orphaned_rounds(selected)
    assert removed == [folder]


def test_a_start_waits_for_its_hosts_and_then_takes_fewer(monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> None:
    now = [0.0]
    clock: Any = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(restarts, "time", clock)
    case = Case.parse("toy:pytorch:CPU:4:1:1")
    plans: list[Any] = [SimpleNamespace(case=case, nnodes=count) for count in (0, 3, 2)]
    left: list[float | None] = []

    def started(usable: Callable[[], int], wait_s: float | None) -> int:
        now[0] = 0.0
        notes.clear()
        left.clear()

        def run(plan: Any, left_s: float | None) -> int:
            left.append(left_s)
            if usable() < (needed := plan.nnodes or 4):
                raise MissingHosts([f"needs {needed} hosts, {usable()} available"])
            return int(needed)

        return restarts.run_on_available(plans, wait_s, run, lambda: usable() == 0)

    assert started(lambda: 4 if now[0] > 25 else 3, 60) == 4
    assert (now, left) == ([30.0], [60.0, 60.0, 50.0, 40.0])
    (line,) = notes  # a single time
    assert line == "toy:pytorch:CPU:4:1:1 waits for hosts, at most 60 s: needs 4 hosts, 3 available\n"
    assert started(lambda: 2, 60) == 2
    assert now == [60.0]
    assert notes[1:] == [
        f"toy:pytorch:CPU:4:1:1 asks for {count} of 4 hosts: needs {count + 1} hosts, 2 available\n" for count in (3, 2)
    ]
    assert started(lambda: 3, 0) == 3
    assert left == [0.0, 0.0]
    assert started(lambda: 4, None) == 4
    assert left == [None], "a first start"
    with pytest.raises(Problems, match="needs 4 hosts, 1 available"):
        started(lambda: 1, 0)
    with pytest.raises(Problems, match="needs 4 hosts, 0 available"):
        started(lambda: 0, 60)
    assert now == [0.0], "a start that began is not tried again"

    def broken() -> int:
        raise Problems(["no image"])

    with pytest.raises(Problems, match="no image"):
        started(broken, 60)
    assert (now, notes) == ([0.0], []), "only hosts are awaited"
    del plans[1:]
    with pytest.raises(Problems, match="needs 4 hosts, 3 available"):
        started(lambda: 3, 0)


@pytest.mark.parametrize(
    ("nnodes", "batch", "parts", "parallel", "expected"),
    [
        (2, 6, 1, "ddp", (6, 2)),
        (3, 6, 1, "ddp", (4, 2)),
        (3, 8, 3, "fsdp", (8, 4)),
        (2, 6, 1, {"shard": 2, "tensor": 2}, (6, 2)),
        (3, 5, 1, "ddp", None),
        (3, 6, 1, {"shard": 4, "tensor": 2}, None),
    ],
)
def test_fewer_hosts_have_as_many_samples_in_a_step(
    nnodes: int, batch: int, parts: int, parallel: object, expected: tuple[int, int] | None
) -> None:
    """Of a case with four hosts of two ranks."""
    own = {"train_batch_size": batch, "gradient_accumulation_steps": parts, "parallel": parallel}
    whole = tiny_plan(2, 4, config=own)
    smaller = plan_on_fewer_hosts(whole, nnodes)
    if smaller is None or expected is None:
        assert smaller is None is expected
        return
    config = smaller.config
    assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == expected
    assert math.prod(expected) * smaller.data_ranks == batch * parts * whole.data_ranks
    assert (smaller.case, smaller.shape, smaller.to_json()["nnodes"]) == (whole.case, Shape(nnodes, 2), nnodes)


def test_other_runs_lease_no_device_between_two_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path))
    hosts: list[Any] = [
        SimpleNamespace(name=name, address=name.partition(":")[0]) for name in ("h1:22", "h2:22", "h2:2222")
    ]
    pool = HostPool((hosts[0],))
    with agents._unreserved(hosts) as free:
        assert free == hosts
    with agents.reserved(pool), agents.reserved(pool), agents._unreserved(hosts) as free:
        assert free == hosts[1:]
