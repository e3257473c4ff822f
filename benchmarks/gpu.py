"""Measure what a machine with accelerators owes, the most valuable first; docs/gpu.md.

    python -m benchmarks.gpu                             # what fits into ten minutes on NVIDIA's devices (make gpu)
    python -m benchmarks.gpu --vendor=cpu --minutes=5    # the same commands without an accelerator

The exit code is 1 if an item failed or the devices cannot be used, 0 without a device, and 128 + N after signal N.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flagperf_driver.node.preflight_facts import collect_facts
from flagperf_driver.node.sampling.probe.process import ToolProcess
from flagperf_driver.node.sampling.probe.tool import ProbeError
from pytest_flagperf.catalog import Catalog, Vendor
from pytest_flagperf.results.measured.machine import is_named
from pytest_flagperf.stored.layout import CASE

from .items import NOT_RUN, PASSED, STOPPED, Figures, Item, StopSignals, exit_code, run_items, with_last_durations
from .section import PYTEST, REPO

KEPT = ("p_core", "mfu", "device_energy_per_sample", "e2e_time", "input_wait_share")
MOST_DIFFERENCE = 1e-3
"""Largest difference of a weight after the two optimizers' steps, relative to the largest weight."""
LIMIT_S = 1800
"""Longest duration of an item: compiling takes minutes on some devices. The available time is another limit."""


class NoDeviceError(Exception):
    """No device of the vendor in this machine."""


class UnusableDeviceError(Exception):
    """The devices cannot be read, or vendor.toml does not have their chip."""


def find_devices(vendor: Vendor) -> tuple[str, int]:
    """Return chip and number of devices; raise NoDeviceError or UnusableDeviceError with the reason."""
    chips = vendor.chips
    if not vendor.toml.nvml and not vendor.probe:
        return next(iter(chips)), len(os.sched_getaffinity(0))
    probe = str((vendor.path / "probe.py").relative_to(REPO)) if vendor.probe else None
    survey = collect_facts({"nvml": vendor.toml.nvml, "probe": probe})["devices"]
    devices, error = survey["devices"], survey["error"]
    if not devices and (not error or not _is_driver_installed(vendor)):
        raise NoDeviceError(error or "the driver reports no device")
    errors = [f"device {device['index']}: {device['error']}" for device in devices if device["error"]]
    if error or errors:
        reasons = "; ".join([*([str(error)] if error else []), *errors])
        raise UnusableDeviceError(f"{reasons}. Repair the driver or the device, then run the command again")
    for device in devices:
        if not [chip for chip, entry in chips.items() if is_named(str(device["name"]), chip, entry.names)]:
            file = (vendor.path / "vendor.toml").relative_to(REPO)
            raise UnusableDeviceError(
                f"device {device['index']}: got {device['name']!r}, expected one of {', '.join(chips)}."
                f" Add the chip as [chips.NAME] to {file} (docs/vendors.md)"
            )
    name = str(devices[0]["name"])
    return next(chip for chip, entry in chips.items() if is_named(name, chip, entry.names)), len(devices)


def _is_driver_installed(vendor: Vendor) -> bool:
    """Return True if the vendor's tool or NVML's library exists, even if it does not work."""
    if vendor.toml.nvml:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
            return True
        except OSError as error:
            if "No such file" not in str(error):
                return True
    if not vendor.probe:
        return False
    try:
        tool = ToolProcess(str(vendor.path / "probe.py"))
    except ProbeError:
        return True
    tool.close()
    return shutil.which(tool.command[0], path=tool.environment.get("PATH")) is not None


def case_figures(folder: Path) -> Figures:
    """Return the figures of a run's cases; each case must have a throughput."""
    files = sorted(folder.glob("run*/results.json"))
    cases = [case for path in files for case in json.loads(path.read_text())["cases"]]
    if not cases:
        raise ValueError("no case in a results.json")
    figures = {}
    for case in cases:
        prefix = f"{case['case'].split(':', 3)[3]} " if len(cases) > 1 else ""
        if not float(case["metrics"]["p_core"]["median"]) > 0:
            raise ValueError(f"{case['case']}: expected p_core > 0")
        figures.update({prefix + name: case["metrics"][name]["median"] for name in KEPT if name in case["metrics"]})
        if case["speedup"] is not None:
            figures[f"{prefix}speedup"] = case["speedup"]
    return figures


def optimizer_figures(folder: Path) -> Figures:
    """Return ratio and difference of the two optimizers; the weights must stay equal."""
    output = (folder / "output.log").read_text()
    ratio, difference = re.search(r"([\d.]+) times as fast", output), re.search(r"steps: (\S+) of the largest", output)
    if not ratio or not difference:
        raise ValueError("no ratio and difference in output.log")
    if not float(difference[1]) <= MOST_DIFFERENCE:
        raise ValueError(f"expected a difference of the weights of at most {MOST_DIFFERENCE}, got {difference[1]}")
    return {"times as fast": float(ratio[1]), "difference": float(difference[1])}


def make_items(models: Sequence[str], vendor: Vendor, chip: str, devices: int, folder: Path) -> list[Item]:
    """Return all items, the most valuable first."""
    synthetic = [f"--scale={vendor.scale}", "--synthetic"]

    def run(name: str, estimate: float, *words: str, suite: str = "", nodes: str = "1x1", skip: str = "") -> Item:
        places = [f"--vendor={vendor.name}", f"--hw={chip}", f"--nodes={nodes}", f"--reports={folder / name}"]
        command = [*PYTEST, "-q", f"suites/{suite}".rstrip("/"), *places, *words]
        return Item(name, command, estimate, LIMIT_S, case_figures, skip=skip)

    first = run("environment", 600, "--scale=small", "--synthetic", suite="resnet50")
    preflight = run("preflight", 10, "--scale=small", "--preflight")
    rank_python = [sys.executable, "-m", "benchmarks.gpu", "--with-rank-python", str(folder / "environment")]
    size = ["--layers=1", "--width=64"] if vendor.name == "cpu" else []
    kernels = "" if vendor.name in ("nvidia", "cpu") else "compares NVIDIA's kernels"
    one = "" if devices > 1 else "needs at least 2 devices, 1 found"
    all_devices = f"1x{devices}"
    precision = {True: "compiled", False: "eager"}
    return [
        Item(preflight.name, preflight.command, 10, 300),
        Item(first.name, first.command, first.estimate_s, first.limit_s, case_figures, counted=False),
        *(
            run(f"{model}-bf16-{word}", 90 if compiled else 45, *synthetic, "--set=precision=bf16",
                f"--set=compile={compiled}", suite=model)
            for compiled, word in precision.items() for model in models
        ),
        *(run(f"{model}-converges", 45, "--scale=small", suite=model) for model in models),
        Item("lamb", [*rank_python, "benchmarks/extern_step.py", *size], 30, LIMIT_S, optimizer_figures, skip=kernels),
        run("resnet50-fp16-converges", 30, "--scale=small", "--set=precision=fp16", suite="resnet50"),
        run("glm-fsdp-converges", 60, "--scale=small", "--set=parallel=fsdp", suite="glm", nodes=all_devices, skip=one),
        run("resnet50-speedup", 90, *synthetic, suite="resnet50", nodes=f"1x1,{all_devices}", skip=one),
    ]  # fmt: skip


def with_rank_python(reports: Path, words: Sequence[str]) -> int:
    """Run a program in the Python that trained the round in this folder."""
    from .whole_run import python_of

    rounds = [path.parent for path in reports.glob(f"run*/*/round1/{CASE}")]
    if not rounds:
        print(f"{reports}: no round found; the item 'environment' must pass first", file=sys.stderr)
        return 1
    return subprocess.run([python_of(rounds[0]), *words], cwd=REPO).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Run the items that fit into the minutes; print the commands of the others."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--with-rank-python"]:
        return with_rank_python(Path(words[1]), words[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vendor", default="nvidia", help="folder in vendors/ (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="available time (default: %(default)g)")
    options = parser.parse_args(words)
    if not options.minutes > 0:
        parser.error(f"--minutes={options.minutes:g}: expected more than 0")
    catalog = Catalog.scan([REPO])
    if options.vendor not in catalog.vendors:
        parser.error(f"--vendor={options.vendor}: unknown vendor; choose from {', '.join(sorted(catalog.vendors))}")
    vendor = catalog.vendor(options.vendor)
    try:
        chip, count = find_devices(vendor)
    except NoDeviceError as error:
        print(f"no GPU found: {error}")
        return 0
    except UnusableDeviceError as error:
        print(f"cannot use the devices: {error}", file=sys.stderr)
        return 1
    folder = REPO / "reports" / f"gpu{time.strftime('%Y%m%d%H%M%S')}"
    models = sorted({model for model, framework in catalog.suites if framework == "pytorch"}, reverse=True)
    print(f"{vendor.name} {chip}, {count} devices, {options.minutes:g} minutes; results: {folder}")
    items = with_last_durations(make_items(models, vendor, chip, count, folder), folder)
    with StopSignals() as stop:
        results = run_items(items, 60 * options.minutes, folder, stop)
    for result in results:
        # Only the runs of passed items can be published.
        for path in (folder / result.name).glob("run*/results.json") if result.status == PASSED else ():
            target = folder / "publish" / f"{chip.lower()}-{result.name}-{time.strftime('%Y-%m-%d')}"
            target.mkdir(parents=True)
            shutil.copy(path, target / "results.json")
    print((folder / "items.md").read_text())
    for result in results:
        if result.status in (NOT_RUN, STOPPED):
            print(f"{result.status}: {result.name}: {result.reason}\n  {result.command}")
    return 128 + stop.number if stop.number else exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
