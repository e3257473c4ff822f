"""Whether a training that ended early is started again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.heartbeat import EVALUATE, TRAIN
from pytest_flagperf.engines.agents.allocation import Blamed, FixedHosts
from pytest_flagperf.engines.agents.standstill import waiting_s
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import silent
from pytest_flagperf.results.tables import store
from pytest_flagperf.running.records import Records
from pytest_flagperf.running.restarts import Ended, reason_to_end
from pytest_flagperf.running.rounds import Rounds
from pytest_flagperf.stored.round_dir import RoundFault

from .recording import write
from .test_starts import FIELDS, FIRST

KILLED = Ended("crash", "rank 1 was killed", 1, "", first_step=1, last_step=120, saved=True)
STUCK = replace(KILLED, kind="hang", saved=False)
RAISED = replace(KILLED, error="RuntimeError")
AT_START = Ended("crash", "rank 0 exited with code 1", 0, "ImportError")


@pytest.mark.parametrize(
    ("starts", "decision"),
    [
        ([KILLED], None),
        ([KILLED, KILLED, KILLED], None),
        ([STUCK, STUCK], None),
        ([RAISED], None),
        ([replace(RAISED, last_step=90), RAISED], None),
        ([KILLED, AT_START], None),
        ([replace(AT_START, error="")], None),
        ([replace(KILLED, kind="interrupted")], "it was interrupted"),
        ([replace(KILLED, kind="cancelled")], "it was cancelled"),
        ([replace(KILLED, error="NonFiniteLoss")], "another start would meet NonFiniteLoss again"),
        ([replace(KILLED, error="CheckpointError")], "another start would meet CheckpointError again"),
        ([RAISED, RAISED], "rank 1 failed twice with RuntimeError after step 120"),
        ([AT_START], "no start reached its first step"),
        ([STUCK, STUCK, STUCK], "3 starts in a row completed no checkpoint"),
    ],
)
def test_a_training_is_started_again_unless_that_would_not_help(starts: list[Ended], decision: str | None) -> None:
    assert reason_to_end(starts, 1) == decision
    assert reason_to_end(starts, 0) == "no restart is left"


def test_a_host_of_faults_is_left_out_while_others_suffice() -> None:
    pool = HostPool(tuple(LocalHost(name) for name in ("h1", "h2", "h3")))
    blamed, watch = Blamed(FixedHosts(pool=pool)), silent()
    blamed.begin(Path("round1"))
    blamed.leave_out(RoundFault("crash", "h1", 1, "rank 1 was killed"), 2, watch)
    assert pool.excluded == {}
    blamed.leave_out(RoundFault("lost", "h2", None, "h2 is lost"), 2, watch)
    assert pool.excluded == {"h2": "h2 is lost"}
    blamed.begin(Path("round1"))
    blamed.leave_out(RoundFault("crash", "h1", 1, "rank 1 was killed"), 2, watch)
    assert pool.excluded == {"h2": "h2 is lost"}, "h1 is needed"
    blamed.begin(Path("round2"))
    assert pool.excluded == {}
    blamed.leave_out(RoundFault("hang", "h3", 1, "rank 1 hangs"), 2, watch)
    blamed.leave_out(RoundFault("crash", "h3", 1, "rank 1 was killed"), 2, watch)
    assert pool.excluded == {"h3": "rank 1 was killed"}
    blamed.leave_out(RoundFault("agent", "", None, "no host"), 2, watch)


def test_a_lost_host_is_gone_if_the_ranks_of_all_others_wait_within_the_training() -> None:
    def host(name: str, **its: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"name": name, "started": True, "over": False, "gone": None, "lost": None, **its})

    def waiting(*hosts: SimpleNamespace, **beats: tuple[int, int, float]) -> float:
        for one in hosts:
            step, phase, idle_s = beats.get(one.name, (0, 0, 0.0))
            one.beats = {"0": {"step": step, "phase": phase, "idle_s": idle_s}} if one.name in beats else {}
        agents: Any = SimpleNamespace(all=hosts)
        return waiting_s(agents)

    lost, two, three = host("h1", lost="cut"), host("h2"), host("h3")
    assert waiting(lost, two, three, h1=(7, TRAIN, 0.1), h2=(7, TRAIN, 50.0), h3=(7, TRAIN, 60.0)) == 50.0
    assert waiting(lost, two, three, h2=(7, TRAIN, 1.0), h3=(7, TRAIN, 60.0)) == 1.0, "one of them goes on"
    assert waiting(lost, two, three, h2=(8, TRAIN, 1.0), h3=(7, TRAIN, 60.0)) == 60.0, "the one that is behind waits"
    assert waiting(lost, two, three, h2=(7, EVALUATE, 50.0), h3=(7, TRAIN, 60.0)) == 0.0
    assert waiting(lost, two, three, h2=(0, TRAIN, 50.0), h3=(0, TRAIN, 60.0)) == 0.0
    assert waiting(lost, two, three, h3=(7, TRAIN, 60.0)) == 0.0, "h2 has told nothing"
    assert waiting(host("h1"), two, three, h1=(7, TRAIN, 60.0), h2=(7, TRAIN, 60.0), h3=(7, TRAIN, 60.0)) == 0.0
    assert waiting(host("h1", lost="cut", gone="cut"), two, h2=(7, TRAIN, 60.0)) == 0.0
    assert waiting(lost) == 0.0


def test_the_last_start_is_the_result_if_no_other_one_can_begin(tmp_path: Path) -> None:
    folder, left, given_back = tmp_path / "run" / "case" / "round1", [FIRST], list[str]()

    def run(_plan: object, _number: int, directory: Path, _watch: object) -> Callable[[], None]:
        assert directory == folder
        assert not given_back, "the next start needs the hosts"
        if not left:
            raise Problems(["needs 2 hosts, 1 available"])
        write(left.pop(), directory)
        return lambda: given_back.append("hosts")

    engine: Any = SimpleNamespace(run=run, leave_out=None)
    of_run: Any = SimpleNamespace(path=tmp_path / "run")
    plan: Any = SimpleNamespace(case="toy:pytorch:CPU:1:1:1", config=FIELDS["config"], is_training=True)
    plan.throughput_only = False
    rounds = Rounds(lambda _: plan, engine, of_run, Records(of_run), silent(), restarts=3)
    with pytest.raises(Problems, match="1 available"):
        rounds.run(plan, 1, folder)
    assert given_back == ["hosts"]
    assert [path.name for path in folder.parent.iterdir()] == ["round1"]
    assert store.read_round(folder).failures[0].sentence.endswith("was killed")
