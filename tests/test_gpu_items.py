"""``make gpu``: the order of items, their limits and results; on a machine without a GPU, and with replaced NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.items import FAILED, NOT_RUN, PASSED, TIMED_OUT, Item, exit_code, run_items
from benchmarks.section import REPO
from pytest_flagperf.catalog import Catalog
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


FIND = "from benchmarks import gpu; from pytest_flagperf.catalog import Catalog; "
FIND += "print(gpu.find_devices(Catalog.scan([gpu.REPO]).vendor('nvidia')))"


def test_devices_are_found_through_nvml_and_named_after_their_chip(tmp_path: Path) -> None:
    nvml, environment = gpus(tmp_path, 3)

    def find() -> str:
        command = [sys.executable, "-c", FIND]
        return subprocess.run(
            command, cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        ).stdout

    assert find() == "('A100', 3, '')\n"
    nvml.off()
    assert "nvidia-smi" in find()


def test_without_a_device_it_says_so_and_succeeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_devices", lambda _: ("", 0, "no driver"))
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "no GPU found: no driver\n"


@pytest.mark.parametrize(("word", "message"), [("--vendor=nvdia", "unknown vendor; choose"), ("--minutes=0", "more")])
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    with pytest.raises(SystemExit):
        gpu.main([word])
    assert message in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize(("added", "valid"), [((), True), (("--set=precision=int3",), False)])
def test_the_runs_have_plans(added: tuple[str, ...], valid: bool) -> None:
    items = gpu.make_items(["bert"], Catalog.scan([REPO]).vendor("nvidia"), "H200", 8, Path("out"))
    for item in items:
        if item.figures is gpu.case_figures:
            done = subprocess.run([*item.command, *added, "--plan"], cwd=REPO, capture_output=True, text=True)
            assert (done.returncode == 0) == valid, (item.name, done.stdout, done.stderr)
