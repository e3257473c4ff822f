"""The measuring loop: what it calls in which order, what it leaves out, and how ranks stay together."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits, SlowPoint
from flagperf_driver.measuring.measurement import Point
from tests.driver.measuring.fakes import BASE, FakeDevice, constant, measure
from tests.driver.training.test_training import Exchange

SIZES = (1, 10, 100, 2000, 10000)


class Sized(FakeDevice):
    """An iteration of size 10 takes ten times as long as one of size 1."""

    def __init__(self, *points: Point) -> None:
        super().__init__(lambda device: BASE * self.size, 0, *points)
        self.size = 0.0
        self.calls: list[str] = []

    def work(self, point: Point) -> Mapping[str, float]:
        return {"rate": float(point.values["size"])}

    def prepare(self, point: Point) -> None:
        self.size = point.values["size"]
        self.calls.append(f"prepare {point.name}")

    def check(self, point: Point) -> None:
        self.calls.append(f"check {self.size}")
        if point.series == "wrong":
            raise RuntimeError("wrong answer")

    def facts(self) -> Mapping[str, float]:
        self.calls.append("facts")
        return {"share": 0.99}

    def release(self) -> None:
        self.size = math.nan
        self.calls.append("release")


def sizes(series: str) -> list[Point]:
    return [Point(str(size), {"size": size}, series) for size in SIZES]


def loop(device: FakeDevice, **more: object) -> Loop:
    return Loop(device, device, PointLimits(), now=device.now, **more)  # type: ignore[arg-type]


def test_a_size_that_would_take_too_long_is_left_out() -> None:
    device = Sized(*sizes("grows"))
    *measured, hundred, left_out = (list(loop(device).measure()))[:-1]
    assert [result.point.name for result in (*measured, hundred)] == ["1", "10", "100"]
    assert isinstance(left_out, SlowPoint)
    assert left_out.expected_s == pytest.approx(2000 * BASE, rel=0.01)
    assert device.calls == [
        call for size in (1, 10, 100) for call in (f"prepare {size}", f"check {size}", "facts", "release")
    ]
    assert isinstance(hundred, Measured)
    assert hundred.windows >= 3
    assert hundred.facts == {"share": 0.99}
    assert [type(result) for result in loop(Sized(*sizes("")[:4])).measure()] == [Measured] * 4, "no series"


def test_a_point_without_work_is_not_timed() -> None:
    class Capacity(FakeDevice):
        def work(self, point: Point) -> Mapping[str, float]:
            return {}

        def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
            assert math.isnan(seconds)
            return {"capacity": 64e9}

    result = measure(Capacity(constant, 0))
    assert result.figures == {"capacity": 64e9}
    assert (result.seconds, result.interval, result.windows, result.turns) == (None, None, 0, ())


def test_points_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"^points\(\) returned two points named 'a'; each needs a name of its own$"):
        list(loop(FakeDevice(constant, 0, Point("a"), Point("a"))).measure())


def test_a_wrong_answer_ends_the_measurement_and_what_was_prepared_is_released() -> None:
    device = Sized(Point("1", {"size": 1}), Point("10", {"size": 10}, "wrong"))
    with pytest.raises(RuntimeError, match="wrong answer"):
        list(loop(device).measure())
    assert device.calls == ["prepare 1", "check 1", "facts", "release", "prepare 10", "check 10", "release"]


def test_waiting_for_a_core_is_told_apart_from_the_device() -> None:
    """The rank has no core for a third of each iteration."""
    device = FakeDevice(lambda device: 1.5 * BASE, 0)
    core_wait = lambda: device.at / 3  # noqa: E731
    own = measure(device, core_wait=core_wait, owns_time=True)
    assert own.seconds == pytest.approx(1.5 * BASE, rel=1e-3)
    assert own.own == pytest.approx(BASE, rel=1e-2)
    assert own.waited == pytest.approx(1 / 3, rel=1e-2)
    assert own.turns[0]["own"] == pytest.approx(BASE, rel=1e-2)
    several = measure(device, core_wait=core_wait)
    assert (several.own, several.turns[0]["own"]) == (None, None), "threads wait for each other"
    assert several.waited == pytest.approx(1 / 3, rel=1e-2)


def test_a_rank_that_loses_its_core_gets_windows_and_turns_of_the_usual_length() -> None:
    warm = measure(FakeDevice(lambda device: BASE + (0.1 if 0.2 < device.at < 0.32 else 0.0), 0))
    assert warm.iterations * BASE == pytest.approx(0.01), "the core was lost at the end of the warm-up"
    later = measure(FakeDevice(lambda device: BASE * (1 if device.at < 0.305 else 40), 0))
    assert later.iterations * BASE == pytest.approx(0.01)
    assert len(later.turns) >= 4, "a window of 0.4 s is a turn"


def maximum(exchange: Exchange, rank: int) -> Callable[[Sequence[float]], list[float]]:
    return lambda values: [max(of_ranks) for of_ranks in zip(*exchange.gather(rank, "times", values), strict=True)]


def ranks(devices: Iterable[FakeDevice]) -> list[list[Measured | SlowPoint]]:
    devices = list(devices)
    exchange = Exchange(len(devices))
    loops = [loop(device, maximum=maximum(exchange, rank)) for rank, device in enumerate(devices)]
    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(lambda of_rank: list(of_rank.measure()), loops))


def times(factor: float) -> Callable[[FakeDevice], float]:
    return lambda device: factor * constant(device)


def test_ranks_of_different_speeds_do_the_same_iterations() -> None:
    shapes = set()
    for factor, (result,) in zip((1, 3), ranks(FakeDevice(times(1 + 2 * seed), seed) for seed in (0, 1)), strict=True):
        assert isinstance(result, Measured)
        assert result.seconds == pytest.approx(factor * BASE, rel=0.01)
        assert len(result.turns) > 3
        shapes.add((result.windows, result.iterations))
    assert len(shapes) == 1


def test_the_slowest_rank_counts_if_all_work_together() -> None:
    devices = [FakeDevice(times(factor), seed) for seed, factor in enumerate((1, 3))]
    for device in devices:
        device.together = True
    for (result,) in ranks(devices):
        assert isinstance(result, Measured)
        assert result.seconds == pytest.approx(3 * BASE, rel=0.01)
        assert result.turns == ()


def test_a_size_is_left_out_on_all_ranks_or_on_none() -> None:
    fast, slow = Sized(*sizes("grows")), Sized(*sizes("grows"))
    slow._iteration = lambda device: 20 * BASE * slow.size
    assert [[type(result) for result in of_rank] for of_rank in ranks([fast, slow])] == [
        [Measured, Measured, SlowPoint, SlowPoint, SlowPoint]
    ] * 2


@pytest.mark.parametrize(
    ("first", "second", "on_first", "on_second"),
    [
        ("ab", "ac", "has the point 'b', another rank has another: ", "has the point 'c', another rank has another: "),
        ("ab", "a", "has the point 'b', another rank has none: ", "has no further point, another rank has one: "),
    ],
)
def test_different_points_are_refused_on_every_rank(first: str, second: str, on_first: str, on_second: str) -> None:
    exchange = Exchange(2)

    def refused(rank: int, names: str, problem: str) -> None:
        results = loop(FakeDevice(constant, 0, *map(Point, names)), maximum=maximum(exchange, rank)).measure()
        assert next(results).point.name == "a"
        with pytest.raises(ValueError, match=f"^this rank {problem}expected points\\(\\) to return the same points"):
            next(results)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(refused, (0, 1), (first, second), (on_first, on_second)))
