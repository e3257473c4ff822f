"""The facts that NVML reports, and libraries that are broken, hang or are incomplete."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from flagperf_driver.node import preflight_facts
from tests.helpers.sampling import code_root, gpus, with_gpus
from tests.lab.nvml import GPU_IS_LOST, NOT_SUPPORTED

pytestmark = [pytest.mark.integration, with_gpus]

OPENS = """
static int device;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { *out = &device; return index > 1; }
"""
NAMES = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(str(pynvml.__file__)).read_text())))


def answering(how: str) -> str:
    """Return all other functions of the library, each with this body."""
    return "\n".join(f"int {name}() {{ {how} }}" for name in NAMES if f" {name}(" not in OPENS)


ORDERS = {"nvml": True, "vendor": "acme", "device_every_s": 0.05}
LIBRARIES = {
    "nothing": "int other(void) { return 0; }",
    "no init": "int nvmlInitWithFlags(unsigned flags) { return 999; }",
    "not supported": OPENS + answering("return 3;"),
    "no symbols": OPENS,
    "hangs": "#include <unistd.h>\n" + OPENS + answering("for (;;) pause();"),
    "hangs at once": "#include <unistd.h>\nint nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }",
}


def library(folder: Path, name: str) -> dict[str, str]:
    """Build a library; return the environment in which a program finds it."""
    folder.mkdir(exist_ok=True)
    (folder / "nvml.c").write_text(LIBRARIES[name])
    made = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "nvml.c")]
    subprocess.run(made, check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def survey_of(root: Path, env: dict[str, str], driver_s: float = 20, **options: object) -> dict[str, Any]:
    """Return the devices as preflight sees them."""
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); from flagperf_driver.node import preflight_facts; "
        f"preflight_facts._DRIVER_S = {driver_s}; "
        "print(json.dumps(preflight_facts._devices(json.loads(sys.argv[2]))), flush=True); os._exit(0)"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(root), json.dumps({"nvml": True, **options})]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, check=True, timeout=30, text=True)
    survey: dict[str, Any] = json.loads(done.stdout)
    return survey


def test_a_survey_contains_the_facts_for_preflight(tmp_path: Path) -> None:
    nv, env = gpus(tmp_path, 8)
    nv[1].processes((os.getpid(), 5 << 30))
    nv[2].set(ecc_uncorrected=3, rows_pending=1, clock_reasons=0x1 | 0x8)
    nv[4].set(error=GPU_IS_LOST)
    result = survey_of(code_root(tmp_path), env)
    assert (result["driver"], result["error"], len(result["devices"])) == ("550.54.15", None, 8)
    sampled = result["devices"][1]
    assert sampled["uuid"].startswith("GPU-")
    assert sampled["memory_total"] == 81920
    (process,) = sampled["processes"]
    assert (process["pid"], process["memory"]) == (os.getpid(), 5 << 10)
    assert process["name"] == Path("/proc/self/comm").read_text().strip()
    sick = result["devices"][2]
    assert (sick["ecc_uncorrected"], sick["row_remap_pending"], sick["throttle"]) == (3, True, ["hw_slowdown"])
    assert result["devices"][3]["throttle"] == []
    assert result["devices"][4]["error"] == "GPU is lost"


def test_a_survey_contains_links_pcie_limits_and_partitions(tmp_path: Path) -> None:
    nv, env = gpus(tmp_path, 4)
    nv[0].set(links=10, links_down=2, link_errors=5)
    nv[1].set(pcie_width=8, pcie_generation=1, power_limit_mw=250_000)
    nv[2].set(mig=1, ecc_corrected=4, link_errors=9)
    nv[3].set(links=1, link_errors=NOT_SUPPORTED)
    linked, slow, partitioned, silent = survey_of(code_root(tmp_path), env)["devices"]
    assert [linked[name] for name in ("links", "links_down", "link_errors")] == [10, 2, 5]
    assert [slow[name] for name in ("links", "links_down", "link_errors")] == [None] * 3
    assert [slow[name] for name in ("pcie_width", "best_pcie_width", "pcie_generation")] == [8, 16, 1]
    assert [slow[name] for name in ("power_limit", "usual_power_limit")] == [250.0, 400.0]
    assert (slow["partitioned"], partitioned["partitioned"], partitioned["ecc_corrected"]) == (False, True, 4)
    assert (silent["links"], silent["links_down"], silent["link_errors"]) == (1, 0, None)


def test_changes_in_a_round_are_events_and_distorting_ones_have_a_kind(tmp_path: Path, start: Any) -> None:
    nv, env = gpus(tmp_path, 4)
    nv[0].set(links=12)
    sampler = start(env, **ORDERS)
    sampler.until(lambda: (sampler.folder / "monitors.json").exists() and sampler.rows())
    nv[0].set(links=11, links_down=1, link_errors=40)
    nv[1].set(power_limit_mw=250_000, ecc_corrected=2, mig=1)
    nv[2].set(utilization=97, pcie_width=8, pcie_generation=3)
    nv[3].set(utilization=3, pcie_width=8, pcie_generation=1)  # the control: an idle device
    nv.driver("560.35.03")
    sampler.go_on(0.2, "devices")
    sampler.end()
    assert [(event["device"], event["kind"], event["sentence"]) for event in sampler.report()["events"]] == [
        (None, "changed", "the driver changed from 550.54.15 to 560.35.03"),
        (0, "changed", "device 0: links_down changed from 0 to 1"),
        (0, None, "device 0: link_errors changed from 0 to 40"),
        (1, "changed", "device 1: power_limit changed from 400.0 to 250.0"),
        (1, "changed", "device 1: partitioned changed from False to True"),
        (1, None, "device 1: ecc_corrected changed from 0 to 2"),
        (2, None, "device 2 uses 8 of its 16 PCIe lanes"),
        (2, None, "device 2 uses PCIe generation 3 of 4"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "NVML: Function Not Found"),
        ("no init", "NVML: Unknown Error"),
        ("hangs at once", "NVML did not answer within 0.5 s: the driver hangs"),
        ("hangs", "NVML did not answer within 0.5 s: the driver hangs"),
    ],
)
def test_a_broken_library_is_a_finding_and_the_vendors_tool_is_used(tmp_path: Path, name: str, message: str) -> None:
    env, root = library(tmp_path / "broken", name), code_root(tmp_path)
    driver_s = 0.5 if name.startswith("hangs") else 20
    survey = survey_of(root, env, driver_s)
    assert (survey["error"], survey["devices"]) == (message, [])
    (root / "probe.py").write_text(
        "COMMAND = ['echo', 'X9']\n"
        "def parse(text): return [dict(name='X9', processes=["
        "dict(pid=1, name=1, memory='a'), dict(pid='2'), 3], driver='7')]\n"
    )
    survey = survey_of(root, env, driver_s, probe=str(root / "probe.py"))
    assert (survey["error"], survey["fallback_reason"], survey["driver"]) == (None, message, "7")
    (device,) = survey["devices"]
    (process,) = device["processes"]
    assert (process["pid"], process.keys() & {"name", "memory"}) == (1, set())
    (root / "probe.py").write_text("COMMAND = ['false']\ndef parse(text): return []\n")
    assert (
        survey_of(root, env, driver_s, probe=str(root / "probe.py"))["error"]
        == f"{message}; false ended with exit code 1: no message"
    )


@pytest.mark.parametrize("name", ["not supported", "no symbols"])
def test_devices_without_any_facts_are_listed(tmp_path: Path, name: str) -> None:
    survey = survey_of(code_root(tmp_path), library(tmp_path / "broken", name))
    assert survey["error"] is None
    for index, device in enumerate(survey["devices"]):
        assert {word: value for word, value in device.items() if value not in (None, [])} == {"index": index}


@pytest.mark.parametrize(
    ("name", "message"), [("not supported", "Not Supported"), ("no symbols", "Function Not Found")]
)
def test_unsupported_quantities_are_reported_once(tmp_path: Path, start: Any, name: str, message: str) -> None:
    sampler = start(library(tmp_path / "broken", name), **ORDERS)
    sampler.go_on(0.3, "devices")
    assert sampler.end() == ""
    report = sampler.report()
    devices = [sentence for sentence in report["missing"] if sentence.endswith("(devices 0, 1)")]
    assert devices == [
        *(
            f"{names}: {message} (devices 0, 1)"
            for names in (
                "power", "utilization", "sm_clock", "throttle", "temperature", "memory_used, memory_total",
                "memory_clock", "energy",
            )
        ),
        "foreign processes on the devices: not reported by the driver (devices 0, 1)",
    ]  # fmt: skip
    assert (report["errors"], report["events"]) == ([], [])


@pytest.mark.parametrize("name", ["hangs", "hangs at once"])
def test_a_library_that_hangs_is_reported_and_blocks_nothing_else(tmp_path: Path, start: Any, name: str) -> None:
    sampler = start(library(tmp_path / "broken", name), **ORDERS, every_s=0.1)
    sampler.go_on(0.5)
    assert sampler.end() == ""
    report = sampler.report()
    # On a busy machine a sample may be late; if the host's sampling were blocked, there would be one row.
    assert len(sampler.rows("host")) > report["schedule"]["host"]["missed"]
    assert "devices: NVML does not answer" in report["missing"]
    assert [event["sentence"] for event in report["events"]] == [
        "NVML stopped answering: the measurements of the devices end early"
    ]


def test_a_device_lost_at_the_start_affects_no_other_and_a_drivers_error_is_named(tmp_path: Path, start: Any) -> None:
    nv, env = gpus(tmp_path, 2)
    nv[1].set(error=GPU_IS_LOST)
    sampler = start(env, **ORDERS)
    sampler.go_on(0.1, "devices")
    assert sampler.end() == ""
    assert {row["device"] for row in sampler.rows()} == {"0"}
    (event,) = sampler.report()["events"]
    assert event["sentence"] == "device 1 cannot be read: GPU is lost"

    def ask() -> Any:
        raise ValueError("no such text")

    assert preflight_facts._in_time(ask) == {"driver": None, "devices": [], "error": "NVML: ValueError: no such text"}


def test_a_sharing_server_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [{"pid": 1, "name": "acme-cuda-mps"}, {"pid": 1, "name": "python"}]
    survey = {"driver": None, "devices": [{"index": 0, "processes": processes}], "error": None}
    monkeypatch.setattr(preflight_facts, "_survey", lambda _: survey)
    (device,) = preflight_facts._devices({})["devices"]
    assert [process["name"] for process in device["processes"]] == ["python"]
