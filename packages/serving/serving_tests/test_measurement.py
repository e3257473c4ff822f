"""Whole measurements of a served formula: the healthy server passes all verdicts, and each fault fails its own."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from common.serving import selftest
from common.serving.measurement import Serving
from common.serving.process import ServerError
from common.serving.scored import Question, Scored, stops_of

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits
from flagperf_driver.measuring.program import measured
from flagperf_driver.node.logs.points import MeasuredPoint, measured_point
from flagperf_driver.training.timeline import HostMarks
from pytest_flagperf.results import Outcome, Verdict
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf_serving.derived import derived
from pytest_flagperf_serving.verdicts import accurate, served
from serving_tests import formula
from serving_tests.outcomes import outcome_of
from serving_tests.test_client import SlowClient

pytestmark = pytest.mark.integration
CONFIG = {
    "concurrencies": [1, 4], "prompt_tokens": 8, "answer_tokens": 16, "accuracy_texts": 20, "point_least_s": 0.5,
    "point_most_s": 1.0, "point_interval": 0.05, "ready_timeout_s": 60.0, "event_timeout_s": 5.0,
    "server_ttft_s": 2.0, "server_tpot_s": 0.1, "interactive_ttft_s": 0.5, "interactive_tpot_s": 1e-6,
    "rate_requests": 20, "rate_precision": 0.05, "rate_most_s": 0.0, "endpoint": "", "one_server": False,
    "model_name": formula.NAME, "accuracy_set": "", "accuracy_reference": {}, "accuracy_length": 0.0,
}  # fmt: skip


class FormulaModel:
    """What a suite brings, for the server of the formula."""

    vocabulary, trained_by = formula.VOCABULARY, "m:engine:CPU:1:1:1"
    scored: Scored | None = None

    def __init__(self, fault: str, name: str = formula.NAME) -> None:
        self._fault, self.log_perplexity, self.name = fault, 0.0, name
        generator = random.Random(1)
        self.texts = [self._text(generator) for _ in range(12)]
        losses = [-value for text in self.texts for value in formula.log_probabilities(text)]
        self.log_perplexity = sum(losses) / len(losses)

    @staticmethod
    def _text(generator: random.Random) -> list[int]:
        text = generator.choices(range(256), k=3)
        for _ in range(20):
            text.append(formula.following(text) if generator.random() < 0.9 else generator.randrange(256))
        return text

    def command(self, port: int) -> Sequence[str]:
        return formula.command(port, self._fault)

    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        pairs = zip(prompts, answers, strict=True)
        return [
            sum(token == formula.following([*prompt, *answer[:place]]) for place, token in enumerate(answer))
            for prompt, answer in pairs
        ]


def points_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str = "",
    *,
    synthetic: bool = False,
    scored: Scored | None = None,
    **config: Any,
) -> tuple[MeasuredPoint, ...]:
    """Measure, and return the points as the harness derives them from the log and the requests."""
    values = SimpleNamespace(**{**CONFIG, **config})
    model = FormulaModel(fault, values.model_name)
    if scored:
        model.scored, model.texts = scored, [*map(list, scored.prompts)]
    logged = tuple(logged_points(folder, monkeypatch, model, values, synthetic=synthetic))
    plan: Any = SimpleNamespace(
        config={**CONFIG, **config}, cards=1, host=lambda _: SimpleNamespace(clock_offset_s=0.0)
    )
    return derived(logged, plan, folder, {})


def logged_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: FormulaModel, values: Any, *, synthetic: bool
) -> Iterator[MeasuredPoint]:
    monkeypatch.setenv("FLAGPERF_LOG_DIR", str(folder))
    ctx = SimpleNamespace(config=values, rank=0, world_size=1, seed=42, synthetic=synthetic)
    measurement = Serving(ctx, model, lambda value: [value])
    for result in Loop(measurement, HostMarks(), PointLimits()).measure():
        assert isinstance(result, Measured)
        logged = json.loads(json.dumps(measured(result, "host clock", together=True)))
        point = measured_point(logged, 0)
        assert point is not None
        yield point


def judged(outcome: Outcome) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in (*accurate([outcome]), *served([outcome]))}


def failed(outcome: Outcome) -> set[str]:
    return {name for name, verdict in judged(outcome).items() if not verdict.ok}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Path]]:
    folder = tmp_path_factory.mktemp("healthy")
    with pytest.MonkeyPatch.context() as patch:
        yield outcome_of(points_of(folder, patch, rate_most_s=2.0)), folder


def test_a_healthy_server_passes_and_every_figure_is_there(healthy: tuple[Outcome, Path]) -> None:
    outcome, _ = healthy
    assert failed(outcome) - {"client"} == set(), judged(outcome)  # a busy machine delays the client
    missing = [figure.name for figure in outcome.figures if outcome.value(figure.name) is None]
    assert [name for name in missing if "score" not in name and name != "answer_length"] == [
        "highest_rate_interactive",
        "within_interactive",
        "device_energy_per_token",
        "host_energy_per_token",
    ]
    assert outcome.value("right_tokens") == outcome.value("right_under_load") == 1.0
    assert outcome.value("perplexity_agreement") == pytest.approx(1.0)
    assert [point.name for point in outcome.points[:4]] == ["start", "accuracy", "1 at once", "4 at once"]
    assert all("requests/s" in point.name for point in outcome.points[4:])
    assert "with 95 % confidence" in judged(outcome)["rates server"].got
    assert "no rate is within interactive_ttft_s" in judged(outcome)["rates interactive"].sentence
    rates = [point.figures["output_rate"] for point in outcome.points[2:4]]
    assert rates[1] > 2 * rates[0]


def test_all_times_of_each_request_are_stored(healthy: tuple[Outcome, Path]) -> None:
    outcome, folder = healthy
    with gzip.open(folder / "rank0.4_at_once.requests.jsonl.gz", "rt") as file:
        head, *requests = [json.loads(line) for line in file]
    measured = [one for one in requests if one["sent"] >= 0 and one["ended"]]
    assert len(measured) == outcome.points[3].facts["requests"] < len(requests) - 4, "the warm-up is stored, too"
    assert all(len(one["times"]) == len(one["tokens"]) == CONFIG["answer_tokens"] for one in measured)
    assert all(one["sent"] < one["times"][0] <= one["ended"] <= head["seconds"] for one in measured)


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        ("wrong", {"accurate right_tokens", "as_trained", "under_load"}, "are invalid"),
        ("shorter", {"accurate right_tokens", "answered", "under_load"}, "the answer has 8 tokens; expected 16"),
        ("cached", {"computed"}, "the server keeps answers"),
        ("worse", {"under_load"}, "among timed ones; the figures of this round are invalid"),
        ("sleeps", {"scales"}, "of the best rate at a smaller one"),
    ],
)
def test_a_server_with_a_fault_fails(
    fault: str, expected: set[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = outcome_of(points_of(tmp_path, monkeypatch, fault))
    assert failed(outcome) - {"client"} == expected
    assert any(words in verdict.sentence for verdict in judged(outcome).values())


def test_a_slow_client_and_one_that_is_the_bottleneck_are_detected(
    healthy: tuple[Outcome, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = healthy[0].points
    real = selftest.run
    monkeypatch.setattr(selftest, "run", lambda log: real(log, SlowClient))
    slow = outcome_of(points_of(tmp_path, monkeypatch, concurrencies=[4]))
    sentence = judged(slow)["client"].sentence
    assert " ms too long for a" in sentence
    assert "its times are not those of the server" in sentence
    good: Mapping[str, Any] = {"first_token_error_s": 1e-4, "gap_error_s": 1e-4}
    loaded = replace(points[3], figures={**points[3].figures, "client_load": 0.6})
    marked = outcome_of([with_start(points[0], good), *points[1:3], loaded])
    verdict = judged(marked)["client"]
    assert (verdict.ok, verdict.warning, verdict.got) == (True, True, "marked: 4 at once")
    fine = outcome_of([with_start(points[0], good), *points[1:]])
    assert (judged(fine)["client"].ok, judged(fine)["client"].warning) == (True, False)
    assert not judged(outcome_of(points[1:]))["client"].ok, "a client that was not tested is not trusted"


def with_start(point: MeasuredPoint, facts: Mapping[str, Any], **figures: float) -> MeasuredPoint:
    return MeasuredPoint(point.name, {}, {**point.figures, **figures}, facts=facts)


def test_a_busy_machine_judges_neither_the_client_nor_a_rate_that_falls(healthy: tuple[Outcome, Path]) -> None:
    points = healthy[0].points
    late = with_start(points[0], {"first_token_error_s": 5e-3, "gap_error_s": 0.0})
    slower = MeasuredPoint("8 at once", {"concurrency": 8}, {**points[3].figures, "output_rate": 1.0})
    assert failed(outcome_of([late, *points[1:], slower])) == {"client", "scales"}
    busy = outcome_of([late, *points[1:], slower], validity_warnings=(ValidityWarning("busy", "busy"),))
    assert failed(busy) == set()
    assert not judged(busy)["client"].judged
    assert not judged(busy)["scales"].judged


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuses", "500 Internal Server Error: .*RuntimeError: out of memory.*; its last words: .*out of memory"),
        ("exits", "the server ended with exit code 3 at 4 at once; its last words: .*the device is gone"),
        ("no_loss", "500 Internal Server Error: .*; its last words: .*RuntimeError: no log probabilities here"),
        ("no_start", "the server ended with exit code 1 before it was ready; its last words: no device found"),
    ],
)
def test_a_server_that_answers_nothing_ends_the_round_with_its_last_words(
    fault: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerError, match=message):
        points_of(tmp_path, monkeypatch, fault, synthetic=fault != "no_loss", concurrencies=[4])


def test_a_rate_without_time_for_its_requests_has_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*points_of(tmp_path, monkeypatch, synthetic=True, concurrencies=[1], rate_most_s=1e-3)]
    assert {point.facts["requests"] for point in points[2:]} == {2}


def test_random_weights_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*points_of(tmp_path, monkeypatch, synthetic=True, concurrencies=[2])]
    assert [point.name for point in points] == ["start", "2 at once"]
    outcome = outcome_of(points, synthetic=True)
    assert failed(outcome) - {"client"} == set()
    assert not judged(outcome)["accurate"].judged
    assert failed(outcome_of(points)) - {"client"} == {
        "accurate right_tokens", "as_trained", "under_load",
    }, "trained weights without a judgement are not accurate"  # fmt: skip


# -- the reference scale: answers to a set are scored, and compared with the stored reference -------------------


_TOKENS, _END = 16, 17


class FormulaSet:
    """Questions whose expected answers are the formula's own, but for every tenth, which no server can know."""

    plain = True

    def __init__(self, count: int) -> None:
        generator = random.Random(2)
        self.questions = [self._question(generator.choices(range(256), k=8), number) for number in range(count)]

    @staticmethod
    def _question(prompt: list[int], number: int) -> Question:
        text = list(prompt)
        while len(text) < len(prompt) + _TOKENS and text[-1] != _END:
            text.append(formula.following(text))
        return Question(prompt, " ".join(map(str, text[len(prompt) :])) if number % 10 else "")

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        pairs = zip(question.expected.split(), answer.split(), strict=False)
        return {"same": 100 * sum(one == other for one, other in pairs) / max(len(question.expected.split()), 1)}

    def length(self, tokens: Sequence[int], answer: str) -> float:
        assert len(tokens) == len(answer.split())
        return float(len(tokens))


def a_set(count: int = 40, **config: Any) -> Scored:
    settings = {"accuracy_requests": 0, "accuracy_answer_tokens": _TOKENS, "accuracy_temperature": 0.0, **config}
    values: Any = SimpleNamespace(**settings)
    return Scored(values, 1, FormulaSet(count), lambda tokens: " ".join(map(str, tokens)), [_END])


def outcome(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "", same: float = 90.0, length: float = 14.5
) -> Outcome:
    stored: dict[str, Any] = {"accuracy_set": "set", "accuracy_reference": {"same": same}, "accuracy_length": length}
    points = points_of(folder, monkeypatch, fault, scored=a_set(), concurrencies=[8], **stored)
    return outcome_of(points, scale="reference")


def test_answers_to_a_set_are_judged_by_the_stored_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = outcome(tmp_path, monkeypatch)
    assert failed(good) - {"client"} == set(), judged(good)
    figures = [good.value(name) for name in ("score", "answer_length", "score_under_load")]
    assert figures == [pytest.approx(1.0), pytest.approx(1.0, abs=0.02), 1.0]
    assert judged(good)["accurate same"].got == "90 (40 of 40 answers)"
    assert failed(outcome(tmp_path, monkeypatch, same=91.0)) - {"client"} == {"accurate same"}, "a higher reference"
    assert failed(outcome(tmp_path, monkeypatch, length=18.0)) - {"client"} == {"length"}, "longer answers"


@pytest.mark.parametrize(("fault", "expected"), [("wrong", {"accurate same", "length"}), ("tires", {"under_load"})])
def test_a_server_that_answers_worse_fails(
    fault: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = outcome(tmp_path, monkeypatch, fault)
    assert failed(bad) - {"answered", "client", "computed"} == expected
    assert all("the figures of this round are invalid" in judged(bad)[name].sentence for name in expected)


def test_sampled_answers_are_not_judged_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, Any] = {"accuracy_set": "set", "accuracy_reference": {"same": 90.0}, "concurrencies": [4]}
    points = points_of(tmp_path, monkeypatch, scored=a_set(accuracy_temperature=1.0), **stored)
    verdicts = judged(outcome_of(points, scale="reference"))
    assert "within the interval of" in verdicts["accurate same"].expected
    assert (verdicts["under_load"].ok, verdicts["under_load"].judged, "length" in verdicts) == (True, False, False)


def test_a_drawn_part_has_an_interval_and_the_whole_set_has_none() -> None:
    part, whole = a_set(100, accuracy_requests=20), a_set(100)
    assert part.prompts == a_set(100, accuracy_requests=20).prompts, "drawn by the seed"
    assert len({*map(tuple, part.prompts)}) == 20
    scores = [{"same": 100.0 * (number % 2)} for number in range(20)]
    # Student's quantile of 19 degrees of freedom is 2.093, and 80 of the 100 questions were left out.
    assert part.facts(scores)["same_interval"] == pytest.approx(2.093 * (2500 / 19 * 0.8) ** 0.5, rel=1e-2)
    assert whole.facts([{"same": 50.0, "other": 1.0}, *[{"same": 70.0}] * 99])["same_interval"] == 0.0
    sampled = a_set(100, accuracy_temperature=1.0)
    assert sampled.facts(scores * 5)["same_interval"] > 0.0, "the same questions are answered otherwise next time"


def test_the_ends_of_answers_are_those_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert stops_of(tmp_path) == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert stops_of(tmp_path) == [7, 8]
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no eos_token_id in generation_config"):
        stops_of(tmp_path)
