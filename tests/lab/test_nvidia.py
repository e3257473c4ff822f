"""The vendor nvidia on a host with eight devices: its monitors, old drivers, and devices that others use."""

import csv

import pytest

from flagperf_driver.node.sampling import devices
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.live_record import HOST, LiveFile, live_files
from tests.lab.nvml import GIB, NOT_SUPPORTED
from tests.lab.runs import ClusterToy, assert_nothing_left

NO_COUNTER, NO_UTILIZATION, WRONG_COUNTER = 5, 6, 7
"""Devices of which each lacks something."""


@pytest.mark.alone  # the sampler must keep its times
def test_eight_devices_are_sampled_and_a_wrong_counter_is_named(gpus: ClusterToy) -> None:
    """All devices work at the default power limit; a missing reading is reported once, a wrong counter is detected."""
    gpus.toy.config("alpha", "1x8", "train_batch_size = 8\n", vendor="nvidia", chip="A100")
    gpus.settings(nodes="1x8", scale="reference", data_dir="/tmp", sample=0.1)
    host = gpus.hosts[0]
    for gpu in host.nvml:
        gpu.set(power_mw=300_000 + 10_000 * gpu.index, wave_mw=60_000, wave_ms=300, clock_reasons=0x4, utilization=97)
    host.nvml[NO_COUNTER].set(energy_uj=NOT_SUPPORTED)
    host.nvml[NO_UTILIZATION].set(utilization=NOT_SUPPORTED)
    going = gpus.start("-k", "converges", "--set=step_s=0.33")
    going.wait_for(lambda: gpus.trains(host), "the training")
    counter = host.nvml[WRONG_COUNTER]
    counter.set(energy_uj=counter.get("energy_uj") + 5_000_000_000)
    assert going.wait() == 1, going.text
    (round_dir,) = gpus.toy.runs[-1].glob("*/round1")
    outcome = Outcome.from_json(gpus.round_json(name="outcome"))

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
    assert gpus.page.count(f"h1: device {WRONG_COUNTER}: the energy counter differs by +") == 1

    # What the driver cannot tell.
    assert gpus.page.count(f"energy: Not Supported (device {NO_COUNTER})") == 1
    assert gpus.page.count(f"utilization: Not Supported (device {NO_UTILIZATION})") == 1

    # What could be watched while it ran.
    notes = [note for file in live_files(gpus.toy.runs[-1]) for note in LiveFile(file).new()]
    seen = {name: value for note in notes if note["kind"] == HOST for name, value in note.items()}
    assert (seen["host"], [*seen["ranks"]]) == ("h1", [str(rank) for rank in range(8)])
    watched = seen["samples"]["devices"]
    assert (len(watched), seen["samples"]["host"].keys()) == (8, {"cpu", "memory"})
    assert watched["0"].keys() >= {"power", "temperature", "utilization", "memory_used", "memory_total"}
    assert_nothing_left(gpus.hosts)


def test_an_engine_that_does_not_know_the_devices_is_reported_with_the_fix(gpus: ClusterToy) -> None:
    gpus.use_docker(nodes="1x2")
    output = gpus.failed()
    assert "h1: the container of ranks 0 to 1 could not be started: Docker cannot give containers the devices" in output
    assert "install the vendor's container toolkit and restart Docker" in output


def test_a_device_with_a_foreign_process_is_not_used(gpus: ClusterToy, foreign_pid: int) -> None:
    host = gpus.hosts[0]
    host.nvml[0].processes((foreign_pid, 700 << 20))
    code, output = gpus.run("-k", "converges")
    assert code == 0, output
    assert f"warning: h1: foreign processes: device 0 is in use by sleep (pid {foreign_pid} of root, 700 MiB)" in output
    plan = gpus.round_json(name="plan")
    assert [(host["name"], host["devices"]) for host in plan["hosts"]] == [("h1", [1, 2])]
    assert foreign_pid in [one.pid for one in host.processes()]


def test_ranks_in_a_container_are_not_foreign_processes_but_others_are(gpus: ClusterToy, foreign_pid: int) -> None:
    """Root's ranks hide their environment from any other user, but not that they are in the round's container."""
    host = gpus.hosts[0]
    host.nvml.container_toolkit()
    gpus.use_docker(nodes="1x2", sample=0.1)
    host.add_user("bench", docker=True)
    settings = gpus.root / "flagperf.toml"
    settings.write_text(settings.read_text().replace('user = "root"', 'user = "bench"'))
    going = gpus.start("-k", "converges", "--set=step_s=0.5")  # longer than two looks for foreign processes

    def ranks() -> list[int]:
        return [one.pid for one in host.processes() if "run_pretraining.py" in one.cmdline]

    going.wait_for(lambda: gpus.trains(host) and len(ranks()) == 2, "the first step of two ranks", 60)
    first, second = ranks()
    host.nvml[0].processes((first, GIB))
    host.nvml[0].set(clock_reasons=0x4, utilization=97, sm_clock=1410)
    host.nvml[1].processes((second, GIB), (foreign_pid, GIB))
    host.nvml[5].processes((foreign_pid, GIB))  # the control: not a device of the round
    assert going.wait(120) == 0, going.text
    outcome = Outcome.from_json(gpus.round_json(name="outcome"))
    (warning,) = outcome.validity_warnings
    assert warning.sentence == f"h1: device 1 was also in use by sleep of root (pid {foreign_pid})"
    assert (outcome.machine["driver"], outcome.machine["interconnect"]) == ("550.54.15", "PCIe 4 x16")
    assert outcome.machine["image"] == "flagperf-lab:python"
    assert outcome.machine["image_id"].startswith("sha256:")
