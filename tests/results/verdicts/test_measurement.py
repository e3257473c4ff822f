"""The points and the verdicts of suites that measure; each verdict has a control that fails."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flagperf_driver.node.logs.points import LeftOutPoint, MeasuredPoint, Turn, measured_point
from pytest_flagperf.kinds.measurement import charts
from pytest_flagperf.kinds.measurement import verdicts as measurement_verdicts
from pytest_flagperf.kinds.measurement.uniform import slow_devices
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.logs.points import of_ranks, point_of
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome, Target
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult, summarize_case
from pytest_flagperf.running import machine_check
from pytest_flagperf.stored.plan import MEASUREMENT, MeasuredFigure
from pytest_flagperf_page import pairs, points
from pytest_flagperf_page.comparisons import comparisons
from pytest_flagperf_page.rows import overview, row_of
from tests.helpers.rounds import tiny_plan

COPY = MeasuredFigure("copy", "B/s", "higher", "bytes copied per second", "bytes", peak=100e9, promised=0.8)
WAIT = MeasuredFigure("wait", "s", "lower", "the time of the smallest message", optional=True)


def point(name: str, figures: Mapping[str, float], **more: Any) -> MeasuredPoint:
    return MeasuredPoint(name, {"bytes": len(name)}, figures, seconds=1.0, interval=0.01, windows=100, **more)


def outcome(
    *points: MeasuredPoint,
    figures: Sequence[MeasuredFigure] = (COPY, WAIT),
    number: int = 1,
    nnodes: int = 1,
    **more: Any,
) -> Outcome:
    values = [
        MetricValue(figure.name, one.figures[figure.name], figure.unit, figure.direction, "")
        for figure in figures
        if (one := point_of(figure, points)) is not None
    ]
    settings: dict[str, Any] = {
        "case": f"alpha:plain:X1:{nnodes}:2:1", "model": "alpha", "framework": "plain", "hardware": "X1",
        "nnodes": nnodes, "nproc": 2, "vendor": "acme", "round": number, "seed": number, "scale": "small",
        "synthetic": False, "throughput_only": False, "sample_unit": "", "state": "finished",
        "target": Target("copy", "higher", "B/s", None),
        "kind": MEASUREMENT, "figures": tuple(figures), "metrics": tuple(values), "points": points,
        "hosts": ("h1", "h2")[:nnodes],
    }  # fmt: skip
    return Outcome(**{**settings, **more})


def failures(judged: Iterable[Verdict]) -> list[str]:
    return [f"{one.name}: {one.sentence}" for one in judged if not one.ok]


def test_a_figure_of_several_ranks_is_that_of_the_worst_rank_and_of_the_point_that_the_suite_picks() -> None:
    first = [point("a", {"copy": 10.0, "wait": 1.0}), point("bb", {"copy": 30.0})]
    second = [point("a", {"copy": 20.0, "wait": 3.0}, rank=1), point("bb", {"copy": 20.0}, rank=1)]
    both = of_ranks([first, second], [COPY, WAIT])
    assert [one.figures for one in both] == [{"copy": 10.0, "wait": 3.0}, {"copy": 20.0}]
    picks = {pick: point_of(replace(COPY, pick=pick), both) for pick in ("best", "worst", "last")}
    assert {pick: one and one.name for pick, one in picks.items()} == {"best": "bb", "worst": "a", "last": "bb"}
    bad = of_ranks([first, [point("bb", {"copy": math.nan})]], [COPY])
    assert math.isnan(bad[1].figures["copy"])
    assert point_of(COPY, bad) is bad[1], "a point that is not a number is never left aside for a better one"
    (without,) = of_ranks([first[:1], [point("a", {})]], [COPY, WAIT])
    assert [*without.figures] == ["copy"], "an optional figure that one rank lacks is missing"
    assert math.isnan(without.figures["copy"])


def test_the_last_point_has_the_value_that_the_figure_is_drawn_over() -> None:
    first, last = point("a", {"copy": 10.0}), point("bb", {"copy": 20.0})
    without = replace(last, values={})
    assert point_of(replace(COPY, pick="last"), [without, first]) is first
    assert point_of(replace(COPY, pick="last", over="size"), [first, last]) is None


@pytest.mark.parametrize(
    "change",
    [
        *({"point": ""}, {"point": 3}, {"figures": None}, {"figures": [1]}),
        *({"seconds": -1.0}, {"interval": -0.1}, {"own": -1.0}, {"windows": -1}, {"windows": 1e300}),
    ],
)
def test_a_record_that_is_not_a_point_is_none(change: Mapping[str, Any]) -> None:
    values = {"bytes": 8, "list": [1], "huge": 10**400, "large": 1 << 63, "infinite": math.inf}
    record = {"point": "a", "figures": {"copy": 1.0}, "values": values, "turns": [{"seconds": 1}, 3], "drift": -0.1}
    good = measured_point(record, 0)
    assert good is not None
    assert good.values == {"bytes": 8}
    assert good.turns["0"][0] == Turn(1.0)
    assert math.isnan(good.turns["0"][1].seconds)
    assert measured_point({**record, **change}, 0) is None


def test_a_complete_measurement_passes() -> None:
    rounds = [outcome(point("a", {"copy": rate, "wait": 1e-6}), number=n) for n, rate in enumerate((80e9, 82e9), 1)]
    assert failures(measurement_verdicts.measured(rounds)) == []
    assert failures(measurement_verdicts.reaches(rounds)) == []
    assert {one.name for one in measurement_verdicts.measured(rounds)} >= {
        "finished", "in_range", "points", "measured copy", "measured wait", "possible copy", "repeatable copy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (outcome(), ["points: round 1: 0 points", "measured copy: round 1: copy is missing"]),
        (outcome(point("a", {"wait": 1.0})), ["measured copy: round 1: copy is missing"]),
        (outcome(point("a", {"copy": math.nan})), ["measured copy: round 1: copy is NaN"]),
        (outcome(point("a", {"copy": 0.0})), ["measured copy: round 1: copy is 0 B/s"]),
        (outcome(point("a", {"copy": 106e9})), ["possible copy: round 1: copy is 106 GB/s, expected at most 105 GB/s"]),
        (outcome(point("a", {"copy": 80e9}), bad_points=2), ["points: round 1: 2 invalid records"]),
        (outcome(point("a", {"copy": 80e9}), state="failed"), ["finished: round 1: its state is 'failed'"]),
        (
            outcome(point("a", {"copy": 80e9}), figures=[COPY, replace(WAIT, peak=1.0)]),
            ["measured wait: round 1: wait is missing"],
        ),
        (
            outcome(point("a", {"copy": 0.9}), figures=[replace(COPY, peak=None, promised=None, at_least=0.95)]),
            ["possible copy: round 1: copy is 0.9 B/s, expected at least 0.95 B/s"],
        ),
    ],
)
def test_a_figure_that_is_missing_impossible_or_unfinished_fails(broken: Outcome, expected: list[str]) -> None:
    found = failures(measurement_verdicts.measured([broken]))
    assert len(found) == len(expected), found
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


def test_a_single_round_with_too_few_windows_is_not_judged_as_repeatable() -> None:
    def judged(one: MeasuredPoint, unit: str = "B/s") -> list[tuple[bool, bool, bool]]:
        found = measurement_verdicts.measured([outcome(one, figures=[replace(COPY, unit=unit)])])
        return [(each.ok, each.judged, each.warning) for each in found if each.name == "repeatable copy"]

    few = replace(point("a", {"copy": 80e9}), interval=None, windows=3)
    assert judged(few) == [(True, False, True)]
    assert judged(replace(few, interval=0.01)) == [(True, True, False)]
    assert judged(replace(few, interval=0.3)) == [(True, False, True)], "three rounds can judge it"
    assert judged(replace(few, seconds=None, windows=0)) == [], "a capacity is not timed"
    assert judged(replace(few, interval=0.9), unit="share") == [], "a share is not computed from the windows' times"


def test_rounds_that_differ_fail_unless_none_of_them_is_valid() -> None:
    rounds = [outcome(point("a", {"copy": rate}), number=n) for n, rate in enumerate((60e9, 80e9, 81e9), 1)]
    (sentence,) = failures(measurement_verdicts.measured(rounds))
    assert sentence.startswith("repeatable copy: copy varies by 26.2 % in 3 rounds (60 GB/s to 81 GB/s)")
    warning = (ValidityWarning("busy", "a rank waited"),)
    judged = measurement_verdicts.measured([replace(one, validity_warnings=warning) for one in rounds])
    assert failures(judged) == []
    assert [one.name for one in judged if not one.judged] == ["repeatable"]


def test_a_chip_below_the_promise_fails() -> None:
    (sentence,) = failures(measurement_verdicts.reaches([outcome(point("a", {"copy": 79e9}))]))
    assert "copy is 79 GB/s; the vendor promises at least 80 GB/s, 80.0 % of the declared peak of 100 GB/s" in sentence
    assert failures(measurement_verdicts.reaches([outcome(point("a", {"wait": 1.0}))])), "a missing figure"


def turns(slow: Mapping[int, float], ranks: int = 4) -> dict[str, tuple[Turn, ...]]:
    """Eight turns of each rank, with the factors of the slow ones."""
    times = [1.0 + 0.002 * (turn % 3) for turn in range(8)]
    return {str(r): tuple(Turn(t * slow.get(r, 1.0), t * slow.get(r, 1.0), 0.0) for t in times) for r in range(ranks)}


ONE_SLOW = {"turns": turns({1: 1.3})}
IS_SLOW = "at a rank 1 on h1 is 30.0 % slower than the median of the others: it is slow"


@pytest.mark.parametrize(
    ("of_point", "warned", "ok", "judged", "warning", "words"),
    [
        ({"turns": turns({})}, "", True, True, False, ""),
        (ONE_SLOW, "", False, True, False, IS_SLOW),
        ({"turns": turns({2: 1.3, 3: 1.3})}, "", False, True, False, "at a h2 is 30.0 % slower"),
        ({**ONE_SLOW, "together": True}, "", True, False, False, ""),
        ({}, "", True, False, True, ""),
        (ONE_SLOW, "busy", True, False, True, "rank 1 on h1 is 30.0 % slower"),
        (ONE_SLOW, "throttled", False, True, False, IS_SLOW),  # a throttled device is slow itself
    ],
    ids=["even", "a slow rank", "a slow host", "all at once", "unknown", "a busy host", "throttled"],
)
def test_a_slow_rank_or_host_is_named(
    of_point: dict[str, Any], warned: str, ok: bool, judged: bool, warning: bool, words: str
) -> None:
    warnings = (ValidityWarning(warned, "a device was slowed down"),) if warned else ()
    one = outcome(point("a", {"copy": 80e9}, **of_point), nnodes=2, validity_warnings=warnings)
    (found,) = [each for each in measurement_verdicts.uniform([one]) if each.name.startswith("uniform")]
    assert (found.ok, found.judged, found.warning) == (ok, judged, warning)
    assert words in found.sentence


def test_the_terminal_lists_every_figure_with_its_share_of_the_peak() -> None:
    rounds = (outcome(point("a", {"copy": 80e9, "wait": 1e-6}), number=1), outcome(state="failed", number=2))
    case = CaseResult(rounds[0].case, rounds)
    assert console_table([case], 80) == [
        "case                  figure   median  of peak  rounds  e2e",
        "alpha:plain:X1:1:2:1  copy    80 GB/s   80.0 %     1/2    -",
        "                      wait       1 us        -",
    ]
    assert console_table([case], 50) == [
        "  figure   median  of peak  rounds  e2e",
        "alpha:plain:X1:1:2:1",
        "  copy    80 GB/s   80.0 %     1/2    -",
        "  wait       1 us        -",
    ]


def test_the_overview_has_no_column_that_is_empty_in_all_rows() -> None:
    case = CaseResult("alpha:plain:X1:1:2:1", (outcome(point("a", {"copy": 80e9})),))
    text = overview([row := row_of(case, summarize_case(case))], {})
    assert "80 GB/s" in text
    assert row.measured[0][1:4] == ("copy", "80 GB/s", "80.0 %"), "as the terminal lists it"
    assert '<h2 id="measurements">' in comparisons([row])
    assert "measurements" not in comparisons([replace(row, measured=())])
    assert not any(name in text for name in ("p_whole", "throughput", "change", "MFU", "speed-up"))


def test_the_page_draws_a_figure_over_its_sizes_below_the_peak_and_lists_the_points() -> None:
    rounds = [
        outcome(*(point(name, {"copy": rate * len(name)}, drift=0.05) for name in ("a", "bb")), number=number)
        for number, rate in enumerate((20e9, 30e9), 1)
    ]
    (chart,) = charts.charts(rounds)
    assert chart is not None
    assert (chart.title, chart.x, chart.y, chart.kind) == ("copy over bytes", "bytes", "GB/s", "size")
    assert [(line.name, line.x, line.y) for line in chart.lines] == [("copy", [1.0, 2.0], [25.0, 50.0])]
    assert [level.value for level in chart.levels] == [100.0]
    left_out = (LeftOutPoint("cccc", {}, 60.0),)
    table = points.html(replace(rounds[0], left_out=left_out))
    for words in ("Round 1: 2 points", "40 GB/s", "became slower while it was measured", "cccc", "1 min"):
        assert words in table, words


def test_the_page_has_a_matrix_of_the_pairs_and_of_many_ranks_those_of_the_worst_pairs() -> None:
    def cells(ranks: int) -> str:
        figure = MeasuredFigure("pair", "B/s", "higher", pick="worst")
        rates = {rank: (5.0 if rank == ranks - 2 else 100.0 + rank) for rank in range(ranks - 1)}
        measured = [
            MeasuredPoint(f"pair {rank}", {"source": rank, "target": rank + 1}, {"pair": rate})
            for rank, rate in rates.items()
        ]
        return pairs.html([outcome(*measured, figures=[figure])])

    few, many = cells(4), cells(200)
    assert "worst: 5 B/s" in few
    assert few.count("<tr>") == 5
    assert "ranks: those" not in few
    assert "worst: 5 B/s" in many
    assert "64 of 200 ranks: those of the worst pairs" in many
    assert many.count("<tr>") == 65


def test_a_device_slower_than_the_others_or_than_the_accepted_figure_is_named_with_its_host() -> None:
    def slow(of_ranks: Mapping[int, float], baseline: Mapping[str, float], rate: float = 80e9) -> list[tuple[str, str]]:
        measured = point("a", {"copy": rate}, turns=turns(of_ranks))
        found = slow_devices(outcome(measured, nnodes=2), baseline)
        return [(host, sentence.partition(":")[0]) for host, sentence in found]

    assert slow({}, {}) == slow({}, {"copy": 85e9}) == []
    capacity = replace(COPY, unit="bytes")
    less = outcome(point("a", {"copy": 80e9}, turns=turns({})), figures=[capacity], nnodes=2)
    assert slow_devices(less, {"copy": 100e9}) == [], "a capacity is not a speed"
    assert slow({2: 1.05}, {}) == []
    assert slow({2: 1.2}, {}) == [("h2", "rank 2 is slow")]
    # The slowest rank has the figure; the others are 20 % faster, and above the bound.
    assert slow({1: 1.2}, {"copy": 100e9}) == [("h1", "rank 1 is slow")]
    assert slow({}, {"copy": 100e9}) == [(host, f"rank {rank}") for rank, host in enumerate(("h1", "h1", "h2", "h2"))]


def test_the_hosts_of_a_measurement_before_the_run_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[bool] = []
    engine = SimpleNamespace(run=lambda *_: lambda: given_back.append(True))
    run = SimpleNamespace(directory=SimpleNamespace(path=tmp_path), engine=engine)
    monkeypatch.setattr(
        "pytest_flagperf.running.machine_check.store.measure_round", lambda _: SimpleNamespace(ended_well=True)
    )
    machine_check._measure(cast("Any", run), tiny_plan())
    assert given_back == [True]
