"""Measure what a machine with accelerators owes, the most valuable first, in slices of time; docs/gpu.md.

    python -m benchmarks.gpu                             # a slice of 9 minutes on NVIDIA's devices (make gpu)
    python -m benchmarks.gpu --plan                      # print the items and their slices; start nothing
    python -m benchmarks.gpu --publish                   # copy what is measured to reports/published
    python -m benchmarks.gpu --vendor=cpu --slice=5      # the same commands without an accelerator

The exit code is 1 if an item failed or the devices cannot be used, 0 without a device, and 128 + N after signal N.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import fnmatch
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flagperf_driver.node.preflight_facts import collect_facts
from flagperf_driver.node.processes import die_with
from flagperf_driver.node.sampling.probe.process import ToolProcess
from flagperf_driver.node.sampling.probe.tool import ProbeError
from pytest_flagperf.catalog import Catalog, Vendor
from pytest_flagperf.results.measured.machine import is_named
from pytest_flagperf.settings.read import settings_file

from . import publish, site_python
from .gpu_items import FRAMEWORK, STATE, Target, make_items
from .items import (
    NOT_RUN,
    PASSED,
    STOPPED,
    UNSUCCESSFUL,
    Item,
    Result,
    Slice,
    StopSignals,
    exit_code,
    run_items,
    slices,
    stored_results,
    waiting,
    with_last_durations,
)
from .section import REPO, relative, table

LEAST_SLICE = 2
"""Minutes in which the shortest measurement ends."""


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


def selected(items: Sequence[Item], patterns: str) -> list[Item]:
    """Return the items with these names or patterns, separated by commas; raise ValueError for one without an item."""
    words = patterns.split(",")
    for word in words:
        if not fnmatch.filter([item.name for item in items], word):
            raise ValueError(f"no item {word!r}; choose from {', '.join(item.name for item in items)}")
    return [item for item in items if any(fnmatch.fnmatchcase(item.name, word) for word in words)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the items that fit into the slice; the next call continues."""
    began = time.monotonic()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vendor", default="nvidia", help="folder in vendors/ (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=9, help="minutes of this call (default: %(default)g)")
    parser.add_argument("--python", help="Python with PyTorch (default: the first that sees the device; docs/gpu.md)")
    parser.add_argument("--wheels", help="folder of wheels in place of a package index, for the items with trainings")
    parser.add_argument("--items", default="*", help="names or patterns, separated by commas (default: all)")
    parser.add_argument("--plan", action="store_true", help="print the items and their slices; start nothing")
    parser.add_argument("--publish", action="store_true", help="copy what is measured to reports/published")
    options = parser.parse_args(words)
    if options.publish:
        return publish.publish()
    if not options.slice >= LEAST_SLICE:
        parser.error(f"--slice={options.slice:g}: expected at least {LEAST_SLICE} minutes")
    wheels = str(Path(options.wheels).expanduser().absolute()) if options.wheels else None
    if wheels and not Path(wheels).is_dir():
        parser.error(f"--wheels={options.wheels}: no such folder; flagperf wheels fills one (docs/offline.md)")
    catalog = Catalog.scan([REPO])
    if options.vendor not in catalog.vendors:
        parser.error(f"--vendor={options.vendor}: unknown vendor; choose from {', '.join(sorted(catalog.vendors))}")
    vendor = catalog.vendor(options.vendor)
    _, settings = settings_file(REPO) or (None, {})
    try:
        chip, count = find_devices(vendor)
        site, line = site_python.find(vendor.toml.framework[FRAMEWORK].device, options.python, settings)
    except NoDeviceError as error:
        print(f"no GPU found: {error}")
        return 0
    except (UnusableDeviceError, site_python.SitePythonError) as error:
        print(f"cannot use the devices: {error}", file=sys.stderr)
        return 1
    target = Target(catalog, vendor, chip, count, site, wheels)
    folder = STATE / target.name
    try:
        items = with_last_durations(selected(make_items(target, folder), options.items), folder)
    except ValueError as error:
        parser.error(f"--items={options.items}: {error}")
    print(f"{vendor.name} {chip}, {count} devices, slices of {options.slice:g} minutes; results: {relative(folder)}")
    print(line)
    if options.plan:
        print(plan_text(items, 60 * options.slice, stored_results(items, folder)))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as lock, StopSignals() as stop:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another call of this checkout measures: wait for its end, or stop it", file=sys.stderr)
            return 1
        available = Slice(60 * options.slice, began)
        results = run_items(items, available, folder, stop, lambda result: publish.collect(result, folder, chip))
    print((folder / "items.md").read_text())
    print(closing(items, results, folder))
    return 128 + stop.number if stop.number else exit_code(results)


def plan_text(items: Sequence[Item], seconds: float, before: Mapping[str, Result]) -> str:
    """Return the items in their order, by slice, and those that have passed."""
    rows = [
        (str(number), item.name, f"{item.estimate_s:.0f} ({item.estimate_from})", item.shown)
        for number, chosen in enumerate(slices(waiting(items, before), seconds), 1)
        for item in chosen
    ]
    skipped = [f"skipped: {item.name}: {item.skip}" for item in items if item.skip]
    done = [f"done: {name}" for name, result in before.items() if result.status == PASSED]
    return "\n".join([table(("slice", "item", "estimate (s)", "command"), rows), *skipped, *done])


def closing(items: Sequence[Item], results: Sequence[Result], folder: Path) -> str:
    """Return what is left to do, else "all done"."""
    left = {result.name: result for result in results if result.status in (NOT_RUN, STOPPED)}
    bad = [result for result in results if result.status in UNSUCCESSFUL]
    lines = [f"{result.status}: {result.name}: {result.reason}" for result in [*left.values(), *bad]]
    if bad:
        lines.append(f"{len(bad)} items failed: the same command runs them again")
    if left:
        minutes = sum(item.estimate_s for item in items if item.name in left) / 60
        lines.append(f"{len(left)} items left, about {minutes:.0f} minutes: run the same command again")
    if not lines:
        lines.append("all done")
    if any(folder.glob("publish/*")):
        lines.append("publish the results: make gpu-publish")
    return "\n".join(lines)


if __name__ == "__main__":
    if "MAKELEVEL" in os.environ:
        die_with(os.getppid())
    sys.exit(main())
