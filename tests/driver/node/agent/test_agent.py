"""The agent with real processes: each way in which a rank can end leaves no process behind."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.driver.lab import FOREVER, Lab
from tests.helpers.processes import kill
from tests.helpers.waiting import until

pytestmark = pytest.mark.integration


def test_little_is_sent_of_ranks_that_end_well(lab: Lab) -> None:
    program = """
        log(events.INIT_START)
        train(1, 5)
        print("bye")
        log(events.FINISHED, {"converged": True})
    """
    lab.start(program, program)
    lab.end()
    assert lab.of("fault") == []
    assert lab.of("exit") == []  # the last message has them
    assert sorted(lab.of("over")[0]["ended_well"]) == [0, 1]
    assert [message["last_lines"] for message in lab.exits] == [[], []]
    records = [(m["rank"], m["event"], m["value"]) for m in lab.of("perflog")]
    assert records == [(0, "INIT_START", {}), (0, "FINISHED", {"converged": True})]
    for rank in (0, 1):
        end = json.loads((lab.log_dir / f"rank{rank}.exit.json").read_text())
        assert (end["rank"], end["code"], end["signal"], end["cause"]) == (rank, 0, None, None)
        assert end["started_ms"] <= end["ended_ms"]


def test_a_rank_may_end_before_the_others(lab: Lab) -> None:
    lab.start("pass", "train(1, 40)")
    lab.end()
    assert lab.of("fault") == []
    assert [(m["rank"], m["finished"]) for m in lab.exits] == [(0, False), (1, False)]


LOGS_ITS_END = 'log(events.FAILED, {"type": "ValueError", "error": "loss is\\nNaN"}); print("bye"); sys.exit(3)'


@pytest.mark.parametrize(
    ("program", "sentence", "code", "number"),
    [
        ("import no_such", "ended with exit code 1: ModuleNotFoundError: No module named 'no_such'", 1, None),
        (LOGS_ITS_END, "ended with exit code 3: ValueError: loss is | NaN", 3, None),  # not the log's last line
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (kill -9 by a user or a program)", None, "SIGKILL"),
    ],
)
def test_a_rank_that_fails_is_reported_with_the_reason_and_ends_the_others(
    lab: Lab, program: str, sentence: str, code: int | None, number: str | None
) -> None:
    lab.start(FOREVER, program)
    fault, end = lab.fault(), lab.exit(1)
    assert (fault["kind"], fault["rank"]) == ("crash", 1)
    assert fault["sentence"].startswith(f"rank 1 {sentence}")
    assert (end["code"], end["signal"], end["cause"]) == (code, number, "crash")
    assert (lab.exit(0)["signal"], lab.exit(0)["cause"]) == ("SIGTERM", "stopped")


def test_a_rank_that_hangs_is_reported_and_logs_its_stack(lab: Lab) -> None:
    hang = """
        import faulthandler
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        def waits_for_ever(): time.sleep(1000)
        train(1, 5)
        waits_for_ever()
    """
    lab.start("train(1, 10); time.sleep(1000)", hang, hang_timeout_s=1.5)
    fault = lab.fault()
    assert (fault["kind"], fault["rank"]) == ("hang", 1)
    assert "hang_timeout_s = 1.5" in fault["sentence"]
    assert "at step 4 in training; rank 0 at step 9 in training" in fault["sentence"]
    assert "waits_for_ever" in lab.log(1)
    assert lab.exit(1)["cause"] == "hang"
    assert lab.exit(0)["cause"] == "stopped"


def test_a_rank_that_does_not_reach_its_first_step(lab: Lab) -> None:
    lab.hello()
    (lab.log_dir / "rank0.out.log").write_text("loading\n")  # on a busy machine the rank itself may be too late
    lab.start("time.sleep(1000)", init_timeout_s=1.0)
    assert lab.wait_for("beat")["ranks"] == {}, "beats of the agent come before those of a rank"
    fault = lab.fault()
    assert (fault["kind"], fault["rank"]) == ("init_timeout", 0)
    assert "init_timeout_s = 1" in fault["sentence"]
    assert fault["sentence"].endswith("its last line: loading")
    assert lab.exit(0)["cause"] == "timeout"


def test_round_timeout(lab: Lab) -> None:
    lab.start(FOREVER, round_timeout_s=1.0)
    fault = lab.fault()
    assert fault["kind"] == "timeout"
    assert "longer than 1 s (round_timeout_s)" in fault["sentence"]
    assert lab.exit(0)["cause"] == "timeout"


def test_an_order_to_stop_ends_all_ranks_also_one_that_was_stopped(lab: Lab) -> None:
    lab.start(FOREVER, FOREVER)
    lab.wait_for("beat")
    kill(lab.wait_for_start(), signal.SIGSTOP)
    lab.send({"op": "stop", "reason": "another host failed"})
    lab.end()
    assert lab.of("fault") == []
    assert [(m["signal"], m["cause"]) for m in lab.exits] == [("SIGTERM", "stopped")] * 2
    assert "another host failed" in (lab.log_dir / "start_task.log").read_text()


def test_ranks_may_end_within_the_lease_of_a_lost_controller(lab: Lab) -> None:
    lab.hello(lease_s=2.5)
    lab.start("train(1, 20)")
    lab.disconnect()
    lab.end()
    assert lab.of("fault") == []
    assert lab.exit(0)["code"] == 0


CHILDREN = "for apart in (False, True): subprocess.Popen(['sleep', '1000'], start_new_session=apart)\n"


@pytest.mark.parametrize("how", ["pass", "sys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_grandchildren_end_with_their_rank(lab: Lab, how: str) -> None:
    lab.start(CHILDREN + how)
    lab.end()  # fails if processes are left


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(lab: Lab) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); " + FOREVER
    lab.start(stubborn, grace_s=0.7)
    lab.wait_for_line(0, "deaf")
    at = time.monotonic()
    lab.send({"op": "stop"})
    lab.end()
    assert time.monotonic() - at >= 0.7
    assert (lab.exit(0)["signal"], lab.exit(0)["cause"]) == ("SIGKILL", "stopped")


def test_a_missing_executable_is_reported_and_ends_the_other_ranks(lab: Lab) -> None:
    missing = {**lab.rank(1, ""), "argv": ["/no/such/python", "x.py"]}
    lab.hello()
    lab.send(lab.order([lab.rank(0, FOREVER), missing]))
    fault = lab.fault()
    assert (fault["kind"], fault["rank"]) == ("start", 1)
    assert fault["sentence"] == "rank 1 could not be started: /no/such/python: No such file or directory"
    assert lab.exit(0)["cause"] == "stopped"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({}, "'ranks' is missing"),
        ({"ranks": []}, "'ranks' is empty"),
        ({"ranks": [{"rank": 0}]}, "KeyError: 'argv'"),
        ({"ranks": [{"rank": "x"}]}, "ValueError: invalid literal"),
    ],
)
def test_an_invalid_start_message(lab: Lab, order: dict[str, object], message: str) -> None:
    lab.hello()
    lab.send({"op": "start", **order})
    fault = lab.wait_for("fault")
    assert fault["kind"] == "start"
    assert message in fault["sentence"]
    lab.end()
    assert lab.of("over")


def test_a_controller_that_sends_nothing(lab: Lab) -> None:
    lab.disconnect()
    assert lab.end() == [{"type": "end"}]


def test_the_log_is_complete_and_every_record_is_sent_to_a_controller_that_reads_late(lab: Lab) -> None:
    program = """
        for step in range(4000):
            print("chatter", step)
            log(events.STEP_END, {"step": step, "filling": "x" * 200})
        sys.stderr.write("the end, without a newline")
    """
    lab.listening.clear()
    lab.start(program)
    until(lambda: (lab.log_dir / "rank0.exit.json").exists(), "the end of the rank", 20)
    assert lab.of("perflog") == []
    lab.listening.set()
    lab.end()
    lines = [line for line in lab.log(0).splitlines() if "PerfLog" not in line]
    assert lines == [*(f"chatter {step}" for step in range(4000)), "the end, without a newline"]
    assert [m["value"]["step"] for m in lab.of("perflog")] == list(range(4000))


def test_a_rank_is_bound_to_its_cores(lab: Lab) -> None:
    core = max(os.sched_getaffinity(0))
    program = "print('cores', sorted(os.sched_getaffinity(0)))"
    lab.hello()
    lab.send(lab.order([{**lab.rank(0, program), "cpus": [core]}, lab.rank(1, program)]))
    lab.end()
    assert lab.log(0) == f"cores [{core}]\n"
    assert lab.log(1) == f"cores {sorted(os.sched_getaffinity(0))}\n"


def test_unavailable_cores_are_a_warning_and_the_rank_runs(tmp_path: Path) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("needs two CPUs")
    with Lab(tmp_path, patch=f"import os; os.sched_setaffinity(0, [{first}])") as lab:
        assert lab.hello()["cpus"] == [first]
        program = "print('cores', sorted(os.sched_getaffinity(0)))"
        lab.send(lab.order([{**lab.rank(0, program), "cpus": others[:1]}]))
        lab.end()
        assert lab.log(0) == f"cores [{first}]\n"
        (warning,) = lab.of("warning")
        problem = f"should be bound to the cores {others[0]}, but this process may not use {others[0]}"
        assert warning["sentence"] == f"rank 0 {problem}"


def test_a_rank_inherits_the_hosts_environment_and_the_kernel_kills_it_before_its_agent(lab: Lab) -> None:
    program = "print(sorted(name for name in os.environ if name.startswith(('FLAGPERF_LAB', 'PYTHON', 'RANK'))))"
    lab.start(program, "print(Path('/proc/self/oom_score_adj').read_text())")
    lab.end()
    assert lab.log(0) == "['FLAGPERF_LAB', 'PYTHONPATH', 'RANK']\n"  # PYTHONUNBUFFERED is excluded
    assert int(Path("/proc/self/oom_score_adj").read_text()) < int(lab.log(1)) == 500


def test_a_slow_rank_is_reported(lab: Lab) -> None:
    def program(seconds: float) -> str:
        return f"for step in range(1, 10**6): heart.beat(step, heartbeat.TRAIN); time.sleep({seconds})"

    lab.start(program(0.02), program(0.02), program(0.06))
    while "2" not in (slow := lab.next().get("slow") or {}):
        pass
    assert slow["2"] > 1.3
    lab.send({"op": "stop"})
    lab.end()


def test_the_host_is_sampled(lab: Lab) -> None:
    monitors = {"folder": str(lab.log_dir), "every_s": 0.1, "device_every_s": 1, "devices": [], "probe": None}
    lab.start("train(1, 40)", monitors={**monitors, "vendor": "cpu", "nvml": False})
    lab.end()
    assert lab.of("warning") == []
    assert all((lab.log_dir / name).stat().st_size for name in ("cpu_monitor.log", "mem_monitor.log", "sys_info.log"))
    text = json.loads((lab.log_dir / "monitors.json").read_text())["host"]["variables"]
    assert [one in text for one in ("ATEN_CPU_CAPABILITY=default", "TORCH_HOME=http://***@h/x", "MKL_A")] == [1, 1, 0]


def test_a_sampler_that_dies_is_a_warning(lab: Lab) -> None:
    lab.start("train(1, 40)", monitors={"every_s": "often"})
    warning = lab.wait_for("warning")
    lab.end()
    assert warning["sentence"].startswith("the sampler ended with exit code 1: ")
    assert lab.of("fault") == []
