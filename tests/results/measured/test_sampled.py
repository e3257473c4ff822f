"""What hosts and devices did while a round trained: nothing of before and after, and how much of it is known."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.node.sampling import devices, host_counters, power, sampler
from flagperf_driver.node.sampling.notes import Notes
from flagperf_driver.node.sampling.sampler_orders import SamplerOrders
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from tests.driver.node.sampling.test_sampler import rapl
from tests.helpers.recording import Training, write
from tests.helpers.results_help import edit_json, replay_dir

START = 1_700_000_000
"""The replay trains from 3 to 9 s after it, 1066.7 images a second."""
SAMPLES = 200 * 32


@pytest.fixture
def round_dir(tmp_path: Path) -> Path:
    shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1")
    return tmp_path / "round1"


def sampled(round_dir: Path, *rows: tuple[float, float, object], device: int = 0) -> None:
    """Time after the start, power and energy of a device."""
    path = round_dir / "localhost_noderank0" / "devices.series.csv"
    lines = [] if path.exists() else [",".join(devices.COLUMNS)]
    lines += [f"{START + when},{device},50,{watts},1024,4096,80,,,none,{joules}" for when, watts, joules in rows]
    with path.open("a") as out:
        out.write("\n".join(lines) + "\n")


def ticks(step: float = 1.0, end: float = 12.0) -> list[float]:
    return [number * step for number in range(int(end / step) + 1)]


def at_work(when: float) -> float:
    return 300.0 if 3 <= when <= 9 else 50.0


def metric(outcome: Outcome, name: str) -> MetricValue:
    found = outcome.metric(name)
    assert found is not None, name
    return found


def test_what_is_before_and_after_the_training_does_not_count(round_dir: Path) -> None:
    sampled(round_dir, *((when, at_work(when), "") for when in ticks()))
    outcome = measure(round_dir)
    power = metric(outcome, "device_power")
    assert (power.value, power.samples) == (300.0, 7)
    assert "from TRAIN_START to TRAIN_END" in power.how
    assert outcome.value("device_energy") == pytest.approx(1800.0)
    assert outcome.value("device_energy_covered") == pytest.approx(1.0)
    assert outcome.value("device_energy_per_sample") == pytest.approx(1800 / SAMPLES)
    assert metric(outcome, "device_energy_per_sample").unit == "J/sample"


def test_the_counter_is_read_between_its_samples(round_dir: Path) -> None:
    """Every 4 s: 100 W up to 4 s, then 200 W; of the training's 6 s these are one and five."""
    sampled(round_dir, (0, 1, 5000), (4, 1, 5400), (8, 1, 6200), (12, 1, 7000))
    outcome = measure(round_dir)
    energy = metric(outcome, "device_energy")
    assert energy.value == pytest.approx(100 + 5 * 200)
    assert "the device's own counter" in energy.how
    assert outcome.value("device_energy_covered") == pytest.approx(1.0)


def test_the_warm_up_does_not_count_where_only_the_throughput_is_measured(round_dir: Path) -> None:
    """The device waits for the compiler in the warm-up, the first 0.1 s of the training."""
    sampled(round_dir, *((when, 60.0 if when < 3.1 else 300.0, "") for when in ticks(0.03)))
    with_warm_up = metric(measure(round_dir), "device_power").value
    edit_json(round_dir / "plan.json", throughput_only=True)
    outcome = measure(round_dir)
    power, energy, rate = (metric(outcome, name) for name in ("device_power", "device_energy_per_sample", "p_core"))
    assert with_warm_up < power.value
    assert power.value == pytest.approx(300)
    assert energy.value == pytest.approx(300 / rate.value, rel=1e-2)
    assert power.how.endswith("from the end of the warm-up to TRAIN_END")
    assert "over p_core" in energy.how


@pytest.mark.parametrize(("until", "how"), [(9, "own counter"), (0, "integral"), (-1, "integral")])
def test_a_sampler_that_ended_early_leaves_a_share_uncovered(round_dir: Path, until: int, how: str) -> None:
    """A counter that is read until then; a single reading makes no counter."""
    sampled(round_dir, *((when, 300, 300 * when if when <= until else "") for when in ticks(0.5, end=6.0)))
    outcome = measure(round_dir)
    assert outcome.value("device_energy") == pytest.approx(900.0)
    assert how in metric(outcome, "device_energy").how
    assert outcome.value("device_energy_covered") == pytest.approx(0.5)
    assert outcome.value("device_energy_per_sample") == pytest.approx(1800 / SAMPLES)
    assert outcome.value("monitor_gaps") == pytest.approx(3.0)


@pytest.mark.parametrize(("counted", "joules", "share"), [(False, 350 + 2 * 800, 0.5), (True, 50 * (81 - 9), 1.0)])
def test_a_gap_is_not_covered_by_power_and_is_by_a_counter(
    round_dir: Path, counted: bool, joules: float, share: float
) -> None:
    """The power rises by 100 W in each second."""
    rows = ((when, 100 * when, 50 * when**2 if counted else "") for when in ticks(0.5) if not 4 < when < 7)
    sampled(round_dir, *rows)
    outcome = measure(round_dir)
    assert outcome.value("device_energy") == pytest.approx(joules)
    assert outcome.value("device_energy_covered") == pytest.approx(share)


@pytest.mark.parametrize("every", [1.0, 2.5, 4.0])
def test_a_short_training_between_even_samples_has_no_gap(round_dir: Path, every: float) -> None:
    sampled(round_dir, *((number * every + 0.5, 300, "") for number in range(12)))
    assert measure(round_dir).value("monitor_gaps") == 0.0


def test_a_training_that_was_not_sampled_at_all_is_one_gap_where_others_were(round_dir: Path) -> None:
    host_sampled(round_dir, ((when, 0.5, 500) for when in ticks()))
    sampled(round_dir, *((when, 300, "") for when in ticks(0.5, end=2.5)))
    outcome = measure(round_dir)
    assert outcome.value("monitor_gaps") == pytest.approx(6.0)
    assert outcome.metric("device_power") is None
    assert outcome.metric("device_energy") is None


def test_energy_is_of_all_devices_or_of_none(round_dir: Path) -> None:
    sampled(round_dir, *((when, 300, "") for when in ticks()))
    sampled(round_dir, *((when, 100, "") for when in ticks()), device=1)
    outcome = measure(round_dir)
    assert outcome.value("device_energy") == pytest.approx(2400.0)
    assert (outcome.value("device_power"), outcome.value("device_power_highest")) == (200.0, 300.0)
    sampled(round_dir, (0.0, 100, ""), device=2)
    outcome = measure(round_dir)
    assert outcome.metric("device_energy") is None
    assert outcome.metric("device_energy_per_sample") is None


def jump(when: float, joules: float) -> float:
    """A counter of 300 W that jumps in the middle of the training."""
    return 300 * when + (joules if when > 5 else 0)


@pytest.mark.parametrize(
    ("joules", "share"),
    [(0, None), (150, None), (1800, "+100.0 %"), (-3000, None)],
    ids=["right", "not exact", "wrong", "set back: not a counter"],
)
def test_a_counter_far_from_the_integral_is_reported(round_dir: Path, joules: float, share: str | None) -> None:
    sampled(round_dir, *((when, 300, jump(when, joules)) for when in ticks(0.5)))
    sampled(round_dir, *((when, 300, jump(when, 0)) for when in ticks(0.5)), device=1)
    outcome = measure(round_dir)
    doubt = f"localhost: device 0: the energy counter differs by {share} from the integral of the power"
    assert [text for text in outcome.warnings if "energy counter" in text] == (
        [f"{doubt}; device_energy uses the counter"] if share else []
    )


def test_the_record_of_the_energy_says_how_far_the_other_way_of_measuring_it_is(round_dir: Path) -> None:
    sampled(round_dir, *((when, 300, 291 * when) for when in ticks(0.5)))
    how = metric(measure(round_dir), "device_energy").how
    assert how.endswith("by the integral of its power it would be +3.1 %")


def test_power_that_lags_or_swings_between_samples_is_no_wrong_counter(round_dir: Path) -> None:
    """A driver that tells the mean of a second: the training's first second looks half idle, 7 % of its energy."""
    sampled(round_dir, *((when, 50 if when < 4 else 300, 300 * when) for when in ticks(0.5)))
    assert not measure(round_dir).warnings
    (round_dir / "localhost_noderank0" / "devices.series.csv").unlink()
    sampled(round_dir, *((when, 500 if when % 2 else 100, 400 * when) for when in ticks()))
    assert not measure(round_dir).warnings


def test_the_clocks_and_what_held_them_back(round_dir: Path) -> None:
    path = round_dir / "localhost_noderank0" / "devices.series.csv"
    reasons = {4: "sw_power_cap", 5: "sw_power_cap+idle"}
    rows = [f"{START + when},0,50,300,1024,4096,80,1410,1593,{reasons.get(when, 'idle')}," for when in range(12)]
    path.write_text("\n".join([",".join(devices.COLUMNS), *rows]) + "\n")
    outcome = measure(round_dir)
    assert (outcome.value("device_sm_clock"), outcome.value("device_memory_clock")) == (1410, 1593)
    assert (outcome.value("device_utilization"), outcome.value("device_temperature_highest")) == (0.8, 50.0)
    assert (outcome.value("device_memory"), outcome.value("device_memory_total")) == (2**30, 2**32)
    assert outcome.value("device_throttled") == pytest.approx(2 / 7)


def host_sampled(round_dir: Path, rows: Iterable[tuple[float, float, float]]) -> None:
    lines = [",".join(host_counters.COLUMNS)]
    lines += [f"{START + when},{cpu},0.5,,,,,,,{watts}," for when, cpu, watts in rows]
    (round_dir / "localhost_noderank0" / "host.series.csv").write_text("\n".join(lines) + "\n")


def test_the_processors_energy_is_that_of_their_counters(round_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's own files of a counter of 200 W that is read every second, and begins again after 1,000 J."""
    folder, notes, clock = round_dir / "localhost_noderank0", Notes(), SimpleNamespace(now=float(START))
    clock.time = clock.monotonic = lambda: clock.now
    for module in (host_counters, sampler):
        monkeypatch.setattr(module, "time", clock)
    rapl(round_dir, ("intel-rapl:0", "package-0", 0))
    source = power.NodePower(notes, str(round_dir), processors_first=True)
    one = sampler.HostSampler(SamplerOrders({"folder": str(folder)}), notes, source)
    for tick in range(13):
        rapl(round_dir, ("intel-rapl:0", "package-0", 200_000_000 * tick % 10**9))
        one.sample(tick)
        clock.now += 1
    one.flush()
    (folder / "monitors.json").write_text(json.dumps(notes.report()))
    outcome = measure(round_dir)
    energy = metric(outcome, "host_energy")
    assert energy.value == pytest.approx(6 * 200)
    assert outcome.value("host_energy_covered") == pytest.approx(1.0)
    assert outcome.value("host_energy_per_sample") == pytest.approx(6 * 200 / SAMPLES)
    assert energy.how.endswith("the processors' own counters, from TRAIN_START to TRAIN_END, read from RAPL: processors"
                               ", not the whole host")  # fmt: skip
    assert "RAPL: processors, not the whole host" in metric(outcome, "host_power").how


def test_counters_without_permission_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> float:
        raise PermissionError(13, "Permission denied")

    rapl(tmp_path, ("intel-rapl:0", "package-0", 1))
    monkeypatch.setattr(power, "_number", refused)
    notes = Notes()
    power.NodePower(notes, str(tmp_path))
    (message,) = notes.report()["missing"]
    assert "energy_uj is readable by root only" in message


def test_the_hosts_cpu_memory_power_and_energy(round_dir: Path) -> None:
    host_sampled(round_dir, ((when, at_work(when) / 400, 2 * at_work(when)) for when in ticks()))
    outcome = measure(round_dir)
    assert (outcome.value("host_cpu"), outcome.value("host_memory")) == (0.75, 0.5)
    assert outcome.value("host_power") == 600.0
    assert outcome.value("host_energy") == pytest.approx(3600.0)
    assert outcome.value("host_energy_per_sample") == pytest.approx(3600 / SAMPLES)
    assert outcome.metric("device_power") is None


def test_a_round_that_did_not_train_has_no_such_figures(round_dir: Path) -> None:
    shutil.copytree(replay_dir("crashed_rank"), round_dir, dirs_exist_ok=True)
    sampled(round_dir, *((when, 300, "") for when in ticks()))
    assert not [one.name for one in measure(round_dir).metrics if one.name.startswith(("device_", "host_", "monitor"))]


def test_a_round_without_its_last_word_has_energy_and_none_a_sample(round_dir: Path) -> None:
    shutil.copytree(replay_dir("interrupted"), round_dir, dirs_exist_ok=True)
    sampled(round_dir, *((when, 300, "") for when in ticks()))
    outcome = measure(round_dir)
    assert outcome.value("device_energy") == pytest.approx(300 * 1.9, rel=0.01)
    assert outcome.metric("device_energy_per_sample") is None


def test_the_spread_of_the_ranks_is_there_also_where_all_are_alike() -> None:
    alike = measure(replay_dir("converged_1x2"))
    spread = metric(alike, "straggler_spread")
    assert (spread.value, spread.unit, spread.direction, spread.samples, spread.warmup) == (1.0, "x", "lower", 2, 5)
    assert measure(replay_dir("converged_1x1")).metric("straggler_spread") is None


# -- costs by the site's prices: nothing without them, and none of a target that was not reached -------------

NAMES = ("energy_to_target", "carbon_to_target", "cost_to_target", "cost_per_million")
PRICE = {"per_hour": {"CPU": 36.0}, "currency": "EUR", "co2_g_per_kwh": 400.0}


def measured(tmp_path: Path, target: float, price: Any) -> Outcome:
    """A training of 200 steps that comes to 0.9081 in the evaluation before the last one, and then to 0.9237."""
    folder = write(Training("costs", target=target, plan_fields={"price": price}), tmp_path / "round1")
    sampled(folder, *((when, 300.0, "") for when in ticks()))
    return measure(folder)


def test_costs_are_those_of_the_cards_and_of_their_time(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 0.92, PRICE)
    time, rate = outcome.value("time_to_target"), outcome.value("p_whole")
    assert time
    assert rate
    assert outcome.value("cost_to_target") == pytest.approx(0.01 * time)
    assert outcome.value("cost_per_million") == pytest.approx(0.01 * 1e6 / rate)
    assert outcome.value("energy_to_target") == outcome.value("device_energy")
    assert outcome.value("carbon_to_target") == pytest.approx((outcome.value("device_energy") or 0.0) / 3.6e6 * 400)
    cost = outcome.metric("cost_to_target")
    assert cost
    assert (cost.unit, cost.how) == ("EUR", "time_to_target x 1 x 36 EUR an hour, as flagperf.toml says")


@pytest.mark.parametrize(
    ("target", "price", "missing"),
    [
        (0.92, None, NAMES[1:]),
        (0.92, {**PRICE, "per_hour": {"H100": 2.0}}, NAMES[2:]),
        (0.92, {**PRICE, "co2_g_per_kwh": None}, NAMES[1:2]),
        (0.95, PRICE, NAMES[:3]),
        (0.9, PRICE, NAMES[:2]),
    ],
)
def test_what_is_unknown_has_no_figure(tmp_path: Path, target: float, price: Any, missing: tuple[str, ...]) -> None:
    outcome = measured(tmp_path, target, price)
    assert [name for name in NAMES if outcome.value(name) is None] == [*missing]
