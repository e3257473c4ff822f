"""``make gpu``: the order of items, their limits and results; on a machine without a GPU, and with replaced NVML."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.items import (
    FAILED,
    NOT_RUN,
    PASSED,
    STOPPED,
    TIMED_OUT,
    Item,
    exit_code,
    run_items,
    with_last_durations,
)
from benchmarks.section import REPO
from pytest_flagperf.catalog import Catalog
from tests.lab.nvml import GPU_IS_LOST
from tests.processes import running
from tests.sampling import gpus


def item(name: str, code: str, estimate: float = 1, limit: float = 60, counted: bool = True) -> Item:
    return Item(name, [sys.executable, "-c", code], estimate, limit, counted=counted)


def test_items_run_in_order_until_the_time_is_spent(tmp_path: Path) -> None:
    items = [item("first", "print(1)"), item("too-long", "", 1000), item("last", "print(2)")]
    results = run_items(items, 100, tmp_path / "out")
    assert [(result.name, result.status) for result in results] == [
        ("first", PASSED), ("too-long", NOT_RUN), ("last", PASSED),
    ]  # fmt: skip
    assert results[1].reason.startswith("needs about 1000 s, ")
    assert exit_code(results) == 0
    assert [stored["status"] for stored in json.loads((tmp_path / "out/items.json").read_text())] == [
        PASSED, NOT_RUN, PASSED,
    ]  # fmt: skip
    assert "| too-long | not run |" in (tmp_path / "out/items.md").read_text()


def test_an_environment_is_created_even_without_time_for_it(tmp_path: Path) -> None:
    items = [item("environment", "", 1000, counted=False), item("after", "", 9)]
    assert [result.status for result in run_items(items, 10, tmp_path)] == [PASSED, PASSED]
    control = [item("environment", "", 1000)]
    assert [result.status for result in run_items(control, 10, tmp_path / "control")] == [NOT_RUN]


def test_failing_and_hanging_items_are_recorded_and_the_others_run(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(987654)'])"
    items = [
        item("fails", "raise SystemExit(3)"),
        item("hangs", child, limit=1),
        Item("cannot-start", ["/no/such/program"], 1, 1),
        item("passes", ""),
    ]
    results = run_items(items, 100, tmp_path)
    assert [result.status for result in results] == [FAILED, TIMED_OUT, FAILED, PASSED]
    assert "exit code 3" in results[0].reason
    assert "limit of 1 s" in results[1].reason
    assert exit_code(results) == 1
    assert exit_code(results[3:]) == 0
    assert not [process.pid for process in running() if "time.sleep(987654)" in process.line]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no case in a results.json"),
        ("{", "JSONDecodeError"),
        ('{"cases": []}', "no case"),
        ('{"cases": [{"case": "m:pytorch:C:1:1:1", "speedup": null, "metrics": {}}]}', "p_core"),
        ('{"cases": [{"case": "m:pytorch:C:1:1:1", "speedup": null, "metrics": {"p_core": {"median": 0}}}]}', "> 0"),
    ],
)
def test_a_broken_result_is_a_failure(tmp_path: Path, content: str | None, reason: str) -> None:
    write = f"import pathlib; pathlib.Path({str(tmp_path / 'item/run1')!r}).mkdir()\n"
    if content is not None:
        write += f"pathlib.Path({str(tmp_path / 'item/run1/results.json')!r}).write_text({content!r})"
    (result,) = run_items([Item("item", [sys.executable, "-c", write], 1, 60, gpu.case_figures)], 60, tmp_path)
    assert result.status == FAILED
    assert reason in result.reason


def test_the_figures_of_a_good_result(tmp_path: Path) -> None:
    metrics = {"p_core": {"median": 5.5}, "mfu": {"median": 0.4}, "final_loss": {"median": 1}}
    (tmp_path / "run1").mkdir()
    case = {"case": "m:pytorch:C:1:1:1", "speedup": None, "metrics": metrics}
    (tmp_path / "run1/results.json").write_text(json.dumps({"cases": [case]}))
    assert gpu.case_figures(tmp_path) == {"p_core": 5.5, "mfu": 0.4}


@pytest.mark.parametrize(("difference", "good"), [("1.0e-06", True), ("2.0e-02", False), ("nan", False)])
def test_two_optimizers_must_compute_the_same_weights(tmp_path: Path, difference: str, good: bool) -> None:
    output = (
        f"  2.40 times as fast (quartiles 2 to 3)\n  difference after 9 steps: {difference} of the largest weight\n"
    )
    (tmp_path / "output.log").write_text(output)
    if good:
        assert gpu.optimizer_figures(tmp_path)["times as fast"] == 2.4
    else:
        with pytest.raises(ValueError, match="expected a difference"):
            gpu.optimizer_figures(tmp_path)


def test_one_device_leaves_out_the_items_for_several() -> None:
    vendor = Catalog.scan([REPO]).vendor("nvidia")
    skipped = [
        [item.name for item in gpu.make_items(["glm"], vendor, "H200", count, Path("out")) if item.skip]
        for count in (1, 8)
    ]
    assert skipped == [["glm-fsdp-converges", "resnet50-speedup"], []]


FIND = """
from benchmarks import gpu
from pytest_flagperf.catalog import Catalog
try:
    print(gpu.find_devices(Catalog.scan([gpu.REPO]).vendor("nvidia")))
except (gpu.NoDeviceError, gpu.UnusableDeviceError) as error:
    print(type(error).__name__, error)
"""


def test_only_a_missing_device_is_no_failure(tmp_path: Path) -> None:
    nvml, environment = gpus(tmp_path, 3)
    tools = tmp_path / "bin"
    tools.mkdir()
    environment["PATH"] = f"{tools}:{os.environ['PATH']}"

    def find() -> str:
        command = [sys.executable, "-c", FIND]
        return subprocess.run(
            command, cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        ).stdout

    assert find() == "('A100', 3)\n"
    nvml[1].set(error=GPU_IS_LOST)
    assert find().startswith("UnusableDeviceError device 1: ")
    nvml[1].set({"name": "NVIDIA Unheard 9"}, error=0)
    assert find().startswith("UnusableDeviceError device 1: got 'NVIDIA Unheard 9', expected one of A100, ")
    nvml.error(9)  # the library is installed, and the driver is not loaded
    assert find().startswith("UnusableDeviceError NVML: ")
    nvml.off()
    assert find().startswith("NoDeviceError ")
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho broken >&2; exit 9\n")
    (tools / "nvidia-smi").chmod(0o755)
    assert "exit code 9: broken" in find()
    assert find().startswith("UnusableDeviceError ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(gpu.NoDeviceError, 0, "no GPU found: why"), (gpu.UnusableDeviceError, 1, "cannot use the devices: why")],
)
def test_the_command_reports_why_it_measures_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: type[Exception], code: int, message: str
) -> None:
    def fail(_: object) -> tuple[str, int]:
        raise error("why")

    monkeypatch.setattr(gpu, "find_devices", fail)
    assert gpu.main([]) == code
    assert message in "".join(capsys.readouterr())


STOPPABLE = """
import sys
from pathlib import Path
from benchmarks import gpu
from benchmarks.items import Item
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(987653)'])"
gpu.REPO = Path(sys.argv[1])
gpu.Catalog.scan = lambda _, scan=gpu.Catalog.scan, root=Path.cwd(): scan([root])
gpu.make_items = lambda *_: [
    Item("first", [sys.executable, "-c", ""], 1, 60),
    Item("hangs", [sys.executable, "-c", child], 1, 60),
    Item("later", [sys.executable, "-c", ""], 1, 60),
]
sys.exit(gpu.main(["--vendor=cpu"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_item_and_reports_the_others(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", STOPPABLE, str(tmp_path)]
    process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def hanging() -> list[int]:
        return [one.pid for one in running() if one.words[-1:] == ["import time; time.sleep(987653)"]]

    try:
        deadline = time.monotonic() + 60
        while not hanging() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert hanging()
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert not hanging()
    (stored,) = tmp_path.glob("reports/gpu*/items.json")
    assert [result["status"] for result in json.loads(stored.read_text())] == [PASSED, STOPPED, NOT_RUN]
    assert f"stopped: hangs: {number.name} received" in output
    assert f"not run: later: {number.name} received" in output


def test_an_item_is_cut_without_failure_when_the_time_is_spent(tmp_path: Path) -> None:
    hangs = item("hangs", "import time; time.sleep(99)", estimate=0.5, limit=60)
    (result,) = run_items([hangs], 1, tmp_path)
    assert (result.status, exit_code([result])) == (STOPPED, 0)
    assert "time is spent" in result.reason
    control = item("hangs", "import time; time.sleep(99)", estimate=0.5, limit=1)
    (result,) = run_items([control], 60, tmp_path / "control")
    assert (result.status, exit_code([result])) == (TIMED_OUT, 1)


def test_the_last_durations_replace_the_guesses(tmp_path: Path) -> None:
    last, new = tmp_path / "gpu1", tmp_path / "gpu2"
    run_items([Item("one", ["echo", str(last)], 50, 60), Item("two", ["false"], 50, 60)], 100, last)
    (tmp_path / "gpu0").mkdir()
    (tmp_path / "gpu0/items.json").write_text("[{")
    items = [Item("one", ["echo", str(new)], 50, 60), Item("two", ["false"], 50, 60), Item("one", ["echo"], 50, 60)]
    known = with_last_durations(items, new)
    assert [item.estimate_from for item in known] == ["last run", "guess", "guess"]
    assert known[0].estimate_s < 50
    results = run_items(known[:2], 100, new)
    assert "(last run)" in (new / "items.md").read_text()
    assert results[1].row[2] == "50 (guess)"


@pytest.mark.parametrize(("word", "message"), [("--vendor=nvdia", "unknown vendor; choose"), ("--minutes=0", "more")])
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    with pytest.raises(SystemExit):
        gpu.main([word])
    assert message in capsys.readouterr().err


@pytest.mark.integration
def test_the_runs_have_plans() -> None:
    items = gpu.make_items(["bert"], Catalog.scan([REPO]).vendor("nvidia"), "H200", 8, Path("out"))
    commands = [item.command for item in items if item.figures is gpu.case_figures]
    for command in commands:
        done = subprocess.run([*command, "--plan"], cwd=REPO, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    control = [*commands[0], "--set=precision=int3", "--plan"]
    assert subprocess.run(control, cwd=REPO, capture_output=True).returncode != 0
