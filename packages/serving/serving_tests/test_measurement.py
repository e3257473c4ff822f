"""Whole measurements of a served formula: a healthy server passes, each fault fails its own verdict; its figures."""

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
from flagperf_driver.node.logs.samples import Samples, Series
from flagperf_driver.training.timeline import HostMarks
from pytest_flagperf.results import Outcome, Verdict
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.stored import FormatError
from pytest_flagperf_serving import requests
from pytest_flagperf_serving.derived import derived
from pytest_flagperf_serving.verdicts import accurate, served
from serving_tests import formula
from serving_tests.conftest import outcome_of
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


# -- figures: they follow from the stored requests, and from the samples of the time of a point -----------------


WITHIN = {"server_ttft_s": 0.5, "server_tpot_s": 0.1, "interactive_ttft_s": 0.1, "interactive_tpot_s": 0.1}
PLAN: Any = SimpleNamespace(config=WITHIN, cards=2, host=lambda _: SimpleNamespace(clock_offset_s=100.0))
START = MeasuredPoint("start", {}, {"client_rate": 100.0})


def request(sent: float, *times: float, **more: Any) -> dict[str, Any]:
    known = {"request": 1, "prompt": 6, "judged": False, "tokens": [1] * len(times), "problem": ""}
    return {**known, "sent": sent, "times": times, "ended": times[-1] if times else None, **more}


def write(folder: Path, point: str, lines: list[dict[str, Any]], limits: str = "") -> None:
    head = {"point": point, "begin_s": 1100.0, "seconds": 10.0, "limits": limits}
    with gzip.open(folder / f"rank0.{point[0]}.requests.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in (head, *lines))


def figures(folder: Path, *points: MeasuredPoint, **samples: Samples) -> list[dict[str, float]]:
    return [dict(point.figures) for point in derived((START, *points), PLAN, folder, samples)[1:]]


def users(figures: dict[str, float] | None = None) -> MeasuredPoint:
    return MeasuredPoint("2 at once", {"concurrency": 2}, figures or {})


def test_the_figures_are_those_of_the_requests_and_not_of_the_log(tmp_path: Path) -> None:
    warm_up, late = request(-1.0, -0.5, 0.5), request(9.0, 9.5, 10.5, ended=None)
    write(tmp_path, "2 at once", [warm_up, request(0.0, 0.2, 0.3), request(1.0, 1.4, 1.6, judged=True), late])
    logged = users({"output_rate": 1e6, "ttft_p50": 1e-6, "server_memory": 5.0})
    (got,) = figures(tmp_path, logged)
    assert got["server_memory"] == 5.0, "what only the host knows"
    assert got["output_rate"] == pytest.approx(0.6), "the tokens within the measurement, whatever their request"
    assert got["device_rate"] == pytest.approx(0.3)
    assert got["total_rate"] == pytest.approx((6 + 3 * 6) / 10 / 2)
    assert (got["ttft_p50"], got["ttft_p99"]) == pytest.approx((0.2, 0.4))
    assert (got["tpot_p50"], got["itl_p99"]) == pytest.approx((0.1, 0.2))
    assert got["user_rate"] == pytest.approx(1 / 0.15)
    assert got["repeated_speed"] == pytest.approx(0.5)
    assert got["within_server"] == 0.5, "a time for a token is beyond"
    assert "within_interactive" not in got
    assert got["client_load"] == pytest.approx(0.006)
    (tmp_path / "rank0.2.requests.jsonl.gz").unlink()
    assert figures(tmp_path, logged) == [{"server_memory": 5.0}]


def test_the_highest_rate_is_below_all_that_are_beyond(tmp_path: Path) -> None:
    good, slow = [request(1.0, 1.05, 1.1)], [request(1.0, 1.3, 1.35)]
    failed = [request(1.0, ended=2.0, problem="refused")]
    rates = {"1/s": (1.0, good, "server"), "2/s": (2.0, slow, "server"), "3/s": (3.0, failed, "server"),
             "4/s": (4.0, good, "server"), "5/s": (1.5, failed, "interactive")}  # fmt: skip
    for name, (_, lines, limits) in rates.items():
        write(tmp_path, name, lines, limits)
    points = [MeasuredPoint(name, {"rate": rate}, {}) for name, (rate, _, _) in rates.items()]
    got = figures(tmp_path, *points)
    assert [("highest_rate_server" in one, "highest_rate_interactive" in one) for one in got] == [
        (False, True), (True, False), (False, False), (False, False), (False, False),
    ]  # fmt: skip
    facts = derived((START, *points), PLAN, tmp_path, {})[2].facts
    assert facts == {"server_sure": pytest.approx(0.05), "server_beyond": 3.0}


def test_the_energy_of_a_token_is_that_of_the_samples_of_the_point(tmp_path: Path) -> None:
    write(tmp_path, "2 at once", [request(0.0, *(0.1 * number for number in range(1, 51)))])
    times = [990.0 + number for number in range(30)]  # by the controller's clock; the point is from 1000 to 1010

    def power(watts: float) -> Series:
        return Series("power", "W", times, [watts if 1000 <= time <= 1010 else 1000.0 for time in times])

    host = Samples({"power": power(100.0)}, {0: {"power": power(30.0)}, 1: {"power": power(20.0)}})
    (got,) = figures(tmp_path, users(), h1=host)
    assert got["output_rate"] == 5.0
    assert got["device_energy_per_token"] == pytest.approx(10.0)
    assert got["host_energy_per_token"] == pytest.approx(20.0)
    sampled = Samples({}, {0: {"power": power(30.0)}, 1: {}})
    assert "device_energy_per_token" not in figures(tmp_path, users(), h1=sampled)[0], "a device is not known"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no archive", "expected lines of JSON about requests"),
        (gzip.compress(b"{oops}"), "expected lines of JSON about requests"),
        (gzip.compress(b"{}\n"), "point"),
        (gzip.compress(b'{"point": "a", "begin_s": 1, "seconds": 1, "limits": ""}\n[]\n'), ":2: "),
    ],
    ids=["no archive", "no JSON", "no point", "no object"],
)
def test_another_file_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.a.requests.jsonl.gz").write_bytes(content)
    with pytest.raises(FormatError, match=problem):
        requests.read(tmp_path)
    assert requests.percentile([3.0], 99) == 3.0
    assert [requests.percentile(range(1, 101), one) for one in (50, 90, 99)] == [50, 90, 99]


def test_concurrencies_that_do_not_fit_into_memory_are_said(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(config={**WITHIN, "memory_estimate": {"left_out": [64]}}, cards=1, host=PLAN.host)
    start, *_ = derived((START,), plan, tmp_path, {})
    (scales,) = [one for one in served([outcome_of([start, users({"output_rate": 1.0})])]) if one.name == "scales"]
    assert scales.got == "1 concurrency; 64 would not fit into memory"
    (control,) = [one for one in served([outcome_of([START, users({"output_rate": 1.0})])]) if one.name == "scales"]
    assert control.got == "1 concurrency"
