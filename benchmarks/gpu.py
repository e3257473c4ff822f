"""Measure what a machine with accelerators owes, the most valuable first; docs/gpu.md.

    python -m benchmarks.gpu                             # what fits into ten minutes on NVIDIA's devices (make gpu)
    python -m benchmarks.gpu --vendor=cpu --minutes=5    # the same commands without an accelerator

The exit code is 1 if an item failed; without a device it is 0.
"""

from __future__ import annotations

import argparse
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
from pytest_flagperf.catalog import Catalog, Vendor
from pytest_flagperf.engines.agents.preflight.device_rules import is_named
from pytest_flagperf.stored.layout import CASE

from .items import NOT_RUN, PASSED, Figures, Item, exit_code, run_items
from .section import PYTEST, REPO

KEPT = ("p_core", "mfu", "device_energy_per_sample", "e2e_time", "input_wait_share")
MOST_DIFFERENCE = 1e-3
"""Largest difference of a weight after the two optimizers' steps, relative to the largest weight."""


def find_devices(vendor: Vendor) -> tuple[str, int, str]:
    """Return chip, number of devices, and why no device is usable."""
    chips = vendor.chips
    if not vendor.toml.nvml and not vendor.probe:
        return next(iter(chips)), len(os.sched_getaffinity(0)), ""
    probe = str((vendor.path / "probe.py").relative_to(REPO)) if vendor.probe else None
    survey = collect_facts({"nvml": vendor.toml.nvml, "probe": probe})["devices"]
    devices = [device for device in survey["devices"] if not device.get("error")]
    if not devices:
        return "", 0, str(survey["error"] or "no readable device")
    name = str(devices[0]["name"])
    for chip, entry in chips.items():
        if is_named(name, chip, entry.names):
            return chip, len(devices), ""
    return "", 0, f"device {name!r}: expected one of {', '.join(chips)}; add it to {vendor.path / 'vendor.toml'}"


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
        return Item(name, command, estimate, 3 * estimate, case_figures, skip=skip)

    first = run("environment", 600, "--scale=small", "--synthetic", suite="resnet50")
    preflight = run("preflight", 10, "--scale=small", "--preflight")
    rank_python = [sys.executable, "-m", "benchmarks.gpu", "--with-rank-python", str(folder / "environment")]
    size = ["--layers=1", "--width=64"] if vendor.name == "cpu" else []
    kernels = "" if vendor.name in ("nvidia", "cpu") else "compares NVIDIA's kernels"
    one = "" if devices > 1 else "needs at least 2 devices, 1 found"
    all_devices = f"1x{devices}"
    precision = {True: "compiled", False: "eager"}
    return [
        Item(preflight.name, preflight.command, 10, 60),
        Item(first.name, first.command, first.estimate_s, first.limit_s, case_figures, counted=False),
        *(
            run(f"{model}-bf16-{word}", 90 if compiled else 45, *synthetic, "--set=precision=bf16",
                f"--set=compile={compiled}", suite=model)
            for compiled, word in precision.items() for model in models
        ),
        *(run(f"{model}-converges", 45, "--scale=small", suite=model) for model in models),
        Item("lamb", [*rank_python, "benchmarks/extern_step.py", *size], 30, 120, optimizer_figures, skip=kernels),
        run("resnet50-fp16-converges", 30, "--scale=small", "--set=precision=fp16", suite="resnet50"),
        run("glm-fsdp-converges", 60, "--scale=small", "--set=parallel=fsdp", suite="glm", nodes=all_devices, skip=one),
        run("resnet50-speedup", 90, *synthetic, suite="resnet50", nodes=f"1x1,{all_devices}", skip=one),
    ]  # fmt: skip


def with_rank_python(reports: Path, words: Sequence[str]) -> int:
    """Run a program in the Python that trained the round in this folder."""
    from .whole_run import torch_python

    rounds = [path.parent for path in reports.glob(f"run*/*/round1/{CASE}")]
    if not rounds:
        print(f"{reports}: no round found; the item 'environment' must pass first", file=sys.stderr)
        return 1
    return subprocess.run([torch_python(rounds[0]), *words], cwd=REPO).returncode


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
    chip, count, problem = find_devices(vendor)
    if problem:
        print(f"no GPU found: {problem}")
        return 0
    folder = REPO / "reports" / f"gpu{time.strftime('%Y%m%d%H%M%S')}"
    models = sorted({model for model, framework in catalog.suites if framework == "pytorch"}, reverse=True)
    print(f"{vendor.name} {chip}, {count} devices, {options.minutes:g} minutes; results: {folder}")
    results = run_items(make_items(models, vendor, chip, count, folder), 60 * options.minutes, folder)
    for result in results:
        # Only the runs of passed items can be published.
        for path in (folder / result.name).glob("run*/results.json") if result.status == PASSED else ():
            target = folder / "publish" / f"{chip.lower()}-{result.name}-{time.strftime('%Y-%m-%d')}"
            target.mkdir(parents=True)
            shutil.copy(path, target / "results.json")
    print((folder / "items.md").read_text())
    for result in results:
        if result.status == NOT_RUN:
            print(f"not run: {result.name}: {result.reason}\n  {result.command}")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
