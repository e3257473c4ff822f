"""The limits of a step by the machine's measured figures: their arithmetic, whose figures count, page, comparison."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.training.profile import StepBytes
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.results.measured.limits import (
    ALL_REDUCE,
    MEMORY_FIGURES,
    MachineRates,
    Place,
    StepWork,
    interpolated,
    of_step,
    rates_of,
    work_of,
)
from pytest_flagperf.results.measured.outcome import MetricValue, Outcome, TrainingWork
from pytest_flagperf.results.measured.profile import Profile
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.stored.plan import MeasuredFigure
from pytest_flagperf_compare.machines import explained
from pytest_flagperf_page import page
from tests.helpers.command_line import flagperf
from tests.helpers.stored_runs import Change, add_case, finish, run_of

HERE = Place("acme", "X9", "pytorch", frozenset(["h1"]), 1, 2)
WORK = StepWork(HERE, "bf16", seconds=0.1, samples=64.0, flops=40e12, bytes=90e9, operations=200e9, exchanged=1e9)
RATES = MachineRates(flops=800e12, bytes=3e12, all_reduce=((1e6, 0.0002), (512e6, 0.008), (1e9, 0.0151)))


def test_each_limit_counts_one_of_them_alone() -> None:
    limits = of_step(WORK, RATES)
    assert limits is not None
    assert limits.times == {
        "compute": pytest.approx(0.05), "memory": pytest.approx(0.03), "communication": pytest.approx(0.0151),
    }  # fmt: skip
    assert (limits.binds, limits.above) == ("compute", ())
    assert limits.share(limits.least) == pytest.approx(0.5)
    assert limits.operations == pytest.approx(200 / 3000)
    assert limits.rate(limits.least) == pytest.approx(1280)
    slower = of_step(replace(WORK, seconds=0.047), RATES)
    assert slower is not None
    assert slower.above == ("compute",), "0.050 s is 6 % more than 0.047 s"
    assert of_step(replace(WORK, seconds=0.048), RATES).above == (), "within the tolerance"  # type: ignore[union-attr]
    assert of_step(replace(WORK, flops=None, bytes=None, exchanged=None), RATES) is None
    assert of_step(WORK, MachineRates()) is None


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(1e3, 0.0002), (1e6, 0.0002), (256.5e6, 0.0041), (512e6, 0.008), (756e6, 0.01155), (2e9, 0.0302)],
)
def test_an_all_reduce_between_two_measured_sizes(size: float, seconds: float) -> None:
    assert interpolated(RATES.all_reduce, size) == pytest.approx(seconds)
    assert interpolated((), size) is None


def outcome(model: str, shape: tuple[int, int] = (1, 2), hosts: str = "h1", **fields: Any) -> Outcome:
    base = {
        "vendor": "acme", "hardware": "X9", "framework": "pytorch", "state": "finished", "scale": "small", "round": 1,
        "environment": {"precision": "bf16", "hosts": hosts}, "seed": 1, "synthetic": True, "throughput_only": True,
        "sample_unit": "images", "target": None,
    }  # fmt: skip
    case = f"{model}:pytorch:X9:{shape[0]}:{shape[1]}:1"
    return Outcome(**{**base, "case": case, "model": model, "nnodes": shape[0], "nproc": shape[1], **fields})


def measured(model: str, rates: dict[str, float], points: Sequence[MeasuredPoint] = (), **fields: Any) -> Outcome:
    metrics = tuple(MetricValue(name, value, "FLOP/s", "higher", "") for name, value in rates.items())
    return outcome(model, metrics=metrics, points=(*points, MeasuredPoint("one", {}, {})), **fields)


REDUCED = [MeasuredPoint(f"all_reduce {size}", {"bytes": size}, {"all_reduce": 1e9}, time) for size, time in
           ((512_000_000, 0.008), (1_000_000, 0.0002))]  # fmt: skip


def test_the_rates_are_those_of_the_same_machine() -> None:
    memory = measured("mem", {"copy_bandwidth": 2.7e12, "update_bandwidth": 3e12, "read_bandwidth": 9e12}, shape=(1, 1))
    others = [
        measured("other-vendor", {"matmul_bf16": 1.0}, vendor="other"),
        measured("other-chip", {"matmul_bf16": 2.0}, hardware="X1"),
        measured("more-cards", {"matmul_bf16": 3.0}, shape=(1, 8)),
        measured("other-host", {"matmul_bf16": 4.0}, hosts="h2"),
        measured("failed", {"matmul_bf16": 5.0}, state="failed"),
        measured("one-card", {"matmul_bf16": 6.0}, REDUCED, shape=(1, 1)),
        outcome("no-measurement", metrics=(MetricValue("matmul_bf16", 7.0, "", None, ""),)),
    ]
    rounds = [measured("mm", {"matmul_bf16": value}) for value in (790e12, 800e12, 990e12)]
    warned = (ValidityWarning("busy", "a rank waited"),)
    wrong = MeasuredFigure("matmul_bf16", "FLOP/s", "higher", peak=1000e12)
    others += [
        measured("busy", {"matmul_bf16": 8.0}, validity_warnings=warned),
        measured("impossible", {"matmul_bf16": 1051e12}, figures=(wrong,)),
    ]
    rounds.append(measured("mm", {"matmul_bf16": 9.0}, validity_warnings=warned))
    rates = rates_of(WORK, [*others, *rounds, memory, measured("ic", {}, REDUCED)])
    assert rates == replace(
        RATES,
        all_reduce=RATES.all_reduce[:2],
        sources={
            "compute": "matmul_bf16 800 TFLOP/s of mm:pytorch:X9:1:2:1",
            "memory": "update_bandwidth 3 TFLOP/s of mem:pytorch:X9:1:1:1",
            "communication": "all_reduce of 2 sizes of ic:pytorch:X9:1:2:1",
        },
    )
    assert rates_of(WORK, others[:5]) == MachineRates()
    assert rates_of(replace(WORK, precision="fp16"), rounds).flops is None
    assert rates_of(WORK, others[7:8]).flops == 8.0, "the only round counts, whatever its warnings"
    assert rates_of(WORK, others[8:]).flops is None


PROFILE = Profile(
    10, 0.1, 0.0, 0.1, 0.01, 0.1, {}, {}, {}, (), 1.0, 1.0, 0.0, 0.0, 0.0, bytes=StepBytes(90e9, None, 1e9)
)


def trained(p_core: float, hosts: str = "h1", **fields: Any) -> Outcome:
    metrics = (MetricValue("p_core", p_core, "images/s", "higher", ""), MetricValue("mfu", 0.4, "share", "higher", ""))
    work = TrainingWork(measured_steps=10, measured_samples=640, step_flops=40e12)
    return outcome("net", hosts=hosts, metrics=metrics, work=work, profile=PROFILE, **fields)


def test_the_work_of_a_step_is_that_of_the_rounds_that_ended_well() -> None:
    rounds = [trained(1.0, state="failed"), trained(640.0), trained(620.0), trained(650.0)]
    expected = replace(WORK, operations=None, mfu=0.4, unit="images/s")
    assert work_of(rounds) == expected
    assert work_of([replace(trained(640.0), profile=None)]) == replace(expected, bytes=None, exchanged=None)
    assert work_of(rounds[:1]) is None
    assert work_of([measured("mm", {"matmul_bf16": 800e12})]) is None


@pytest.mark.parametrize(
    ("rate", "seconds", "samples", "words"),
    [
        (1600e12, 0.075, 64, "takes 75 ms instead of 100 ms; its limit by compute on the measured machines is 25 ms "
                             "instead of 50 ms: the machines explain 100 % of the difference"),
        (1000e12, 0.075, 64, "is 40 ms instead of 50 ms: the machines explain 40 % of the difference"),
        (1000e12, 0.15, 128, "takes 75 ms instead of 100 ms; its limit by compute on the measured machines is 40 ms "
                             "instead of 50 ms: the machines explain 40 % of the difference"),
        (801e12, 0.075, 64, "the machines explain nothing of the difference"),
        (1600e12, 0.15, 64, "the machines differ the other way"),
        (1600e12, 0.1, 64, "the steps are equal"),
    ],
)  # fmt: skip
def test_the_machines_explain_a_part_of_a_difference(rate: float, seconds: float, samples: float, words: str) -> None:
    old = of_step(replace(WORK, bytes=None, exchanged=None), RATES)
    assert old is not None
    new = replace(WORK, seconds=seconds, samples=samples, precision="fp16")
    text = explained(old, new, [measured("mm", {"matmul_bf16": rate})])
    assert words in text
    assert explained(old, new, [measured("mm", {"matmul_fp16": rate})]) == ""
    assert explained(old, replace(new, seconds=0.1, samples=64), [measured("mm", {"matmul_bf16": 801e12})]) == ""


def run_with_machine(run_dir: Path, p_core: float, flops: float) -> Path:
    """Write a run of a training of 0.8 TFLOP a sample and of its machine."""

    def training(of: Outcome) -> Outcome:
        rates = (MetricValue("p_core", p_core, "images/s", "higher", ""),)
        work = TrainingWork(measured_steps=10, measured_samples=640, step_flops=40e12)
        return replace(of, metrics=rates, work=work, profile=PROFILE)

    def machine(of: Outcome) -> Outcome:
        figure = MetricValue(f"matmul_{of.environment['precision']}", flops, "FLOP/s", "higher", "")
        return replace(of, metrics=(figure,), points=(MeasuredPoint("one", {}, {}),))

    changes: dict[str, Change] = {"net": training, "mm": machine}
    for model, change in changes.items():
        add_case(run_dir, "converged_1x1", [change], model=model)
    return finish(run_dir)


def test_page_and_comparison_show_what_machines_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (
        run_with_machine(tmp_path / name, rate, flops)
        for name, rate, flops in (("old", 640.0, 800e12), ("new", 800.0, 1000e12))
    )
    text = page.standalone(old, tmp_path / "page.html")
    section = text[text.index("Limits of the machine") : text.index('id="cases"')]
    for word in ("compute", "50 ms", "100 ms", "50.0 %", "1,280 images/s", "800 TFLOP/s of mm:"):
        assert word in section, word
    assert "slower when it was measured" not in section
    slow = run_with_machine(tmp_path / "slow", 640.0, 300e12)
    assert "slower when it was measured" in page.standalone(slow, tmp_path / "page.html")
    without = run_of(tmp_path / "without a machine")
    assert "Limits of the machine" not in page.standalone(without, tmp_path / "page.html")
    flagperf("compare", old, new)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: net:")]
    assert "is 40 ms instead of 50 ms: the machines explain 50 % of the difference" in notes[0]


def test_the_suites_have_the_figures_that_limits_need(repo: Path) -> None:
    figures = {name for suite in Catalog.scan([repo]).suites.values() for name in suite.figures}
    precisions = ("fp32", "tf32", "bf16", "fp16", "fp8")  # of trainings
    assert {ALL_REDUCE, *MEMORY_FIGURES, *(f"matmul_{one}" for one in precisions)} <= figures
