"""The vendor nvidia on a host with eight devices: its plan, its monitors, and drivers that report less."""

import csv
import json
import xml.etree.ElementTree as ET

import pytest

from flagperf_driver.node.sampling import devices
from pytest_flagperf.results.measured.outcome import Outcome
from tests.lab.nvml import NOT_SUPPORTED
from tests.lab.runs import ClusterToy, assert_nothing_left

NO_COUNTER, NO_UTILIZATION, WRONG_COUNTER = 5, 6, 7
"""Devices of which each lacks something."""


@pytest.fixture
def eight(gpus: ClusterToy) -> ClusterToy:
    """The reference scale, for which the tree has a config of eight A100s."""
    gpus.toy.config("alpha", "1x8", "train_batch_size = 8\n", vendor="nvidia", chip="A100")
    gpus.settings(nodes="1x8", scale="reference", data_dir="/tmp", sample=0.1)
    return gpus


@pytest.mark.alone  # the sampler must keep its times
def test_eight_devices_are_sampled_and_a_wrong_counter_is_named(eight: ClusterToy) -> None:
    """All devices work at the default power limit; a missing reading is reported once, a wrong counter is detected."""
    host = eight.hosts[0]
    for gpu in host.nvml:
        gpu.set(power_mw=300_000 + 10_000 * gpu.index, wave_mw=60_000, wave_ms=300, clock_reasons=0x4, utilization=97)
    host.nvml[NO_COUNTER].set(energy_uj=NOT_SUPPORTED)
    host.nvml[NO_UTILIZATION].set(utilization=NOT_SUPPORTED)
    going = eight.start("-k", "converges", "--set=step_s=0.33")
    going.wait_for(lambda: eight.trains(host), "the training")
    counter = host.nvml[WRONG_COUNTER]
    counter.set(energy_uj=counter.get("energy_uj") + 5_000_000_000)
    assert going.wait() == 1, going.text
    run = eight.toy.runs[-1]
    (round_dir,) = run.glob("*/round1")
    outcome = Outcome.from_json(json.loads((round_dir / "outcome.json").read_text()))

    # The counter that jumped, and nothing else, contradicts the rest.
    (failure,) = outcome.failures
    assert f"a device's energy counter (h1: device {WRONG_COUNTER}) is" in failure.sentence

    # Samples: each quantity of each device, in the file and in the outcome.
    (series,) = round_dir.glob("*/devices.series.csv")
    with series.open() as file:
        rows = list(csv.DictReader(file))
    lacking = {(NO_COUNTER, "energy [J]"), (NO_UTILIZATION, "utilization [%]")}
    expected = {(device, column) for device in range(8) for column in devices.COLUMNS}
    assert {(int(row["device"]), column) for row in rows for column, cell in row.items() if cell} == expected - lacking
    figures = {name: outcome.value(f"device_{name}") for name in ("power", "sm_clock", "memory_clock", "temperature")}
    assert figures == {"power": pytest.approx(335, rel=0.02), "sm_clock": 210, "memory_clock": 1593, "temperature": 31}
    assert (outcome.value("device_utilization"), outcome.value("device_memory_total")) == (0.97, 80 << 30)
    assert outcome.value("device_throttled") == 1.0
    assert outcome.validity_warnings == ()

    doubt = f"h1: device {WRONG_COUNTER}: the energy counter differs by +"
    properties = [item.get("value") or "" for item in ET.parse(run / "junit.xml").iter("property")]
    assert eight.page.count("the energy counter differs") == 1
    assert any(text.startswith(doubt) for text in properties)

    # What the driver cannot tell.
    assert eight.page.count(f"energy: Not Supported (device {NO_COUNTER})") == 1
    assert eight.page.count(f"utilization: Not Supported (device {NO_UTILIZATION})") == 1
    assert_nothing_left(eight.hosts)


def test_an_engine_that_does_not_know_the_devices_is_reported_with_the_fix(gpus: ClusterToy) -> None:
    gpus.use_docker(nodes="1x2")
    output = gpus.failed()
    assert "h1: the container of ranks 0 to 1 could not be started: Docker cannot give containers the devices" in output
    assert "install the vendor's container toolkit and restart Docker" in output
