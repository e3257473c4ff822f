"""Rounds in the cloud, which is a double on this machine that runs the boot file for real."""

import json
import logging
import re
import signal
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.ports import free_port
from modelarts_tests import service
from modelarts_tests.conftest import table
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.running.run import Run
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault, RoundRecord
from pytest_flagperf_modelarts import ais_bench
from pytest_flagperf_modelarts.__main__ import main
from pytest_flagperf_modelarts.keys import TOKEN
from tests.helpers.waiting import until
from tests.plugin.conftest import Toy

pytestmark = pytest.mark.integration
CASE = "alpha:plain:CPU:1:2:1"

# The keys of ais-bench's results, which its documentation of ModelArts prints in the order of their letters.
TIMES = [f"{name}_{end}_time" for name in ("dataload", "prepare", "proc", "total") for end in ("end", "start")]
NUMBERS = ["average_power", "efficientcy", "energy_consumption", "max_power", "resource_util_ratio"]
_LIST = re.compile(r"report >> (throughput_list|accuracy_list):\[([^]]+)\] average:(\S+)")


def printed_lists(text: str) -> dict[str, tuple[list[float], float]]:
    return {match[1]: ([float(x) for x in match[2].split(",")], float(match[3])) for match in _LIST.finditer(text)}


class CloudRun:
    """One run in this process."""

    def __init__(self, toy: Toy, double: service.ModelArts, case: str, *set_: str, **more: Any) -> None:
        options = more.pop("options", {})
        lines = [f"{name} = {json.dumps(more.pop(name))}" for name in ("lease-time", "vendor") if name in more]
        (toy.root / "flagperf.toml").write_text("\n".join([*lines, table(double, **more)]))
        self.double = double
        arguments = {"engine": "modelarts", "case": [case], "set": list(set_) or None, **options}
        run = Run.open(toy.root, toy.root, arguments, None)
        assert run is not None
        self.run = run
        self.selected = run.selection.cases[0]

    def prepare(self) -> list[str]:
        self.run.check([self.selected])
        return self.run.prepare([self.selected])

    def round(self, number: int = 1) -> Outcome:
        return self.run.rounds.outcome(self.selected, number)

    @property
    def record(self) -> RoundRecord:
        return RoundDir(self.folder()).read_record()

    def failed(self) -> RoundFault:
        assert not self.round().ok
        fault = self.record.fault
        assert fault is not None
        return fault

    def folder(self, number: int = 1) -> Path:
        return self.run.rounds.folder(self.selected, number)


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        until(condition, "the condition")
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def log_text(double: service.ModelArts) -> str:
    job = double.jobs[-1] if double.jobs else None
    names = double.names(job.log) if job else []
    return double.read(job.log + names[0]).decode() if job and names else ""


def trains(double: service.ModelArts) -> Callable[[], bool]:
    return lambda: '"step": 5' in log_text(double)


def test_a_run_converges_in_the_cloud(toy: Toy, modelarts: service.ModelArts) -> None:
    modelarts.write("/bench/code/run/old.whl", b"stale")
    (toy.root / "flagperf.toml").write_text(table(modelarts))
    result = toy.run("--engine=modelarts", f"--case={CASE}", "suites")
    result.assert_outcomes(passed=3)
    text = result.stdout.str()
    assert "removed 1 old files" in text
    assert "run/old.whl" not in modelarts.names("/bench/code/")
    assert [name for name in modelarts.names("/bench/code/") if name.startswith("orders/")] == []
    (run,) = toy.runs
    case = store.load_run(run).cases[0]
    (outcome,) = case.outcomes
    assert outcome.ok, outcome.failures
    # The folder of a host has what it has in any round.
    (host,) = run.glob("*/round1/instance0_noderank0")
    names = {path.name for path in host.iterdir()}
    assert {"rank0.out.log", "rank1.out.log", "cpu_monitor.log", "sys_info.log", "monitors.json", "case.json"} <= names
    # The log of the job, with the name that ais-bench gives it.
    job = modelarts.jobs[0]
    log = host.parent / "log" / f"job{job.id}-job-aisbench-debug-0.log"
    assert "[ModelArts Service Log]" in log.read_text()
    # ais-bench's files, and its results.
    figures = {path.name: float(path.read_text()) for path in (host.parent / "result").iterdir()}
    assert figures.keys() == {
        "throughput_0.json", "throughput_1.json", "ranksize.json", "accuracy.json", "accuracy_0.json",
    }  # fmt: skip
    rate = outcome.value("p_train")
    assert figures["throughput_0.json"] + figures["throughput_1.json"] == pytest.approx(rate)
    assert (figures["ranksize.json"], figures["accuracy.json"]) == (2, outcome.value("accuracy"))
    info = json.loads((host.parent.parent / "train_result_info.json").read_text())
    assert list(info) == sorted([*TIMES, *NUMBERS, "accuracy", "throughput_ratio"])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", info[name]) for name in TIMES)
    assert info["total_start_time"] <= info["total_end_time"]
    assert {type(info[name]) for name in NUMBERS} <= {int, float}
    assert (info["throughput_ratio"], info["accuracy"]) == (str(rate), str(outcome.value("accuracy")))
    assert printed_lists(text) == {
        "throughput_list": ([rate], rate),
        "accuracy_list": ([outcome.value("accuracy")], outcome.value("accuracy")),
    }
    (unknown,) = re.findall(r"report >> not measured: (.*)", text)
    assert {"dataload_end_time", "dataload_start_time", "efficientcy", "max_power"} <= set(unknown.split(", "))
    assert service.SECRET not in text
    assert not any(service.SECRET in path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())


def test_instances_train_together_by_interface_v1(toy: Toy, start_service: Callable[..., service.ModelArts]) -> None:
    double = start_service(version="v1", per_card=2)
    run = CloudRun(toy, double, "alpha:plain:CPU:2:8:1", instances=2)
    run.prepare()
    outcome = run.round()
    assert outcome.ok, outcome.failures
    assert {path.name for path in run.folder().glob("*_noderank*")} == {"instance0_noderank0", "instance1_noderank1"}
    assert len(list(run.folder().glob("*/rank*.out.log"))) == 16
    figures = run.folder() / "result"
    total = sum(float((figures / f"throughput_{rank}.json").read_text()) for rank in range(16))
    assert total == pytest.approx(outcome.value("p_train"))
    job = double.jobs[0]
    # Each card starts the boot file, and one agent runs on each instance.
    assert [process.returncode for process in job.processes] == [0] * 4
    assert log_text(double).count('"type": "over"') == 1
    logs = {path.name for path in (run.folder() / "log").iterdir()}
    assert logs == {f"job{job.version}-job-aisbench-debug-{number}.log" for number in (0, 1)}


def test_instances_that_train_alone_are_the_rounds_of_a_case(toy: Toy, modelarts: service.ModelArts) -> None:
    training = toy.root / "suites/alpha/plain/run_pretraining.py"
    training.write_text(training.read_text().replace("step != 3 or", "rank.case.round != 2 or step != 3 or"))
    case = "alpha:plain:CPU:1:1:3"
    run = CloudRun(toy, modelarts, case, "fault='exit'", instances=3, cards=1, single_server=True)
    first, second, third = (run.round(number) for number in (1, 2, 3))
    assert first.ok, first.failures
    assert [failure.kind for failure in second.failures][:1] == ["crash"]
    assert third.ok, "a round that fails must not end the others"
    assert [outcome.seed for outcome in (second, third)] == [(first.seed or 0) + 1, (first.seed or 0) + 2]
    (job,) = modelarts.jobs
    assert job.count == 3
    figures = {"0/throughput_0.json", "2/throughput_0.json", "accuracy_0.json", "accuracy_2.json"}
    assert {name for name in modelarts.names(job.output) if name.endswith(".json")} >= figures
    own = {str(path.relative_to(run.folder(3) / "result")) for path in (run.folder(3) / "result").rglob("*.json")}
    assert own == {"2/throughput_0.json", "accuracy_2.json"}
    result = run.run.records.write_results(store.RunInfo())
    entries = printed_lists("\n".join(ais_bench.result_of(result.cases[0]).lines()))["throughput_list"]
    rates = [first.value("p_train"), third.value("p_train")]
    assert entries == (rates, statistics.mean(rate for rate in rates if rate))


def test_ctrl_c_stops_the_job_and_keeps_its_logs(toy: Toy, modelarts: service.ModelArts, notes: list[str]) -> None:
    run = CloudRun(toy, modelarts, CASE, "step_s=0.3", "max_steps=1000", "learning_rate=0.0001")
    when(trains(modelarts), lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run.round()
    (job,) = modelarts.jobs
    until(lambda: job.ended, "the end of the job")
    assert job.state == "stopped"
    assert run.record.state == "interrupted"
    assert '"step": 5' in (run.folder() / "instance0_noderank0" / "rank0.out.log").read_text()
    assert "stop requested: accepted" in "".join(notes)


def test_a_job_that_waits_for_resources_can_be_stopped(
    toy: Toy, modelarts: service.ModelArts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modelarts.faults.hold = True
    monkeypatch.chdir(toy.root)
    run = CloudRun(toy, modelarts, CASE)
    when(lambda: modelarts.jobs, lambda: main(["stop"]))
    assert run.failed().sentence.endswith("ended: Terminated")
    (job,) = modelarts.jobs
    line = f"jobname:{job.name} jobid:{job.id} jobstatus:Pending stop status:{{'is_success': True}}"
    assert line in capsys.readouterr().out
    assert main(["stop"]) == 0
    assert "jobstatus:Terminated not stopped: the job has ended already" in capsys.readouterr().out


def test_a_job_that_fails_before_it_runs_is_one_sentence(toy: Toy, modelarts: service.ModelArts) -> None:
    modelarts.faults.fail_start = "the image cannot be pulled"
    sentence = CloudRun(toy, modelarts, CASE).failed().sentence
    assert sentence.endswith("ended: Failed: worker-0: exit code 1: the image cannot be pulled")


def test_a_job_without_output_fails(toy: Toy, modelarts: service.ModelArts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_flagperf_modelarts.cloud_job.OUTPUT_S", 0.5)
    modelarts.faults.no_output = True
    run = CloudRun(toy, modelarts, CASE)
    assert not run.round().ok
    remarks = [*run.record.warnings, *(missing.why for missing in run.record.missing), str(run.record.fault)]
    assert any("left no logs" in line or "not found" in line for line in remarks)


def test_a_job_that_cannot_be_followed_any_more_is_stopped(toy: Toy, modelarts: service.ModelArts) -> None:
    run = CloudRun(toy, modelarts, CASE, "step_s=0.3", "max_steps=1000", "learning_rate=0.0001")
    answer = (403, b'{"error_code": "APIGW.0302", "error_msg": "the keys have expired"}')
    when(trains(modelarts), lambda: modelarts.faults.answers.append(answer))
    assert "HTTP 403: the keys have expired (APIGW.0302)" in run.failed().sentence
    until(lambda: modelarts.jobs[0].state == "stopped", "the stop of the job")


def test_the_next_job_waits_until_the_code_is_copied(toy: Toy, modelarts: service.ModelArts, notes: list[str]) -> None:
    modelarts.faults.hold = True
    first, second = CloudRun(toy, modelarts, CASE), CloudRun(toy, modelarts, "alpha:plain:CPU:1:1:1")
    outcomes = [when(lambda: True, first.round)]
    until(lambda: modelarts.jobs, "the first job")
    outcomes.append(when(lambda: True, second.round))
    until(lambda: "another job has not copied its code yet from obs://bench/code/" in "".join(notes), "the wait")
    assert len(modelarts.jobs) == 1
    modelarts.faults.hold = False
    for thread in outcomes:
        thread.join()
    assert first.round().ok
    assert second.round().ok


def test_a_lost_network_that_comes_back_does_not_fail_the_round(
    toy: Toy, modelarts: service.ModelArts, notes: list[str]
) -> None:
    from moto.server import ThreadedMotoServer

    obs = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)  # the same buckets at another address
    obs.start()
    url = "http://{}:{}".format(*obs.get_host_and_port())
    run = CloudRun(toy, modelarts, CASE, "step_s=0.6", obs_endpoint=url, **{"lease-time": 30.0})

    def cut() -> None:
        modelarts.faults.silent = True
        until(lambda: "is lost" in "".join(notes), "the loss")
        modelarts.faults.silent = False
        until(lambda: "is back" in "".join(notes), "the return")
        obs.stop()
        assert obs._server is not None
        obs._server.server_close()
        until(lambda: "".join(notes).count("is lost") == 2, "the second loss")
        obs.start()

    when(trains(modelarts), cut)
    outcome = run.round()
    obs.stop()
    text = "".join(notes)
    assert text.index("step ") < text.index(": Completed")  # the progress was shown while the job ran
    assert outcome.ok, outcome.failures
    warnings = run.record.warnings
    assert any("instance0 is lost (ModelArts does not answer" in warning for warning in warnings)
    assert any("instance0 is lost (OBS does not answer" in warning for warning in warnings)
    assert warnings.count("instance0 is back") == 2


def test_a_lost_network_fails_the_round_and_logs_are_fetched_late(
    toy: Toy, modelarts: service.ModelArts, notes: list[str]
) -> None:
    run = CloudRun(toy, modelarts, CASE, "step_s=0.1", **{"lease-time": 1.0})
    thread = when(trains(modelarts), lambda: setattr(modelarts.faults, "silent", True))
    assert run.failed().kind == "lost"
    thread.join()
    assert "may still run: flagperf-modelarts stop ends it" in "".join(notes)
    modelarts.faults.silent = False
    until(lambda: modelarts.jobs[0].ended, "the end of the job")  # its lease is not renewed
    lines = run.run.rounds.fetch_late_logs()
    assert lines == ["alpha_plain_CPU_1_2_1 round1: the logs of instance0 were fetched late"]
    assert (run.folder() / "instance0_noderank0" / "rank0.out.log").is_file()


def test_a_job_whose_answer_was_lost_is_found_and_no_key_is_logged(
    toy: Toy, modelarts: service.ModelArts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN, "TOKENOFTHETEST")
    run = CloudRun(toy, modelarts, CASE)
    modelarts.faults.cut_create = True
    with caplog.at_level(logging.DEBUG):
        outcome = run.round()
    assert outcome.ok, outcome.failures
    assert len(modelarts.jobs) == 1  # not submitted again
    assert "training-jobs" in caplog.text
    logged = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("werkzeug"))
    assert not any(key in logged for key in (service.ACCESS, service.SECRET, "TOKENOFTHETEST"))


def test_the_data_are_one_input_of_the_job(toy: Toy, start_service: Callable[..., service.ModelArts]) -> None:
    suite = toy.root / "suites/alpha/plain/suite.toml"
    parts = "".join(
        f'[[scales.reference.data]]\npath = "{path}"\nkind = "{kind}"\n{more}\n'
        for path, kind, more in (
            ("train", "folder", "files = 2"),
            ("val", "folder", ""),
            ("start.ckpt", "file", "size = 3"),
        )
    )
    suite.write_text(suite.read_text().replace("target = 0.9\n", f"target = 0.9\n{parts}"))
    toy.config("alpha", "1x1", "")
    training = toy.root / "suites/alpha/plain/run_pretraining.py"
    read = "    assert (rank.case.data_dir / 'start.ckpt').read_bytes() == b'abc'\n    config, log"
    training.write_text(training.read_text().replace("    config, log", read, 1))
    for version in ("v1", "v2"):
        double = start_service(version=version)
        run = CloudRun(toy, double, "alpha:plain:X1:1:1:1", data="obs://bench/data/", vendor="acme")
        double.write("/bench/data/train/1", b"1")
        with pytest.raises(Problems) as caught:
            run.prepare()
        assert caught.value.problems == [
            "ModelArts: data: obs://bench/data/train has 1 files; expected 2",
            "ModelArts: data: obs://bench/data/val: no such folder; upload the training data with all parts that the"
            " suite's README lists",
            "ModelArts: data: obs://bench/data/start.ckpt: not found; upload the training data with all parts that the"
            " suite's README lists",
        ]
        for name, content in (("train/2", b"2"), ("val/1", b"1"), ("start.ckpt", b"abc")):
            double.write(f"/bench/data/{name}", content)
        assert run.prepare() == []
        outcome = run.run.rounds.outcome(run.selected, 1)
        assert outcome.ok, outcome.failures


REFUSED: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    ("alpha:plain:CPU:1:8:1", {}, {"cards": 4}, "needs 8 cards, and an instance has 4 (engines.modelarts.cards)"),
    ("alpha:plain:CPU:2:4:1", {}, {"instances": 2}, "several instances train together only with all their 8 cards"),
    (
        "alpha:plain:CPU:2:8:1",
        {},
        {"instances": 2, "single_server": True},
        "needs 2 hosts, 1 available: instance0; pass --nodes=1xP to run on one",
    ),
    (CASE, {"runtime": "docker"}, {}, "--runtime=docker: a job runs in an image of ModelArts; set image in"),
    ("alpha:plain:X1:1:1:1", {}, {"vendor": "acme"}, "no training data: set data in [engines.modelarts] of"),
    (CASE, {"cluster": "gpu1"}, {}, "--cluster=gpu1: only --engine=agents runs on the hosts of this option"),
]


def test_a_case_that_cannot_be_a_job_is_refused(toy: Toy, modelarts: service.ModelArts) -> None:
    toy.config("alpha", "1x1", "")
    for case, options, more, expected in REFUSED:
        with pytest.raises(Problems) as caught:
            CloudRun(toy, modelarts, case, options=options, **more).prepare()
        assert any(expected in problem for problem in caught.value.problems), caught.value.problems
    assert modelarts.jobs == []


def test_plan_and_preflight_start_no_job(toy: Toy, modelarts: service.ModelArts) -> None:
    run = CloudRun(toy, modelarts, "alpha:plain:CPU:2:8:1", instances=2)
    assert run.run.engine.header()[0].startswith("  hosts: 2 instances of 8 cards in test.8xlarge of ModelArts (")
    assert "instance1.modelarts" in run.run.describe(run.selected) or "instance1" in run.run.describe(run.selected)
    assert modelarts.requests == []
    findings = [(finding.kind, finding.level, finding.sentence) for finding in run.run.preflight([run.selected])]
    assert findings == [("storage", "ok", "bucket bench"), ("service", "ok", "interface v2")]
    run = CloudRun(toy, modelarts, CASE, code="obs://nowhere/code/")
    with pytest.raises(Problems, match="ModelArts: storage: OBS: bucket nowhere: "):
        run.prepare()
    assert modelarts.jobs == []
