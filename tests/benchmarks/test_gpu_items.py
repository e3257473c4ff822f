"""``make gpu``: the order of items, their limits and results; on a machine without a GPU, and with replaced NVML."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_items, publish, site_python
from benchmarks.items import (
    FAILED,
    GRACE_S,
    NOT_RUN,
    PASSED,
    STOPPED,
    TIMED_OUT,
    Figure,
    Item,
    Measured,
    Result,
    Slice,
    exit_code,
    read_result,
    run_items,
    slices,
    stored_results,
    waiting,
    with_last_durations,
)
from benchmarks.section import REPO
from pytest_flagperf import stored
from pytest_flagperf.catalog import Catalog, Goal
from pytest_flagperf.stored import FormatError
from tests.helpers.processes import running
from tests.helpers.sampling import gpus
from tests.helpers.waiting import until
from tests.lab.nvml import GPU_IS_LOST


def item(name: str, code: str, estimate: float = 1, limit: float = 60) -> Item:
    return Item(name, [sys.executable, "-c", code], estimate, limit)


def statuses(results: list[Result]) -> list[str]:
    return [result.status for result in results]


def test_items_run_in_order_until_the_slice_ends_and_the_next_call_continues(tmp_path: Path) -> None:
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    items = [item("first", count), item("long", count, 1000), item("last", count)]
    results = run_items(items, Slice(100), tmp_path / "state")
    assert statuses(results) == [PASSED, NOT_RUN, PASSED]
    assert results[1].reason.startswith("needs about 1000 s, ")
    assert "| long | not run |" in (tmp_path / "state/items.md").read_text()
    run_items(items[:1], Slice(100), tmp_path / "state")
    assert "| long |" not in (tmp_path / "state/items.md").read_text(), "the table is that of the call's items"
    results = run_items(items, Slice(100), tmp_path / "state")
    assert statuses(results) == [PASSED] * 3, "an item that is longer than a slice comes first in one"
    assert exit_code(results) == 0
    assert run_items(items, Slice(100), tmp_path / "state") == results
    assert (tmp_path / "count").read_text() == "xxx", "an item that is done does not run again"


def test_the_plan_has_the_items_of_each_slice() -> None:
    items = [
        item("a", "", 50), item("b", "", 60), item("c", "", 20), Item("no", [], 1, 1, skip="why"), item("d", "", 500),
    ]  # fmt: skip
    items.append(Item("parts", [], 100, 60, parts=10))
    planned = [[one.name for one in chosen] for chosen in slices(items, 85 + GRACE_S)]
    assert planned == [["a", "c"], ["b"], ["d"], ["parts"], ["parts"]]


def test_failing_and_hanging_items_are_recorded_and_the_others_run(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(987654)'])"
    items = [
        item("fails", "raise SystemExit(3)"),
        item("hangs", child, limit=1),
        Item("cannot-start", ["/no/such/program"], 1, 1),
        item("passes", ""),
    ]
    results = run_items(items, Slice(100), tmp_path)
    assert statuses(results) == [FAILED, TIMED_OUT, FAILED, PASSED]
    assert "exit code 3" in results[0].reason
    assert "limit of 1 s" in results[1].reason
    assert exit_code(results) == 1
    assert exit_code(results[3:]) == 0
    assert not [process.pid for process in running() if "time.sleep(987654)" in process.line]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no case that passed in a results.json"),
        ("{", "JSONDecodeError"),
        ('{"cases": []}', "no case"),
        ('{"cases": [{"case": "m:pytorch:C:1:1:1", "ok": true, "speedup": null, "metrics": {}}]}', "p_core"),
        ('{"cases": [{"case": "m:pytorch:C:1:1:1", "ok": true, "metrics": {"p_core": {"median": 0}}}]}', "> 0"),
    ],
)
def test_a_broken_result_is_a_failure(tmp_path: Path, content: str | None, reason: str) -> None:
    write = f"import pathlib; pathlib.Path({str(tmp_path / 'item/run1')!r}).mkdir()\n"
    if content is not None:
        write += f"pathlib.Path({str(tmp_path / 'item/run1/results.json')!r}).write_text({content!r})"
    (result,) = run_items([Item("item", [sys.executable, "-c", write], 1, 60, gpu_items.measured)], Slice(60), tmp_path)
    assert result.status == FAILED
    assert reason in result.reason


def stored_case(model: str, ok: bool = True) -> dict[str, object]:
    metrics = {
        "p_core": {"median": 380.0, "unit": "sequences/s"}, "mfu": {"median": 0.4, "unit": "share"},
        "time_to_target": {"median": 9.0, "unit": "s"}, "final_loss": {"median": 1, "unit": ""},
    }  # fmt: skip
    outcome = {
        "machine": {"power_limit": "700 W"}, "environment": {"framework": "pytorch 2", "device": "no"},
        "fingerprint": {"deviations": {"version torch": ["2.11", "==2.15"], "learning_rate": [1, 2]}},
        "profile": {"largest_loss": "input: 31 % waiting", "of_peaks": {"FLOPs": 0.4}},
        "validity_warnings": [{"kind": "throttled"}],
    }  # fmt: skip
    return {"case": f"{model}:pytorch:H200:1:1:1", "ok": ok, "speedup": None, "metrics": metrics, "outcomes": [outcome]}


def write_run(folder: Path, *cases: dict[str, object]) -> None:
    (folder / "run1").mkdir(parents=True)
    (folder / "run1/results.json").write_text(json.dumps({"cases": cases}))


def test_a_result_has_figures_machine_and_the_share_of_the_goal(tmp_path: Path) -> None:
    write_run(tmp_path, stored_case("bert"))
    measured = gpu_items.measured(tmp_path)
    goal = Goal("H200", 400, 128, "somewhere")
    result = Item("bert", [], 1, 1, goal=goal).result(PASSED, "", 7.0, measured)
    assert result.row[3:] == (
        "p_core 380 sequences/s, mfu 40.0 %, time_to_target 9 s, power limit 700 W, validity warnings throttled; "
        "input: 31 % waiting; of the chip's peaks: FLOPs 40 %",
        "95% of 400 on H200",
    )  # fmt: skip
    assert result.machine == {
        "power_limit": "700 W", "framework": "pytorch 2", "version torch": "2.11, required ==2.15",
        "validity warnings": "throttled",
    }  # fmt: skip
    stored.write(tmp_path / "result.json", result)
    assert read_result(tmp_path / "result.json") == result


def test_an_item_of_the_machine_has_the_figures_that_its_suite_declares(tmp_path: Path) -> None:
    stored = stored_case("computation")
    outcome: dict[str, object] = {"machine": {}, "environment": {}, "fingerprint": {}, "validity_warnings": []}
    outcome["figures"] = [{"name": "matmul_fp32"}, {"name": "matmul_fp8"}]
    stored |= {"outcomes": [outcome], "metrics": {"matmul_fp32": {"median": 5e13, "unit": "FLOP/s"}}}
    write_run(tmp_path / "one", stored)
    assert gpu_items.measured(tmp_path / "one").figures == {"matmul_fp32": Figure(5e13, "FLOP/s")}
    stored["metrics"] = {"matmul_fp32": {"median": 0, "unit": "FLOP/s"}}
    write_run(tmp_path / "other", stored)
    with pytest.raises(ValueError, match="expected matmul_fp32 > 0"):
        gpu_items.measured(tmp_path / "other")


def test_convergence_has_the_time_of_each_model(tmp_path: Path) -> None:
    write_run(tmp_path, stored_case("bert"), stored_case("cpm", ok=False), stored_case("glm"))
    assert list(gpu_items.convergence(tmp_path).figures) == ["bert time_to_target", "glm time_to_target"]


def test_what_passed_is_published_before_the_next_item(tmp_path: Path) -> None:
    bad, good = stored_case("bert", ok=False), stored_case("glm")
    items = []
    for name, cases in {"all-fail": [bad], "some-pass": [bad, good]}.items():
        file, content = str(tmp_path / name / "run1/results.json"), json.dumps({"cases": cases})
        code = f"import pathlib\nfile = pathlib.Path({file!r})\nfile.parent.mkdir()\nfile.write_text({content!r})"
        items.append(Item(name, [sys.executable, "-c", f"{code}\nraise SystemExit(1)"], 1, 60, gpu_items.measured))
    published_first = f"import os, sys; sys.exit(len(os.listdir({str(tmp_path / 'publish')!r})) != 1)"
    items.append(item("last", published_first))
    results = run_items(items, Slice(60), tmp_path, publish=lambda result: publish.collect(result, tmp_path, "H200"))
    assert statuses(results) == [FAILED, FAILED, PASSED]
    (place,) = (tmp_path / "publish").iterdir()
    assert place.name.startswith("h200-some-pass-")
    assert (place / "results.json").read_bytes() == (tmp_path / "some-pass/run1/results.json").read_bytes()
    published, catalog = tmp_path / "publish", Catalog.scan([REPO])
    text = publish.published_items(published, catalog)
    owed = "Owed on H200, by the command that measures it, `make gpu VENDOR=nvidia ITEMS=NAME`: `computation`, "
    assert owed in text
    assert "| H200 | some-pass | failed | exit code 1; " in text, "the result of an item that is no more"
    place.rename(published / "h200-bert-bf16-compiled-2026-11-26")
    item_file = published / "h200-bert-bf16-compiled-2026-11-26/item.json"
    item_file.write_text(item_file.read_text().replace('"some-pass"', '"bert-bf16-compiled"'))
    text = publish.published_items(published, catalog)
    assert "`llama31_8b-bf16-compiled`, `gpt_oss_20b-bf16-compiled`, `flux1-bf16-compiled`, " in text
    assert "| H200 | bert-bf16-compiled | failed | exit code 1; " in text
    for content, message in (
        ("{", "invalid JSON"),
        (item_file.read_text().replace('"H200"', '"H9"'), "machine.hardware is 'H9'; expected a chip"),
        (item_file.read_text().replace("380.0", "[]"), "figures"),
    ):
        (published / "h200-bert-bf16-compiled-2026-11-26/item.json").write_text(content)
        with pytest.raises(FormatError, match=message):
            publish.published_items(published, catalog)


def test_a_result_that_was_changed_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish, "STATE", tmp_path / "state")
    monkeypatch.setattr(publish, "PUBLISHED", tmp_path / "published")
    for name, files in {"changed": ["item.json", "results.json"], "lamb": ["item.json"]}.items():
        (place := tmp_path / "state/H200-1/publish" / name).mkdir(parents=True)
        for file in files:
            (place / file).write_text("{}")
    assert publish.publish() == 1
    assert f"not published: {tmp_path}/state/H200-1/publish/changed/results.json: " in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "published").iterdir()] == ["lamb"]


FASTER = "  2.40 times as fast (quartiles 2 to 3)\n  difference after 9 steps: {} of the largest weight\n"
READERS = "pillow 70 images/s, pixels differ by 0.000\n"


@pytest.mark.parametrize(
    ("read", "output", "problem"),
    [
        (gpu_items.optimizers, FASTER.format("2.0e-02"), "expected a difference"),
        (gpu_items.optimizers, FASTER.format("nan"), "expected a difference"),
        (gpu_items.readers, READERS, "at least 2 readers"),
        (
            gpu_items.readers,
            f"{READERS}torchvision 900 images/s, pixels differ by 40.1\n",
            r"torchvision: expected a difference of at most 4\.0, got 40\.1",
        ),
        (gpu_items.mixture, "one call: 50000 tokens/s, MFU 40.0%, 60.0 GiB\n", "of one call and of the loop"),
    ],
)
def test_a_program_that_prints_too_little_or_too_large_a_difference_has_failed(
    tmp_path: Path, read: Callable[[Path], Measured], output: str, problem: str
) -> None:
    (tmp_path / "output.log").write_text(output)
    with pytest.raises(ValueError, match=problem):
        read(tmp_path)


PROGRAMS = {
    "bert": (gpu_items.optimizers, "--layers=1 --width=64 --words=99 --pairs=3"),
    "resnet50": (gpu_items.readers, "--pictures=64 --batch=16"),
    "gpt_oss_20b": (gpu_items.mixture, "--width=64 --hidden=64 --words=99 --length=32 --steps=2 --batch=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "program"), [*zip(PROGRAMS, gpu_items.PROGRAMS, strict=True)])
def test_a_program_runs_and_its_figures_are_read(
    suite_python: Callable[[Path], str], tmp_path: Path, model: str, program: str
) -> None:
    read, words = PROGRAMS[model]
    python = suite_python(REPO / "suites" / model / "pytorch")
    environment = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'suites'}", "TRITON_INTERPRET": "1"}
    with (tmp_path / "output.log").open("w") as output:
        subprocess.run([python, program, *words.split()], cwd=REPO, env=environment, stdout=output, check=True)
    assert len(read(tmp_path).figures) > 1


def planned(environment: dict[str, str], *words: str) -> str:
    """Return the exit code of a call that only plans, and what it prints."""
    command, env = [sys.executable, "-m", "benchmarks.gpu", "--plan", *words], {**os.environ, **environment}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_only_a_missing_device_is_no_failure(tmp_path: Path) -> None:
    nvml, environment = gpus(tmp_path, 3)
    tools = tmp_path / "bin"
    tools.mkdir()
    environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    unusable = "1 cannot use the devices: "
    assert planned(environment).startswith("0 nvidia A100, 3 devices, ")
    nvml[1].set(error=GPU_IS_LOST)
    assert planned(environment).startswith(f"{unusable}device 1: ")
    nvml[1].set({"name": "NVIDIA Unheard 9"}, error=0)
    assert planned(environment).startswith(f"{unusable}device 1: got 'NVIDIA Unheard 9', expected one of A100, ")
    nvml.error(9)  # the library is installed, and the driver is not loaded
    assert planned(environment).startswith(f"{unusable}NVML: ")
    nvml.off()
    assert planned(environment).startswith("0 no GPU found: ")
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho broken >&2; exit 9\n")
    (tools / "nvidia-smi").chmod(0o755)
    assert re.match(f"{unusable}.*exit code 9: broken", planned(environment))


STOPPABLE = """
import sys
from collections.abc import Callable
from pathlib import Path
from benchmarks import gpu
from benchmarks.items import Item
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(987653)'])"
gpu.REPO = Path(sys.argv[1])
gpu.STATE = gpu.REPO / "reports/gpu"
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
        until(lambda: hanging() or process.poll() is not None, "the item")
        assert hanging()
        other = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
        assert (other.returncode, other.stderr) == (
            1, "another call of this checkout measures: wait for its end, or stop it\n",
        )  # fmt: skip
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert not hanging()
    stored_files = tmp_path.glob("reports/gpu/*/*/result.json")
    assert {path.parent.name: read_result(path).status for path in stored_files} == {"first": PASSED, "hangs": STOPPED}
    assert f"stopped: hangs: {number.name} received" in output
    assert f"not run: later: {number.name} received" in output
    assert "2 items left, about 0 minutes: run the same command again" in output


def test_an_item_that_does_not_end_within_a_slice_runs_again_with_a_longer_one(tmp_path: Path) -> None:
    started, end, state = tmp_path / "started", tmp_path / "end", tmp_path / "state"
    code = f"from pathlib import Path\nimport time\nPath({str(started)!r}).touch()\n"
    items = [item("first", ""), item("long", f"{code}while not Path({str(end)!r}).exists(): time.sleep(0.01)", 5, 999)]

    def call(seconds: float) -> list[Result]:
        started.unlink(missing_ok=True)
        return run_items(items, Slice(seconds, clock=lambda: 100 if started.exists() else 0), state)

    results = call(100)
    assert (statuses(results), exit_code(results)) == ([PASSED, STOPPED], 0)
    results = call(100)
    assert (statuses(results), exit_code(results)) == ([PASSED, TIMED_OUT], 1)
    assert "did not end within a slice: pass a longer SLICE" in results[1].reason
    assert results[1].took_s == 100
    assert [(one.name, one.estimate_s) for one in waiting(items, stored_results(items, state))] == [("long", 100)]
    end.touch()
    assert statuses(call(200)) == [PASSED, PASSED]


def test_failed_items_run_again_after_those_that_no_call_has_tried(tmp_path: Path) -> None:
    good = tmp_path / "good"
    items = [item("fails", f"import os, sys; sys.exit(not os.path.exists({str(good)!r}))"), item("new", "")]
    results = run_items(items[:1], Slice(100), tmp_path)
    assert gpu.closing(items, results, tmp_path).endswith("1 items failed: the same command runs them again")
    before = stored_results(items, tmp_path)
    assert [one.name for one in waiting(items, before)] == ["new", "fails"]
    rows = [row.split("|")[2].strip() for row in gpu.plan_text(items, 100, before).splitlines()[2:]]
    assert rows == ["new", "fails"]
    good.touch()
    results = run_items(items, Slice(100), tmp_path)
    assert gpu.closing(items, results, tmp_path) == "all done"
    assert gpu.plan_text(items, 100, stored_results(items, tmp_path)).splitlines()[2:] == ["done: fails", "done: new"]


def test_the_last_durations_replace_the_guesses(tmp_path: Path) -> None:
    last, new = tmp_path / "H200-1", tmp_path / "H200-2"
    run_items([Item("one", ["echo", last.name], 50, 60), Item("two", ["false"], 50, 60)], Slice(100), last)
    (tmp_path / "H200-0/one").mkdir(parents=True)
    (tmp_path / "H200-0/one/result.json").write_text("[{")
    items = [Item("one", ["echo", new.name], 50, 60), Item("two", ["false"], 50, 60), Item("one", ["echo"], 50, 60)]
    known = with_last_durations(items, new)
    assert [item.estimate_from for item in known] == ["last run", "guess", "guess"]
    assert known[0].estimate_s < 50


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--vendor=nvdia", "unknown vendor; choose"),
        ("--slice=1", "expected at least 2 minutes"),
        ("--slice=nan", "expected at least 2 minutes"),
        ("--wheels=/no/wheels", "--wheels=/no/wheels: no such folder"),
        ("--items=lamb,berd*", "no item 'berd*'; choose from preflight, computation, main_memory, "),
    ],
)
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--vendor=cpu", word])
    assert message in capsys.readouterr().err


def make_python(folder: Path, answer: str, code: int = 0) -> Path:
    """Write a program that answers like a Python that was asked for its PyTorch."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\necho '{answer}' >&{2 if code else 1}\nexit {code}\n")
    python.chmod(0o755)
    return python


def test_the_first_python_that_sees_the_device_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = make_python(tmp_path / "blind", "PyTorch 2.9 cannot use cuda: no driver", 1)
    good = make_python(tmp_path / "good", "2.11.0+cu130")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", f"{good.parent}")
    site, line = site_python.find("cuda", None, {"python": str(blind)})
    assert site == site_python.SitePython(str(good), "2.11.0+cu130")
    assert site.words == ["--runtime=host", f"--python={good}"]
    assert line == (
        f"Python of the ranks: {good} (PATH) with PyTorch 2.11.0+cu130; "
        f"not {blind} (flagperf.toml): PyTorch 2.9 cannot use cuda: no driver"
    )
    assert site_python.find("cuda", str(good), {"runtime": "docker"})[0] == site, "the user's choice comes first"
    assert site_python.find("cuda", None, {"runtime": "docker"})[0] is None
    monkeypatch.setenv("PATH", f"{blind.parent}")
    site, line = site_python.find("cuda", None, {})
    assert site is None
    assert line.startswith(f"Python of the ranks: the vendor's runtime; not {blind} (PATH): PyTorch 2.9 cannot")
    with pytest.raises(site_python.SitePythonError, match=f"SITE_PYTHON={blind}: PyTorch 2.9 cannot use cuda"):
        site_python.find("cuda", str(blind), {})
    with pytest.raises(site_python.SitePythonError, match="SITE_PYTHON=/no/python: No such file"):
        site_python.find("cuda", "/no/python", {})


def test_a_python_without_pytorch_is_refused_and_one_without_the_device(tmp_path: Path) -> None:
    with pytest.raises(site_python.SitePythonError, match="no PyTorch: No module named 'torch'"):
        site_python.find("cpu", sys.executable, {})
    (tmp_path / "torch.py").write_text("__version__ = '2'\ndef ones(number, device):\n    raise OSError('no driver')\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(site_python.SitePythonError, match="PyTorch 2 cannot use cuda: no driver"):
        site_python.find("cuda", str(python), {})


def test_the_plan_of_an_h100_begins_with_what_is_worth_most(tmp_path: Path) -> None:
    nvml, environment = gpus(tmp_path, 1)
    nvml[0].set({"name": "NVIDIA H100 80GB HBM3"})
    python = make_python(tmp_path / "site", "2.11.0+cu130")
    first, second, _, _, *rows = planned(environment, f"--python={python}").splitlines()
    assert first.startswith("0 nvidia H100, 1 devices, slices of 9 minutes; results: reports/gpu/H100-")
    assert first.endswith("-torch2.11.0+cu130")
    assert second == f"Python of the ranks: {python} (SITE_PYTHON) with PyTorch 2.11.0+cu130"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]
    names = list(dict.fromkeys(name for _, name, *_ in cells))
    assert [name for name in names if name.endswith("-compiled")][:3] == [
        "llama32_1b-bf16-compiled", "resnet50-bf16-compiled", "bert-bf16-compiled",
    ]  # fmt: skip
    models = {model for model, framework in Catalog.scan([REPO]).trainings if framework == "pytorch"}
    models -= gpu_items.DEVICES.keys()
    assert {name for name in names if name.endswith("-compiled")} == {f"{model}-bf16-compiled" for model in models}
    assert len(cells) in (len(names), len(names) + 1), "only the convergence of all models continues in another slice"
    commands = [words for _, _, _, words in cells if words.startswith("pytest ")]
    assert len(commands) == len(cells) - 3, "all but lamb, readers and mixture are runs of pytest"
    assert all("-k pytorch --vendor=nvidia --hw=H100 --nodes=1x1" in words for words in commands)
    assert all(f"--runtime=host --python={python}" in words for words in commands)
    assert "skipped: interconnect: needs at least 2 devices, 1 found" in rows


@pytest.mark.integration
def test_the_runs_have_plans() -> None:
    names = (
        "flux1-bf16-compiled", "bert-bf16-compile_mode-max-autotune", "converges", "resnet50-fp16-converges",
        "glm-fsdp-converges",
    )  # fmt: skip
    catalog = Catalog.scan([REPO])
    target = gpu_items.Target(catalog, catalog.vendor("nvidia"), "H200", 8)
    items = {item.name: item for item in gpu_items.make_items(target, Path("out"))}
    commands = [items[name].command for name in names]
    for command in commands:
        done = subprocess.run([*command, "--plan"], cwd=REPO, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    control = [*commands[0], "--set=precision=int3", "--plan"]
    assert subprocess.run(control, cwd=REPO, capture_output=True).returncode != 0
