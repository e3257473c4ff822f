"""The answer of a sweep, and its section of the page."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_flagperf.report.export.markdown import configuration
from pytest_flagperf.report.sweeps import SweptCase, sweeps, swept_case
from pytest_flagperf.report.terminal.summary import summarize_run
from pytest_flagperf.results.logs.failures import ran_out_of_memory
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult, summarize_case
from pytest_flagperf.stored.round_dir import RoundFault
from pytest_flagperf_page import sweeps as page
from pytest_flagperf_page.comparisons import scaling
from pytest_flagperf_page.rows import row_of
from tests.helpers.results_help import recorded, replay_dir, with_metric

BASE = "toy:pytorch:CPU:1:1:1"


def result(variant: str, *seconds: float, replay: str = "converged_1x1", **changes: Any) -> CaseResult:
    """A variant whose rounds reached the target after so many seconds."""
    name = f"{BASE}:{variant}" if variant else BASE
    rounds = tuple(
        replace(with_metric(recorded(replay), "time_to_target", value), case=name, round=number, **changes)
        for number, value in enumerate(seconds, 1)
    )
    verdicts = (Verdict("target", all(one.quality.reached is not None for one in rounds), "x", "y", f"{name} is red"),)
    return CaseResult(name, rounds, {"test_converges": verdicts})


def swept(*cases: CaseResult) -> list[SweptCase | None]:
    return [swept_case(case, summarize_case(case)) for case in cases]


def answer(*cases: CaseResult) -> str:
    (sweep,) = sweeps(swept(*cases))
    return sweep.answer


def out_of_memory(variant: str, sentence: str = "round 1: rank 0 failed with OutOfMemoryError: no more") -> CaseResult:
    fault = RoundFault("crash", "localhost", 0, sentence)
    return result(variant, float("nan"), state="failed", failures=(fault,), metrics=())


def test_the_answer_has_the_fastest_value_the_others_and_those_with_a_problem() -> None:
    cases = [
        result("precision-fp32", 20.0),
        result("precision-bf16", 10.0),
        result("precision-fp16", 5.0, replay="missed_target"),
        out_of_memory("precision-tf32"),
    ]
    assert answer(*cases) == (
        "bf16 reaches the target first, in 10 s (one round each: noise unknown); fp32: 2.00x as long;"
        " not converged: fp16; out of memory: tf32"
    )
    (sweep,) = sweeps(swept(*cases))
    assert sweep.name == f"{BASE} by precision"
    run = StoredRun(replay_dir("converged_1x1"), None, tuple(cases))
    assert f"{sweep.name}: {sweep.answer}" in " ".join(summarize_run(run).lines(10_000))
    assert answer(*cases[2:]) == "no value reached the target; not converged: fp16; out of memory: tf32"


@pytest.mark.parametrize(
    ("slower", "doubt"),
    [((11.0, 13.0, 9.0), " (b is as good within noise)"), ((30.0, 30.1, 29.9), "")],
)
def test_a_difference_within_the_noise_of_the_rounds_is_said(slower: Sequence[float], doubt: str) -> None:
    text = answer(result("note-a", 10.0, 8.0, 12.0), result("note-b", *slower))
    assert text.startswith(f"a reaches the target first, in 10 s{doubt}; b: ")


def test_values_are_in_the_order_of_their_numbers_and_each_sweep_has_its_own_answer() -> None:
    numbers = [result(f"train_batch_size-{size}", 1.0 + size) for size in (16, 128, 8)]
    both = [result(f"note-a+width-{width}", 9.0 - width) for width in (2, 1)]
    found = sweeps(swept(*numbers, *both, result("", 1.0), result("seed-1", 1.0)))
    labels = [[one.label for one in sweep.cases] for sweep in found]
    assert labels == [["8", "16", "128"], ["note=a width=1", "note=a width=2"]], "one value is no sweep"
    assert found[1].answer.startswith("note=a width=2 reaches the target first, in 7 s")


def test_without_a_target_the_main_figure_decides() -> None:
    def measured(variant: str, rate: float) -> CaseResult:
        case = result(variant, float("nan"), throughput_only=True)
        rounds = tuple(with_metric(one, "p_core", rate) for one in case.outcomes)
        return CaseResult(case.case, rounds, {"test_throughput": (Verdict("p_core", True, "x", "y", ""),)})

    text = answer(measured("precision-fp32", 100.0), measured("precision-bf16", 200.0))
    assert text == "bf16 has the best p_core, 200 images/s (one round each: noise unknown); fp32: 0.50x of it"


def test_the_page_has_a_table_with_the_best_row_marked_and_two_charts() -> None:
    cases = [result("precision-fp32", 20.0), result("precision-bf16", 10.0), out_of_memory("precision-fp16")]
    outcome = with_metric(with_metric(cases[1].first, "energy_to_target", 500.0), "device_energy_per_sample", 2.0)
    cases[1] = replace(cases[1], outcomes=(outcome,))
    html = page.html(swept(*cases))
    heads = ["precision", "state", "time to target", "steps to target", "step time", "memory of tensors"]
    assert re.findall(r"<th[^>]*>([^<]*)</th>", html)[: len(heads)] == heads
    assert "<th class=number>energy to target</th><th class=number>energy per sample</th>" in html
    (marked,) = re.findall(r"<tr class=deviates>(.*?)</tr>", html)
    assert "fastest to the target" in marked
    assert "precision-bf16" in marked
    assert html.count("fastest to the target") == 1
    assert ">out of memory</span>" in html
    assert "Figures as multiples of those of bf16" in html
    assert '["time to target",0,[2,1,null]]' in html
    assert "Training loss of the first round" in html
    assert '"names":["fp32","bf16","fp16"]' in html
    assert page.html(swept(result("", 1.0), result("seed-1", 1.0))) == ""


def test_the_speed_up_over_cards_compares_the_same_variant_only() -> None:
    def rows(*variants: str) -> str:
        names = {
            cards: f"toy:pytorch:CPU:1:{cards}:1{variant}" for cards, variant in zip((1, 2, 4), variants, strict=True)
        }
        outcomes = [replace(recorded("converged_1x1"), case=name, nproc=cards) for cards, name in names.items()]
        cases = [CaseResult(one.case, (one,)) for one in outcomes]
        return scaling([row_of(case, summarize_case(case)) for case in cases])

    assert "Speed-up" in rows(":seed-1", ":seed-1", ":seed-1")
    assert rows(":seed-1", ":seed-2", ":seed-3") == ""


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("round 1: rank 1 on h1 failed with OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("round 1: rank 0 failed with MemoryError: no text (exit code 1)", True),
        ("round 1: rank 0 failed with RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to", True),
        ("round 1: rank 0 on h1 was killed by SIGKILL (the kernel ran out of memory); its last event: STEP_END", True),
        ("round 1: rank 0 was killed by SIGKILL (the memory limit of its control group, 512 MiB)", True),
        ("round 1: rank 0 failed with ResourceExhaustedError: RESOURCE_EXHAUSTED: allocating", True),
        ("round 1: rank 0 was killed by SIGKILL (kill -9 by a user or a program)", False),
        ("round 1: rank 0 failed with ValueError: the memory format is wrong", False),
    ],
)
def test_memory_that_ran_out_is_known_by_the_words_of_the_failure(sentence: str, expected: bool) -> None:
    assert ran_out_of_memory([RoundFault("crash", "h1", 0, sentence)]) == expected


def test_tables_of_cases_tell_variants_apart_and_list_them_in_the_order_of_their_numbers() -> None:
    cases = [result(f"train_batch_size-{size}", 1.0) for size in (16, 8)]
    assert [configuration(case.first) for case in cases] == [
        "CPU 1 host x 1 (1x1, train_batch_size-16)",
        "CPU 1 host x 1 (1x1, train_batch_size-8)",
    ]
    assert configuration(recorded("converged_1x1")) == "CPU 1 host x 1 (1x1)"
    rows = sorted((row_of(case, summarize_case(case)) for case in cases), key=lambda row: row.order)
    assert [row.case for row in rows] == [f"{BASE}:train_batch_size-8", f"{BASE}:train_batch_size-16"]
