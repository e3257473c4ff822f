"""What a round ran on: from its hosts' own words, many hosts as one where they agree, and what of it weighs."""

from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.sampling.health import describe_device
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured import machine
from pytest_flagperf.stored.round_dir import RoundDir
from tests.helpers.recording import Training, write, write_json

HOST = {
    "os": "Some Linux 12", "kernel": "6.1.0-18", "cpu": "A processor", "sockets": "2", "cores": "128",
    "usable_cores": "128", "memory_bytes": str(1 << 40), "network": "2 x 25 Gb/s", "rdma": "8 x 400 Gb/sec (4X NDR)",
    "accelerators": "1 x 1a03:2000, 1 x 12ab:0001",
}  # fmt: skip
DEVICE = {
    "name": "X9 80GB", "firmware": "96.00.1", "memory_total": 81920, "power_limit": 700.0, "links": 18,
    "partitioned": False, "pcie_generation": 1, "pcie_width": 16, "best_pcie_generation": 5, "best_pcie_width": 16,
    "uuid": "GPU-1",
}  # fmt: skip
PLACES = ({"name": "h1", "address": "10.0.0.1"}, {"name": "h2", "address": "10.0.0.2"})


def facts(directory: Path, *reports: dict[str, Any], **plan: Any) -> dict[str, Any]:
    training = Training("a", nnodes=len(reports), hosts=PLACES[: len(reports)], plan_fields=plan)
    write(training, directory)
    for number, report in enumerate(reports):
        write_json(directory / f"h{number + 1}_noderank{number}" / "monitors.json", report)
    return machine.facts(directory, RoundDir(directory).read_plan(), {"libraries": {"somelib": "1.2.3"}})


def report(driver: str = "570.1", host: dict[str, str] | None = None, **device: Any) -> dict[str, Any]:
    return {"host": {**HOST, **(host or {})}, "driver": driver, "devices": [{**DEVICE, **device}, DEVICE]}


def test_all_that_is_known_of_one_host_is_flat_and_readable(tmp_path: Path) -> None:
    used = {"label": "docker: x", "python": "3.11.7", "image": "flagperf-acme:12ab", "image_id": "sha256:1"}
    plan = {"interpreter": used, "checkout": {"commit": "abc123", "changed": True}}
    assert facts(tmp_path, report(), **plan) == {
        "driver": "570.1", "chip": "X9 80GB", "chip_memory": "81920 MiB", "firmware": "96.00.1",
        "power_limit": "700 W", "interconnect": "18 links, PCIe 5 x16", "cpu": "A processor", "sockets": "2",
        "cores": "128", "usable_cores": "128", "memory": quantity(1 << 40, "bytes"), "kernel": "6.1.0-18",
        "os": "Some Linux 12", "image": "flagperf-acme:12ab", "image_id": "sha256:1", "python": "3.11.7",
        "somelib": "1.2.3", "commit": "abc123 with changes",
    }  # fmt: skip


BY_PROBE = "X9: h1: named by the vendor's own probe"
NO_PCI = "vendor.toml has no pci for the chip, and 1 were used"
NO_NAME = "0 of 1 devices reported a name, by NVML or the vendor's probe.py"
ON_CPU = "the framework's device is cpu, and the processor is A processor"
ACME = {"device": "acme", "chip_pci": ["12ab:0001"]}
NAMELESS = {"host": HOST, "devices": [{**DEVICE, "name": None}]}


@pytest.mark.parametrize(
    ("plan", "reports", "device", "problem"),
    [
        ({**ACME, "chip_names": ["X9 [48]0GB"]}, [report(), report()], "X9 80GB", ""),
        ({**ACME, "chip_pci": ["1d94:1", "12ab:0001"]}, [report()], "X9 80GB", ""),
        ({**ACME, "case": "toy:pytorch:X9:1:2:1"}, [report()], "", f"{BY_PROBE}; the kernel has 1 devices"),
        ({**ACME, "case": "toy:pytorch:X9:1:2:1", "chip_pci": ["12ab:0001"] * 2}, [report()], "", ""),
        ({"device": "acme"}, [report()], "", f"{BY_PROBE}; {NO_PCI}"),
        (ACME, [report(host={"accelerators": "1 x 1a03:2000"})], "", f"{BY_PROBE}; the kernel has 0 devices"),
        (ACME, [report(), report(name="X8")], "", "X9: h2: a device reported the name X8"),
        ({"device": "acme", "chip_names": ["X9 PCIe"]}, [report()], "", "X9: h1: a device reported the name X9 80GB"),
        ({"device": "acme"}, [NAMELESS], "", f"X9: h1: {NO_NAME}"),
        ({"device": "acme"}, [{}], "", f"X9: h1: {NO_NAME}"),
        ({"device": "acme"}, [report()], "cpu", "X9: the framework trained on cpu, not on acme"),
        # A probe that names a chip does not make an accelerator of a CPU.
        ({"device": "cpu"}, [report()], "cpu", f"X9: h1: {ON_CPU}"),
        ({"device": "CPU", "hardware": "processor"}, [report()], "CPU", ""),
        ({"device": "cpu", "hardware": "CPU"}, [{}], "cpu", ""),
    ],
)
def test_a_chip_is_as_reported(
    tmp_path: Path, plan: dict[str, Any], reports: list[dict[str, Any]], device: str, problem: str
) -> None:
    case = f"toy:pytorch:{plan.get('hardware', 'X9')}:{len(reports)}:1:1"
    facts(tmp_path, *reports, **{"case": case, **{key: value for key, value in plan.items() if key != "hardware"}})
    text = machine.unverified_chip(tmp_path, RoundDir(tmp_path).read_plan(), {"device": device} if device else {})
    assert text.startswith(problem)
    assert bool(text) == bool(problem)


@pytest.mark.parametrize(
    ("device", "bind", "cores", "binding", "expected"),
    [
        ("cpu", True, [["0", "2"], ["0", "2"]], "a core each", "0; 2; 0; 2"),
        ("acme", True, [["0-31"] * 4 + ["32-63"] * 4], "near its device", "4 x 0-31; 4 x 32-63"),
        ("acme", True, [["0-31", ""]], "of some ranks", "0-31; any"),
        ("acme", False, [["", ""]], "none", ""),
        ("cpu", True, [["", ""]], None, ""),
        ("acme", True, [], None, ""),
    ],
)
def test_the_binding_of_ranks_is_a_fact_and_its_cores_are_reported(
    device: str, bind: bool, cores: list[list[str]], binding: str | None, expected: str, tmp_path: Path
) -> None:
    hosts = [{"name": "h1", "noderank": 0, "cores": its} for its in cores] or [{"name": "h1", "noderank": 0}]
    write(Training("a", plan_fields={"device": device, "bind": bind, "hosts": hosts}), tmp_path)
    plan = RoundDir(tmp_path).read_plan()
    assert machine.facts(tmp_path, plan).get("binding") == binding
    assert machine.cores_of_ranks(plan) == expected


def test_what_a_vendors_tool_tells_and_an_images_digest_and_python_are_known(tmp_path: Path) -> None:
    device = describe_device(0, {"name": "Y1", "driver": "24.1", "memory_total": 65536.0, "power_limit": 350.0})
    found = facts(tmp_path, {"driver": "24.1", "devices": [device]})
    expected = {"driver": "24.1", "chip": "Y1", "chip_memory": "65536 MiB", "power_limit": "350 W"}
    assert {name: value for name, value in found.items() if name != "somelib"} == expected
    assert "partitioned" in facts(tmp_path, {"devices": [describe_device(0, {"partitioned": True})]})
    pulled = {"image": "somebody/torch:2", "digest": "somebody/torch@sha256:9", "image_id": "sha256:1"}
    assert facts(tmp_path, report(), interpreter=pulled)["image"] == "somebody/torch@sha256:9"
    found = facts(tmp_path, report(), interpreter={"label": "venv: pytorch-12", "python": "3.12.1"})
    assert (found["environment"], found["python"]) == ("venv: pytorch-12", "3.12.1")


def test_hosts_that_agree_are_reported_once_and_others_are_named(tmp_path: Path) -> None:
    found = facts(tmp_path, report(), report())
    assert (found["driver"], found["network"], found["rdma"]) == ("570.1", "2 x 25 Gb/s", "8 x 400 Gb/sec (4X NDR)")
    found = facts(tmp_path, report(), report("580.2", {"kernel": "", "cpu": "Another"}, name="X9 96GB"))
    assert found["driver"] == "h1: 570.1, h2: 580.2"
    assert found["chip"] == "h1: X9 80GB, h2: X9 96GB, X9 80GB"
    assert found["kernel"] == "h1: 6.1.0-18, h2: unknown"
    assert found["cpu"] == "h1: A processor, h2: Another"
    write(Training("a"), tmp_path)
    assert machine.facts(tmp_path, RoundDir(tmp_path).read_plan()) == {}
