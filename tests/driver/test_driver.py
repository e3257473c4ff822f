"""The part of the driver that every rank imports: case, config, clock, and the FAILED line of a failing process."""

import copy
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import driver, perflog
from flagperf_driver.driver import Config, DriverError, RunCase, World
from flagperf_driver.target import Target
from tests.driver.frameworks.toy_data import case
from tests.driver.lab import REPO

CASE: dict[str, Any] = {
    **case("pytorch", target=0.8, extern="/code/extern", learning_rate=0.1),
    "sample_unit": "images",
    "modules": ["json"],
    "device_module": "/code/vendors/acme/device.py",
}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a rank's program as the agent does; with ``log`` its output goes to the log from the start."""

    def run(program: str, *, log: bool = False) -> Any:
        (tmp_path / "case.json").write_text(json.dumps(CASE))
        (tmp_path / "program.py").write_text(program)
        outer = {name: value for name, value in os.environ.items() if not name.startswith("FLAGPERF")}
        inner = {
            "PYTHONPATH": str(REPO), "FLAGPERF_CASE": str(tmp_path / "case.json"), "FLAGPERF_LOG_DIR": str(tmp_path),
            "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2",
        }  # fmt: skip
        command = [sys.executable, str(tmp_path / "program.py")]
        options: dict[str, Any] = {"env": {**outer, **inner}, "text": True, "timeout": 30}
        if not log:
            return subprocess.run(command, capture_output=True, check=False, **options)
        with (tmp_path / "rank1.out.log").open("a") as out:
            return subprocess.run(command, stdout=out, stderr=out, check=False, **options)

    return run


def records(folder: Path) -> list[perflog.Record]:
    with (folder / "rank1.out.log").open("rb") as stream:
        return list(perflog.read_records(stream))


def events(folder: Path) -> list[str]:
    return [record.event for record in records(folder)]


HELLO = "from flagperf_driver import driver\n"
MAIN = HELLO + "def main(rank):\n    {}\ndriver.run(main)\n"


def test_the_case_is_typed_and_all_its_problems_are_reported_together() -> None:
    typed = RunCase.from_json(CASE)
    assert typed.metric == Target("accuracy", "higher", "fraction", 0.8)
    assert typed.extern == Path("/code/extern")
    assert (typed.modules, typed.device_module) == (("json",), Path("/code/vendors/acme/device.py"))
    assert typed.data_dir is None
    assert typed.config.learning_rate == 0.1
    with pytest.raises(AttributeError):
        typed.seed = 1  # type: ignore[misc]
    body = {name: value for name, value in CASE.items() if name not in ("seed", "device")}
    with pytest.raises(DriverError) as error:
        RunCase.from_json({**body, "schema": 9, "metric": {"name": "x"}}, "case.json")
    for part in ("'seed'", "'device'", "schema is 9", "'direction'", "'target'"):
        assert part in str(error.value)


def test_a_ranks_records_carry_the_originals_names(run: Run, tmp_path: Path) -> None:
    value = {"steps": 3, "samples": 96, "p_whole": 2.5, "final_metrics": {"accuracy": 0.5}}
    assert run(MAIN.format(f"rank.log('FINISHED', {value})")).returncode == 0
    (finished,) = (record.value for record in records(tmp_path) if record.event == "FINISHED")
    names = {"global_steps": 3, "num_trained_samples": 96, "training_images_per_second": 2.5, "final_accuracy": 0.5}
    assert {**value, **names, "throughput(ips)_raw": 2.5} == finished


@pytest.mark.parametrize(
    ("text", "part"), [("{", "invalid JSON"), ("[]", "expected a JSON object; got list"), (None, "cannot be read")]
)
def test_a_case_file_that_cannot_be_read(tmp_path: Path, text: str | None, part: str) -> None:
    path = tmp_path / "case.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DriverError, match=part):
        RunCase.load(path)


def test_config_is_read_by_attribute_frozen_and_an_unknown_key_has_near_matches() -> None:
    config = Config({"learning_rate": 0.1, "lr_gamma": None})
    assert config.lr_gamma is None
    assert "learning_rate" in config
    assert "other" not in config
    assert config.as_dict() == {"learning_rate": 0.1, "lr_gamma": None}
    assert sorted(config) == dir(config) == ["learning_rate", "lr_gamma"]
    with pytest.raises(AttributeError, match=re.escape("no 'learning_rte'; did you mean 'learning_rate'?")):
        _ = config.learning_rte
    assert getattr(config, "learning_rte", 5) == 5
    with pytest.raises(AttributeError, match="frozen; cannot set learning_rate = 1"):
        config.learning_rate = 1
    with pytest.raises(AttributeError, match="frozen; cannot delete learning_rate"):
        del config.learning_rate


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_config_travels_to_loader_processes(again: Callable[[Config], Config]) -> None:
    assert again(Config({"a": 1})) == Config({"a": 1})


BOX = Target("box", "higher", "", 0.38, also={"mask": 0.34})
LOSS = Target("loss", "lower", "", 0.8)


@pytest.mark.parametrize(
    ("target", "metrics", "reached"),
    [
        (BOX, {"box": 0.38, "mask": 0.34}, True),
        (BOX, {"box": 0.38, "mask": 0.33}, False),
        (BOX, {"box": 0.37, "mask": 0.34}, False),
        (BOX, {"box": math.inf, "mask": 0.34}, False),
        (BOX, {"box": 0.38, "mask": math.nan}, False),
        (BOX, {"box": 0.38}, False),
        (LOSS, {"loss": 0.8}, True),
        (LOSS, {"loss": 0.81}, False),
        (LOSS, {"loss": -math.inf}, False),
    ],
)
def test_all_targets_must_be_reached_by_one_evaluation(
    target: Target, metrics: dict[str, float], reached: bool
) -> None:
    assert target.reached_by(metrics) is reached


def test_the_world_comes_from_the_environment() -> None:
    names = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1"}
    assert World.from_environment(names) == World(5, 1, 8, 4)
    assert World.from_environment({}) == World()
    with pytest.raises(DriverError, match=r"RANK='x'.*\n.*WORLD_SIZE='-1'"):
        World.from_environment({"RANK": "x", "WORLD_SIZE": "-1"})


def test_the_age_includes_the_start_of_the_interpreter(run: Run, tmp_path: Path) -> None:
    before = time.monotonic()
    run("import time; time.sleep(0.5)\n" + MAIN.format("print('age', rank.age())"))
    wall = time.monotonic() - before
    age = float((tmp_path / "rank1.out.log").read_text().split("age ")[1].split()[0])
    assert 0.5 < age <= wall + 0.02


def test_output_goes_to_the_ranks_log_once(run: Run, tmp_path: Path) -> None:
    result = run(MAIN.format("import sys, os; print('out'); print('err', file=sys.stderr); os.system('echo child')"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    log = (tmp_path / "rank1.out.log").read_text()
    assert all(word in log for word in ("out\n", "err\n", "child\n"))
    assert (tmp_path / "rank1.progress").stat().st_size == 32
    run(MAIN.format("print('once')"), log=True)
    assert (tmp_path / "rank1.out.log").read_text().count("once") == 1
    assert events(tmp_path) == ["INIT_START"] * 2, "one of each run"


def test_an_exception_is_logged_as_failed(run: Run, tmp_path: Path) -> None:
    result = run(MAIN.format("raise ValueError('loss is NaN')"))
    assert result.returncode == 1
    assert events(tmp_path) == ["INIT_START", "FAILED"]
    assert records(tmp_path)[1].value == {"type": "ValueError", "error": "loss is NaN"}
    assert records(tmp_path)[1].rank == 1
    assert "Traceback" in (tmp_path / "rank1.out.log").read_text()


def test_paths_in_errors_are_relative_to_the_source_tree(run: Run, tmp_path: Path) -> None:
    run(MAIN.format("import flagperf_driver as it; raise ValueError(it.__file__ + ':3: no')"))
    assert records(tmp_path)[1].value["error"] == "flagperf_driver/__init__.py:3: no"


def test_an_error_names_the_line_of_the_vendors_code(run: Run, tmp_path: Path) -> None:
    file = str(REPO / "vendors" / "acme" / "m-f" / "extern" / "trainer_adapter.py")
    body = f"""
    exec(compile("def step():\\n    raise OSError('kernel 7')", {file!r}, "exec"), globals())
    try:
        step()
    except OSError as error:
        raise ValueError("no") from error"""
    run(MAIN.format(body))
    at = "vendors/acme/m-f/extern/trainer_adapter.py:2, in step"
    assert records(tmp_path)[1].value == {"type": "ValueError", "error": f"no ({at})"}


def test_an_import_error_before_main_is_logged_and_a_failure_waits_for_no_threads(run: Run, tmp_path: Path) -> None:
    result = run(HELLO + "import no_such_module\n" + MAIN.format("pass"))
    assert result.returncode == 1
    assert records(tmp_path)[-1].value["type"] == "ModuleNotFoundError"
    assert (tmp_path / "rank1.out.log").read_text().count("Traceback") == 1
    body = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); 1 / 0"
    before = time.monotonic()
    assert run(MAIN.format(body)).returncode == 1
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(("code", "failed"), [("0", []), ("", []), ("4", ["FAILED"])])
def test_sys_exit_keeps_its_code(run: Run, tmp_path: Path, code: str, failed: list[str]) -> None:
    assert run(MAIN.format(f"import sys; sys.exit({code})")).returncode == int(code or 0)
    assert events(tmp_path) == ["INIT_START", *failed]


def test_sigterm_ends_a_rank_and_sigusr1_only_shows_its_stacks(run: Run, tmp_path: Path) -> None:
    program = MAIN.format("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert run(program).returncode == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    body = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('alive')"
    assert run(MAIN.format(body)).returncode == 0
    log = (tmp_path / "rank1.out.log").read_text()
    assert "most recent call first" in log
    assert "alive" in log


def test_importing_it_outside_a_round_changes_nothing_and_the_age_is_never_negative() -> None:
    code = "import sys, signal; before = signal.getsignal(15), sys.excepthook; import flagperf_driver.driver; "
    code += "assert before == (signal.getsignal(15), sys.excepthook)"
    env = {"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert 0 <= driver.process_age() < time.monotonic()
