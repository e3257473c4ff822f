"""``tools.calibrate``: the small target, the reference curves and the README's table from stored rounds."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import CatalogError
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.kinds.training.verdicts import converges, reference
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.tables import store
from tests.helpers.recording import CONFIG, Entry, Training, write
from tests.helpers.stored_runs import finish
from tests.helpers.trees import SUITE_TOML, write_suite
from tools import calibrate as tool
from tools import readme, run_tool
from tools.calibration import TargetRange, choose, ended_at

Capture = pytest.CaptureFixture[str]
FILES = ("suites/toy/pytorch/suite.toml", "suites/toy/pytorch/README.md", "suites/toy/pytorch/reference/small.json")
SMALL = "target = 0.90  # a guess\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Path:
    write_suite(tmp_path, toml=SUITE_TOML.replace("target = 0.9\n", SMALL))
    monkeypatch.chdir(tmp_path)
    assert run_tool(readme, []) == 0
    capsys.readouterr()
    return tmp_path


def training(seed: int, end: float, nproc: int = 1, **changes: Any) -> Training:
    """A training of full length; each seed's curves differ a little."""

    def accuracy(step: int) -> float:
        return end * (1 - math.exp(-step / 25))

    def loss(step: int) -> float:
        return (1 + 0.004 * math.sin(seed)) * (2.3 * math.exp(-step / 80) + 0.1)

    good = Training(
        "toy",
        nproc=nproc,
        reason="max_steps",
        accuracy_at=accuracy,
        loss_at=loss,
        eval_every=10,
        plan_fields={"config": {**CONFIG, "max_steps": 200, "stop_at_target": False}, "seed": seed},
    )
    return replace(good, **changes)


def stored(run: Path, trainings: Iterable[Training]) -> Path:
    by_case: dict[str, list[Training]] = {}
    for one in trainings:
        by_case.setdefault(f"{one.model}_pytorch_CPU_{one.nnodes}_{one.nproc}", []).append(one)
    for name, rounds in by_case.items():
        folder = run / f"{name}_{len(rounds)}"
        for number, one in enumerate(rounds, 1):
            directory = write(replace(one, round=number, rounds=len(rounds)), folder / f"round{number}")
            outcome = measure(directory)
            store.save_outcome(directory, outcome)
            store.save_verdicts(folder, f"test_converges[round{number}]", training_verdicts.converges(outcome))
    return finish(run)


def ends(seed: int, nproc: int) -> float:
    """A mean of 0.95 and a deviation of about 0.003."""
    return 0.95 + 0.004 * math.sin(3 * seed + nproc)


def full_run(
    run: Path,
    end: Callable[[int, int], float] = ends,
    seeds: Iterable[int] = range(1, 7),
    shapes: Iterable[int] = (1, 2),
    **changes: Any,
) -> Path:
    seeds = [*seeds]
    return stored(run, [training(seed, end(seed, nproc), nproc, **changes) for nproc in shapes for seed in seeds])


def calibrate(capsys: Capture, *arguments: object, code: int = 0) -> str:
    assert run_tool(tool, [*map(str, arguments)]) == code
    out, err = capsys.readouterr()
    return out + err


def contents(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text() for name in FILES if (root / name).is_file()}


def test_one_step_writes_the_target_the_curves_and_the_table(root: Path, capsys: Capture) -> None:
    output = calibrate(capsys, full_run(root / "run1"))
    assert "toy:pytorch: target of top1: 0.9 (kept)" in output
    assert "a batch of 32 (1x1), 6 rounds:" in output
    assert "a batch of 64 (1x2), 6 rounds:" in output
    files = contents(root)
    assert SMALL in files[FILES[0]]
    assert "| 1 | 0.9" in files[FILES[1]]
    assert "**The target is top1 >= 0.900.** Every training had reached it by step " in files[FILES[1]]
    assert run_tool(readme, ["--check"]) == 0
    # The curves judge a round that stops at its target.
    stops = next(step for step in range(10, 201, 10) if training(9, 0.95).accuracy(step) >= 0.9)
    honest = measure(write(training(9, 0.95, steps=stops, reason="target"), root / "honest"))
    body = json.loads(files[FILES[2]])
    judged = {one.name: one for one in converges(replace(honest, reference=body))}
    assert judged["not_too_early"].ok
    assert "6 reference rounds needed" in judged["not_too_early"].expected
    again = calibrate(capsys, root / "run1")
    assert "wrote no file: all are up to date" in again
    assert contents(root) == files


def test_a_target_without_its_margin_moves_and_one_that_is_too_easy_too(root: Path, capsys: Capture) -> None:
    output = calibrate(capsys, full_run(root / "run1", lambda seed, nproc: ends(seed, nproc) - 0.35))
    assert "target of top1: 0.58 (was 0.9)" in output
    files = contents(root)
    assert "target = 0.58  # a guess" in files[FILES[0]]
    assert "target = 0.75" in files[FILES[0]]
    assert json.loads(files[FILES[2]])["of"]["target"]["value"] == 0.58
    assert "at least 0.580" in files[FILES[1]]
    assert run_tool(readme, ["--check"]) == 0
    # Rounds that reach 0.95 show that the target 0.58 is too easy.
    assert "target of top1: 0.93 (was 0.58)" in calibrate(capsys, full_run(root / "run2"))


def test_seeds_that_differ_too_much_are_refused(root: Path, capsys: Capture) -> None:
    before = contents(root)
    spread = full_run(root / "run1", lambda seed, nproc: 0.5 + 0.08 * seed * (nproc == 2))
    output = calibrate(capsys, spread, code=2)
    assert "toy:pytorch: no target for top1 has a margin: the hardest is" in output
    assert "1x2: mean 0.7797, deviation 0.1496" in output
    assert contents(root) == before


def test_a_target_must_be_reached_early_enough(root: Path, capsys: Capture) -> None:
    """A training that improves in its last steps gives an easier target than its end does."""

    def late(step: int) -> float:
        return min(0.8, step / 100) if step <= 160 else 0.95

    calibrate(capsys, full_run(root / "run1", accuracy_at=late))
    assert "target = 0.8  #" in contents(root)[FILES[0]]


def test_a_dry_run_writes_nothing_and_shows_the_changes(root: Path, capsys: Capture) -> None:
    before = contents(root)
    run = full_run(root / "run1", lambda seed, nproc: ends(seed, nproc) - 0.35)
    output = calibrate(capsys, run, "--dry-run")
    assert "-target = 0.90  # a guess\n+target = 0.58  # a guess" in output
    assert "+**The target is top1 >= 0.580.**" in output
    assert "nothing written, 3 files to change" in output
    assert contents(root) == before


def test_too_few_seeds_are_refused_with_the_command_to_run(root: Path, capsys: Capture) -> None:
    output = calibrate(capsys, full_run(root / "run1", seeds=range(1, 5)), code=2)
    assert "toy:pytorch: 1x1 has 4 trainings of full length, expected at least 5 seeds" in output
    command = "run: pytest suites/toy -k converges --nodes=1x1,1x2 --repeat=10 --set stop_at_target=False"
    assert command in output
    assert "1x2 has 0 trainings" in calibrate(capsys, full_run(root / "run2", shapes=[1]), code=2)
    assert FILES[2] not in contents(root)


def test_a_seed_counts_once(root: Path, capsys: Capture) -> None:
    runs = [full_run(root / "run1", seeds=range(1, 4)), full_run(root / "run2", seeds=range(3, 6))]
    output = calibrate(capsys, *runs)
    assert output.count("it has the same seed, 3, as run1") == 2
    assert "(1x1), 5 rounds" in output


LIKE_ALL: dict[str, Any] = {"config": {**CONFIG, "max_steps": 200, "stop_at_target": False}, "seed": 20}
LEFT_OUT = "note: left out: odd: toy:pytorch:CPU:1:1:1 round 1"


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"reason": "target"}, 0, "stopped by target, expected one of max_steps, max_epochs, max_samples"),
        ({"synthetic": True}, 0, LEFT_OUT),
        ({"throughput_only": True}, 0, LEFT_OUT),
        ({"loss_at": lambda step: math.nan}, 2, "1:1:1 round 1: round 1: the loss was NaN"),
        ({"state": "failed", "fault": {"kind": "exit"}}, 2, "fix its cause and repeat the run"),
        ({"accuracy_at": lambda step: math.nan}, 2, "top1: missing or not a number in an evaluation"),
        ({"scale": "reference"}, 2, "expected rounds of one scale, got reference, small"),
        ({"plan_fields": {**LIKE_ALL, "config": {**LIKE_ALL["config"], "learning_rate": 0.5}}}, 2, "learning_rate"),
        ({"plan_fields": {**LIKE_ALL, "fingerprint": {"suite_code": "another"}}}, 2, "suite_code"),
        ({}, 0, "(1x1), 7 rounds"),
    ],
)
def test_a_round_that_is_unlike_the_others_is_left_out_or_refused(
    changes: dict[str, Any], code: int, words: str, root: Path, capsys: Capture
) -> None:
    runs = [full_run(root / "good"), stored(root / "odd", [training(20, 0.95, **changes)])]
    assert words in calibrate(capsys, *runs, code=code)


def with_metrics(of: Callable[[float], dict[str, float]]) -> Callable[[int, list[Entry]], list[Entry]]:
    def edit(rank: int, entries: list[Entry]) -> list[Entry]:
        for _, event, body in entries:
            if event in ("EVALUATE", "INIT_EVALUATION"):
                body |= of(body["top1"])
        return entries

    return edit


def test_further_targets_are_calibrated_as_well(root: Path, capsys: Capture) -> None:
    file = root / FILES[0]
    file.write_text(file.read_text().replace(SMALL, "target = 0.9\nalso = { top5 = 0.98, top9 = 0.01 }\n"))
    edit = with_metrics(lambda top1: {"top5": top1 * 0.9, "top9": top1})
    output = calibrate(capsys, full_run(root / "run1", edit=edit))
    assert "target of top5: 0.83 (was 0.98)" in output
    files = contents(root)
    assert "also = { top5 = 0.83, top9 = 0.93 }" in files[FILES[0]]
    assert "1x1: top5 at the end" in files[FILES[1]]
    assert "top1 >= 0.900 and top5 >= 0.830 and top9 >= 0.930" in files[FILES[1]]
    assert json.loads(files[FILES[2]])["of"]["target"]["also"] == {"top5": 0.83, "top9": 0.93}


def test_a_further_target_may_guard_what_the_untrained_model_has(root: Path, capsys: Capture) -> None:
    file = root / FILES[0]
    file.write_text(file.read_text().replace(SMALL, "target = 0.9\nalso = { codes = 0.2 }\n"))
    run = full_run(root / "run1", edit=with_metrics(lambda top1: {"codes": 1 - top1 / 2}))
    assert "target of codes: 0.2 (kept); possible from any value (" in calibrate(capsys, run)
    file.write_text(file.read_text().replace("codes = 0.2", "codes = 0.9"))
    assert "(was 0.9)" in calibrate(capsys, run), "the control: the trained models do not keep as much"


def test_of_the_reference_scale_only_the_curves_are_written(root: Path, capsys: Capture) -> None:
    before = contents(root)
    output = calibrate(capsys, full_run(root / "run1", shapes=[1], scale="reference", reason="target"))
    assert "a batch of 32 (1x1), 6 rounds:" in output
    assert contents(root) == before
    file = root / "suites/toy/pytorch/reference/reference.json"
    assert json.loads(file.read_text())["of"]["target"]["value"] == 0.75
    both = calibrate(capsys, full_run(root / "run2", shapes=[2], scale="reference"))
    assert "a batch of 32 (1x1), 6 rounds" in both
    assert "a batch of 64 (1x2), 6 rounds" in both
    few = calibrate(capsys, full_run(root / "run3", seeds=[1], scale="reference"), code=2)
    assert "no batch size has 5 rounds of the reference scale" in few


def test_rounds_with_too_few_evaluations_for_a_verdict_are_a_note(root: Path, capsys: Capture) -> None:
    output = calibrate(capsys, full_run(root / "run1", shapes=[1], scale="reference", eval_every=50))
    assert "note: a batch of 32: the rounds were evaluated every 1,600 images, too rarely for" in output
    assert "set eval_samples to " in output


def test_curves_of_full_trainings_are_those_of_trainings_that_stop(tmp_path: Path) -> None:
    full, stopped = [], []
    for seed in range(1, 6):
        one = training(seed, ends(seed, 1))
        steps = next(step for step in range(10, 201, 10) if one.accuracy(step) >= 0.9)
        full.append(measure(write(one, tmp_path / f"full{seed}")))
        stopped.append(measure(write(replace(one, steps=steps, reason="target"), tmp_path / f"stopped{seed}")))
    curves = [
        reference.of_rounds([("run1", one) for one in rounds])
        for rounds in ([ended_at(one, one.target) for one in full], stopped)
    ]
    assert curves[0] == curves[1]
    assert reference.of_rounds([("run1", one) for one in full]) != curves[1]  # the control


@pytest.mark.parametrize(
    ("easiest", "hardest", "direction", "current", "chosen"),
    [
        (0.6, 0.9729, "higher", 0.95, 0.95),
        (0.6, 0.9729, "higher", 0.98, 0.97),
        (0.971, 0.9729, "higher", 0.5, 0.972),
        (0.98, 0.97, "higher", 0.975, None),
        (0.6, 0.9, "higher", 0.0, 0.9),
        (9.1, 4.321, "lower", 5.0, 5.0),
        (9.1, 4.321, "lower", 4.0, 4.4),
        (4.0, 4.321, "lower", 4.1, None),
        (-3.0, -5.724, "lower", -6.0, -5.7),
        (120.0, 267.9, "higher", 300.0, 260.0),
    ],
)
def test_a_target_is_kept_or_rounded_to_the_easier_side(
    easiest: float, hardest: float, direction: str, current: float, chosen: float | None
) -> None:
    assert choose(current, TargetRange(easiest, hardest, "", "", direction)) == chosen


def test_a_number_of_a_toml_file_is_replaced(tmp_path: Path) -> None:
    text = '[a]\ntarget = 1\n[a.b] # b\n"target"=  0.5# c\nalso = { target = 1, x-y = -2e3 }\n'
    changed = tool.with_number(text, ("a", "b", "target"), 0.25, tmp_path)
    assert changed == text.replace("0.5", "0.25")
    assert tool.with_number(text, ("a", "b", "also", "x-y"), 7.0, tmp_path) == text.replace("-2e3", "7.0")
    assert tool.with_number(text, ("a", "target"), 2.0, tmp_path) == text.replace("target = 1\n", "target = 2.0\n")
    with pytest.raises(CatalogError, match=r"set it to 2\.0 by hand"):
        tool.with_number("[a]\nb = [\n 1]\n", ("a", "b"), 2.0, tmp_path)
