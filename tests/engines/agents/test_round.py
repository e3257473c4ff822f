"""A round records how it ended, names the first fault and leaves no process, whatever happens."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events, perflog
from flagperf_driver.node.deployed_code import module_argv
from flagperf_driver.node.device_lease import holders
from flagperf_driver.node.folder import STATE
from pytest_flagperf.engines.agents.agents import MODULE
from pytest_flagperf.engines.agents.round_messages import Mark, Tracker, time_left
from pytest_flagperf.engines.agents.run_round import only_leased
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.progress import RoundProgress, subscribed
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.stored.round_dir import RoundDir
from tests.helpers.processes import kill
from tests.helpers.rounds import Elsewhere, processes_of, run_tiny, tiny_plan
from tests.helpers.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fresh_cache")]

QUICK = {"step_s": 0.001, "max_steps": 2}


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_a_finished_round_is_recorded_with_its_inputs_and_shown_live(tmp_path: Path) -> None:
    seen: list[RoundProgress] = []
    with subscribed({"progress": lambda progress: seen.append(progress)}):
        end = run_tiny(tmp_path, tiny_plan(config=QUICK))
    assert (end.state, end.fault, end.swept) == ("finished", None, ())
    case, plan, written = (read(tmp_path / "round1" / f"{name}.json") for name in ("case", "plan", "round"))
    assert (written["schema"], written["state"]) == (1, "finished")
    ended_well = {"code": 0, "signal": None, "cause": None}
    ranks = [{"rank": 0, **ended_well}, {"rank": 1, **ended_well}]
    assert written["hosts"] == [{"name": "h0", "noderank": 0, "ranks": ranks}]
    assert written["started_ms"] < written["ended_ms"]
    assert written["seconds"] > 0
    assert (case["round"], case["seed"]) == (1, 42)
    (host,) = plan["hosts"]
    assert (host["name"], host["address"], host["noderank"], host["devices"]) == ("h0", "127.0.0.1", 0, [0, 1])
    assert (host["log_dir"], host["clock_offset_s"]) == (str(tmp_path / "round1" / "h0_noderank0"), 0.0)
    assert [argv[0] for argv in plan["argv"]["h0"]] == [sys.executable] * 2
    assert (tmp_path / "round1" / "h0_noderank0" / "rank1.out.log").is_file()
    assert seen[0].phase == "starting"
    assert sorted({each.step for each in seen}) == [0, 1, 2]
    last = seen[-1]
    assert (last.phase, last.step, last.loss) == ("finished", 2, 0.5)
    assert (last.metric_name, last.metric, last.target, last.throughput) == ("accuracy", 0.9, 0.8, 80.0)


def test_every_rank_repeats_the_token_and_the_seed_of_its_round(tmp_path: Path) -> None:
    tokens = set()
    for number in (1, 2):
        directory = tmp_path / f"round{number}"
        run_tiny(tmp_path, tiny_plan(config=QUICK), number=number, directory=directory)
        plan = read(directory / "plan.json")
        assert plan["seed"] == 41 + number
        tokens.add(plan["token"])
        for log in directory.glob("*/rank*.out.log"):
            with log.open("rb") as stream:
                (init_end,) = perflog.read_records(stream, events=[events.INIT_END])
            assert init_end.value["given"] == {name: plan[name] for name in ("case", "round", "seed", "token")}
        assert measure(directory).failures == ()
    assert len(tokens) == 2


def test_a_round_that_runs_again_continues_its_training_and_another_run_has_its_own(tmp_path: Path) -> None:
    trainings = []
    for run in ("run1", "run1", "run1", "run2"):
        directory = tmp_path / run / "tiny" / "round1"
        if directory.exists():
            RoundDir(directory).move_aside()
        run_tiny(tmp_path, tiny_plan(nproc=1, config=QUICK), directory=directory)
        trainings.append(read(directory / "case.json")["training"])
    first, *again, other = trainings
    assert again == [first] * 2
    assert first.startswith("run1 tiny round1 ")
    assert other != first


def test_a_rank_sees_the_staged_code_and_the_environment_but_not_the_harness(tmp_path: Path) -> None:
    say = (
        "import flagperf_driver\n"
        'print("PATHS", flagperf_driver.__file__, os.environ["PYTHONPATH"], "PYTEST_VERSION" in os.environ)\n'
        'print("CORES", sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])\n'
    )
    run_tiny(tmp_path, tiny_plan(nproc=1, config=QUICK), before=say)
    log = (tmp_path / "round1" / "h0_noderank0" / "rank0.out.log").read_text()
    code = next((tmp_path / "cache" / "code").iterdir())
    assert f"PATHS {code}/flagperf_driver/__init__.py {code}:{code}/suites False" in log
    core = min(os.sched_getaffinity(0))
    assert f"CORES [{core}] 1" in log
    assert read(tmp_path / "round1" / "plan.json")["hosts"][0]["cores"] == [str(core)]


def at_step(action: str, rank: int = 1) -> str:
    return f"def fault(rank, step):\n    if (rank, step) == ({rank}, 2): {action}\n"


def test_the_failed_rank_is_named_and_not_the_rank_that_reports_it(tmp_path: Path) -> None:
    both = (
        "import fcntl\n"
        "def fault(rank, step):\n"
        "    if (rank, step) == (1, 2):\n"
        "        fcntl.flock(lock := open('lock', 'w'), fcntl.LOCK_EX)\n"
        "        os.rename('lock', 'dying')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if (rank, step) == (0, 2):\n"
        "        while not os.path.exists('dying'): time.sleep(0.01)\n"
        "        fcntl.flock(open('dying'), fcntl.LOCK_EX)  # until the end of the other one\n"
        "        raise ConnectionError('my neighbour is gone')\n"
    )
    end = run_tiny(tmp_path, tiny_plan(config={"max_steps": 100_000}), both)
    assert end.fault is not None
    assert (end.fault.rank, "SIGKILL" in end.fault.sentence) == (1, True)
    assert "neighbour" not in end.fault.sentence


def test_a_rank_without_its_finished_line_fails_the_round_whatever_its_exit_code(tmp_path: Path) -> None:
    end = run_tiny(tmp_path, tiny_plan(config={**QUICK, "silent_ranks": [1]}))
    assert (end.state, end.fault and end.fault.kind) == ("failed", "unfinished")
    assert end.fault is not None
    assert end.fault.sentence == "rank 1 ended without a FINISHED line"


def test_a_fault_on_one_host_stops_the_other(tmp_path: Path) -> None:
    plan = tiny_plan(nproc=1, nnodes=2, config={"max_steps": 100_000})
    end = run_tiny(tmp_path, plan, at_step("raise OSError('no more')", rank=1))
    assert end.fault is not None
    assert (end.fault.host, end.fault.rank) == ("h1", 1)
    assert [host.ranks[0].cause for host in end.hosts] == ["stopped", "crash"]


def test_logs_of_a_killed_agent_are_fetched(tmp_path: Path, short_tmpdir: Path) -> None:
    # A rank can signal only the ranks of its round, and may see no others.
    plan = tiny_plan(nproc=1, config={"max_steps": 100_000})
    fault = at_step("open(os.environ['FLAGPERF_LOG_DIR'] + '/doomed', 'w').close()", rank=0)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(run_tiny, tmp_path, plan, fault, hosts=[Elsewhere("h1")])
        until(lambda: [*short_tmpdir.rglob("doomed")], "the second step")
        (doomed,) = short_tmpdir.rglob("doomed")
        kill(read(doomed.with_name(STATE))["pid"])
        end = ending.result()
    assert (end.state, end.missing) == ("failed", ())
    assert end.fault is not None
    assert (end.fault.kind, end.fault.host) == ("agent", "h1")
    assert "STEP_END" in (tmp_path / "round1" / "h1_noderank0" / "rank0.out.log").read_text()
    assert list(short_tmpdir.glob("*/rounds/*")) == []


class Unreachable(LocalHost):
    def open(self, *args: Any, **kwargs: Any) -> Any:
        raise HostError(f"{self.name}: no route to it")


def test_a_host_without_an_agent_leaves_no_device_held_on_others(tmp_path: Path) -> None:
    hosts: list[Host] = [LocalHost("h0"), Unreachable("h1")]
    plan = tiny_plan(nproc=1, nnodes=2, config={"max_steps": 100_000})
    with pytest.raises(HostError, match="h1: no route to it"):
        run_tiny(tmp_path, plan, hosts=hosts)
    assert holders(tmp_path / "leases") == []
    assert processes_of(tmp_path / "round1" / "h0_noderank0") == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [(RuntimeError("no terminal"), "RuntimeError no terminal"), (KeyboardInterrupt(), "Ctrl-C or a signal")],
)
def test_an_exception_of_the_live_view_ends_the_round(tmp_path: Path, error: BaseException, cause: str) -> None:
    def broken(progress: RoundProgress) -> None:
        if progress.step:
            raise error

    with subscribed({"progress": broken}), pytest.raises(type(error)):
        run_tiny(tmp_path, tiny_plan(config={"max_steps": 100_000}))
    end = read(tmp_path / "round1" / "round.json")
    assert (end["state"], end["fault"]["sentence"]) == ("interrupted", cause)
    assert processes_of(tmp_path / "round1" / "h0_noderank0") == []


def test_time_left_is_to_the_nearest_bound_and_evaluations_do_not_train() -> None:
    now, first, soon = Mark(11, 88, 50_000), Mark(1, 8, 0), Mark(11, 88, 9_900)
    assert time_left({"max_steps": 31}, now, first, 70.0) == 100.0
    assert time_left({"max_steps": 31, "max_samples": 128}, now, first, 70.0) == 25.0
    assert time_left({"max_steps": 31, "max_time_s": 80.0}, now, first, 70.0) == 10.0
    assert time_left({}, now, first, 70.0) is None
    assert time_left({"max_steps": 31, "max_time_s": 80.0}, soon, first, 70.0) is None
    tracker = Tracker(RoundProgress("c", 1), {"max_samples": 100}, 0)
    tracker.take(events.STEP_END, {"step": 1, "samples": 10}, 0)
    assert tracker.take(events.EVALUATE, {"samples": 90}, 20_000).time_left_s is None
    assert tracker.take(events.STEP_END, {"step": 2, "samples": 20}, 20_000).time_left_s == 160.0
    tracker = Tracker(RoundProgress("c", 1, metric_name="top1"), {}, 0)
    loss = tracker.take(events.STEP_END, {"step": 1, "loss": "nan"}, 1).loss
    assert loss is not None
    assert loss != loss
    assert tracker.take(events.EVALUATE, {"top1": 0.5, "samples": 10}, 2).metric == 0.5


def test_an_agent_does_not_import_modules_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    done = subprocess.run(
        module_argv(sys.executable, str(Path(__file__).parents[3]), MODULE),
        cwd=tmp_path, input=b"", capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert b'"end"' in done.stdout
    assert b"wrong json" not in done.stderr


def test_devices_are_hidden_only_if_all_hosts_hide_them() -> None:
    hides = {"only_leased": True}
    assert [only_leased(hosts) for hosts in ([None], [hides, {"only_leased": False}], [hides])] == [False, False, True]
