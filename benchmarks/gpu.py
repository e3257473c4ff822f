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
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flagperf_driver.node.preflight_facts import collect_facts
from flagperf_driver.node.processes import die_with
from flagperf_driver.node.sampling.probe.process import ToolProcess
from flagperf_driver.node.sampling.probe.tool import ProbeError
from pytest_flagperf import stored
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor
from pytest_flagperf.plan.checkout import checkout
from pytest_flagperf.report.export.markdown import row
from pytest_flagperf.results.measured.machine import is_named
from pytest_flagperf.settings.read import settings_file
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import CASE, RESULTS

from . import site_python
from .items import (
    FAILED,
    NOT_RUN,
    PASSED,
    STOPPED,
    TIMED_OUT,
    VALIDITY,
    Figure,
    Item,
    Measured,
    Result,
    Slice,
    StopSignals,
    exit_code,
    read_result,
    run_items,
    slices,
    with_last_durations,
)
from .section import PYTEST, REPO, relative, table

FRAMEWORK = "pytorch"
STATE = REPO / "reports" / "gpu"
"""The state of all calls: a folder for each chip, commit and PyTorch, and in it a folder for each item."""
PUBLISHED = REPO / "reports" / "published"
ITEM = "item.json"
"""The result of an item, beside the published results.json."""
GUESSES_S = {
    "bert": 105, "resnet50": 75, "glm": 115,
    "vit": 75, "cpm": 100, "mobilenetv2": 95, "transformer": 130, "faster_rcnn": 105, "swin_transformer": 140,
    "efficientnet": 160, "mask_rcnn": 130, "retinanet": 115, "tacotron2": 220, "wav2vec2": 310, "waveglow": 210,
    "bigtransfer": 230,
}  # fmt: skip
"""The models, most valuable first, with guessed seconds of a compiled measurement; another model comes last."""
OTHER_MODEL_S = 150.0
CONVERGENCE_S = 30.0
"""Guess for the small scale of one model."""
SWITCHES = {
    "bert": ["compile_mode=max-autotune"],
    "resnet50": ["compile_mode=max-autotune"],
    "glm": ["compile_mode=max-autotune"],
    "mobilenetv2": ["channels_last=False"],
    "tacotron2": ["compile_mode=reduce-overhead"],
    "efficientnet": ["channels_last=False"],
}
"""Settings whose gain only a device can show: each is compared with the model's compiled measurement."""
KEPT = (
    "p_core", "mfu", "device_power", "device_sm_clock", "device_memory_clock", "device_throttled", "peak_memory",
    "compile_time", "device_energy_per_sample", "input_wait_share", "e2e_time", "time_to_target", "vendor_factor",
)  # fmt: skip
MOST_DIFFERENCE = 1e-3
"""Largest difference of a weight after the two optimizers' steps, relative to the largest weight."""
MOST_PIXEL_DIFFERENCE = 4.0
"""Largest mean difference of a reader's pixels from Pillow's, of 255: decoders and resizing differ by one to two."""
MACHINE = ("driver", "power_limit", "framework", "python", "commit", "version ")
"""Beginnings of the machine's facts in the table of published items."""
LIMIT_S = 1800
"""Longest duration of an item: compiling takes minutes on some devices. The slice is another limit."""


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


def measured(folder: Path) -> Measured:
    """Return the figures of a run's cases, and the machine; each case must have a throughput."""
    files = sorted(folder.glob(f"run*/{RESULTS}"))
    cases = [case for path in files for case in json.loads(path.read_text())["cases"]]
    if not cases:
        raise ValueError(f"no case in a {RESULTS}")
    figures = {}
    for case in cases:
        model, _, _, shape = case["case"].split(":", 3)
        prefix = f"{model} {shape} " if len(cases) > 1 else ""
        if not float(case["metrics"]["p_core"]["median"]) > 0:
            raise ValueError(f"{case['case']}: expected p_core > 0")
        metrics = {name: case["metrics"][name] for name in KEPT if name in case["metrics"]}
        figures.update({prefix + name: Figure(metric["median"], metric["unit"]) for name, metric in metrics.items()})
        if case["speedup"] is not None:
            figures[f"{prefix}speedup"] = Figure(case["speedup"], "x")
    first = cases[0]["outcomes"][0]
    machine = {name: str(text) for name, text in first["machine"].items()}
    machine |= {name: text for name, text in first["environment"].items() if name in ("framework", "precision")}
    for name, (got, expected) in first["fingerprint"].get("deviations", {}).items():
        if name.startswith("version "):
            machine[name] = f"{got}, required {expected}"
    if names := [warning["kind"] for warning in first["validity_warnings"]]:
        machine[VALIDITY] = ", ".join(names)
    return Measured(figures, machine, (first.get("profile") or {}).get("largest_loss", ""))


def convergence(folder: Path) -> Measured:
    """Return the time to the target of each model."""
    run = measured(folder)
    times = {name: figure for name, figure in run.figures.items() if name.endswith("time_to_target")}
    return Measured({name.replace(" 1:1:1 ", " "): figure for name, figure in times.items()}, run.machine)


def optimizers(folder: Path) -> Measured:
    """Return ratio and difference of the two optimizers; the weights must stay equal."""
    output = (folder / "output.log").read_text()
    ratio, difference = re.search(r"([\d.]+) times as fast", output), re.search(r"steps: (\S+) of the largest", output)
    if not ratio or not difference:
        raise ValueError("no ratio and difference in output.log")
    if not float(difference[1]) <= MOST_DIFFERENCE:
        raise ValueError(f"expected a difference of the weights of at most {MOST_DIFFERENCE}, got {difference[1]}")
    return Measured({"own step": Figure(float(ratio[1]), "times as fast"), "difference": Figure(float(difference[1]))})


def readers(folder: Path) -> Measured:
    """Return the rate of each reader, and how far its pixels are from Pillow's."""
    pattern = r"^(\w+) (\d+) images/s, pixels differ by (\S+)$"
    rows = re.findall(pattern, (folder / "output.log").read_text(), re.MULTILINE)
    figures: dict[str, Figure] = {}
    for name, rate, difference in rows:
        if not float(difference) <= MOST_PIXEL_DIFFERENCE:
            raise ValueError(f"{name}: expected a difference of at most {MOST_PIXEL_DIFFERENCE}, got {difference}")
        figures |= {name: Figure(float(rate), "images/s"), f"{name}'s difference": Figure(float(difference), "of 255")}
    if len(rows) < 2:
        raise ValueError(f"expected the rates of at least 2 readers in output.log, got {len(rows)}")
    return Measured(figures)


@dataclass(frozen=True)
class Target:
    """What is measured: a vendor's devices, with a Python."""

    catalog: Catalog
    vendor: Vendor
    chip: str
    devices: int
    site: site_python.SitePython | None = None
    wheels: str | None = None
    """A folder of wheels, in place of a package index."""

    @property
    def words(self) -> list[str]:
        """The options of pytest for the Python of the ranks."""
        return [*(self.site.words if self.site else []), *([f"--wheels={self.wheels}"] if self.wheels else [])]

    @property
    def models(self) -> list[str]:
        """The models, most valuable first."""
        order = list(GUESSES_S)
        models = {model for model, framework in self.catalog.suites if framework == FRAMEWORK}
        return sorted(models, key=lambda model: (order.index(model) if model in order else len(order), model))

    @property
    def name(self) -> str:
        """The name of the state's folder."""
        found = checkout(REPO)
        commit = str(found.get("commit", "unknown"))[:12] + ("-changed" if found.get("changed") else "")
        torch = f"torch{self.site.torch}" if self.site else "venv"
        return f"{self.chip}-{commit}-{torch}"


def make_items(target: Target, folder: Path) -> list[Item]:
    """Return all items, the most valuable first."""
    vendor, models = target.vendor, target.models
    synthetic = [f"--scale={vendor.scale}", "--synthetic"]
    small = "--scale=small"

    def run(name: str, estimate: float, *words: str, suite: str = "", devices: int = 1, nodes: str = "1x1") -> Item:
        places = [
            f"--vendor={vendor.name}",
            f"--hw={target.chip}",
            f"--nodes={nodes}",
            f"--reports={relative(folder / name)}",
        ]
        command = [*PYTEST, "-q", f"suites/{suite}".rstrip("/"), "-k", FRAMEWORK, *places, *target.words, *words]
        skip = "" if devices <= target.devices else f"needs at least {devices} devices, {target.devices} found"
        return Item(name, command, estimate, LIMIT_S, measured, skip=skip)

    def throughput(model: str, name: str, *words: str, compiled: bool = True) -> Item:
        suite = target.catalog.suites[model, FRAMEWORK]
        factor = (target.catalog.case_folder(suite, vendor) / "extern").is_dir()
        guess = GUESSES_S.get(model, OTHER_MODEL_S) if compiled else GUESSES_S.get(model, OTHER_MODEL_S) / 2
        settings = [
            "--set=precision=bf16",
            f"--set=compile={compiled}",
            *words,
            *(["--set=vendor_factor=True"] if factor else []),
        ]
        item = run(f"{model}-bf16-{name}", guess, *synthetic, *settings, suite=model)
        return replace(item, goal=suite.goal if vendor.scale == REFERENCE else None)

    rank_python = [sys.executable, "-m", "benchmarks.gpu", "--with-rank-python", relative(folder)]
    small_step, few_pictures = ["--layers=1", "--width=64"], ["--pictures=64", "--batch=16"]
    on_cpu = vendor.name == "cpu"
    lamb = [*rank_python, "benchmarks/extern_step.py", *(small_step if on_cpu else [])]
    loaders = [*rank_python, "benchmarks/readers.py", *(few_pictures if on_cpu else [])]
    kernels = "" if vendor.name in ("nvidia", "cpu") else "compares NVIDIA's kernels"
    all_devices = f"1x{target.devices}"
    preflight = run("preflight", 10, small, "--preflight")
    return [
        replace(preflight, limit_s=300, figures=None),
        *(throughput(model, "compiled") for model in models),
        replace(run("converges", CONVERGENCE_S * len(models), small), figures=convergence, parts=len(models)),
        *(throughput(model, "eager", compiled=False) for model in models),
        *(
            throughput(model, setting.replace("=", "-"), f"--set={setting}")
            for model in models
            for setting in SWITCHES.get(model, ())
        ),
        run("resnet50-fp16-converges", 30, small, "--set=precision=fp16", suite="resnet50"),
        Item("lamb", lamb, 30, LIMIT_S, optimizers, skip=kernels),
        Item("loaders", loaders, 60, LIMIT_S, readers),
        run("resnet50-speedup", 90, *synthetic, suite="resnet50", nodes=f"1x1,{all_devices}", devices=2),
        run("glm-fsdp-converges", 60, small, "--set=parallel=fsdp", suite="glm", nodes=all_devices, devices=2),
    ]


def selected(items: Sequence[Item], patterns: str) -> list[Item]:
    """Return the items with these names or patterns, separated by commas; raise ValueError for one without an item."""
    words = patterns.split(",")
    for word in words:
        if not fnmatch.filter([item.name for item in items], word):
            raise ValueError(f"no item {word!r}; choose from {', '.join(item.name for item in items)}")
    return [item for item in items if any(fnmatch.fnmatchcase(item.name, word) for word in words)]


def with_rank_python(folder: Path, words: Sequence[str]) -> int:
    """Continue as a program in the Python that trained the rounds in this folder."""
    from .whole_run import python_of

    rounds = [path.parent for path in sorted(folder.glob(f"*/run*/*/round1/{CASE}"))]
    if rounds:
        python, path = python_of(rounds[-1]), os.pathsep.join([str(REPO), str(REPO / "suites")])
        os.execve(python, [python, *words], {**os.environ, "PYTHONPATH": path})
    print(f"{folder}: no round found; an item that trains must run first", file=sys.stderr)
    return 1


# -- publishing ----------------------------------------------------------------------------------------------


def collect(result: Result, folder: Path, chip: str) -> None:
    """Copy what an item measured to the folder ``publish``: its result, and its run if one of the cases passed."""
    runs = [path for path in sorted((folder / result.name).glob(f"run*/{RESULTS}")) if _has_passed_case(path)]
    if not (runs or result.status == PASSED) or not result.figures:
        return
    place = folder / "publish" / f"{chip.lower()}-{result.name}-{time.strftime('%Y-%m-%d')}"
    shutil.rmtree(place, ignore_errors=True)
    stored.write_text(place / ITEM, replace(result, machine={"hardware": chip, **result.machine}).text)
    for path in runs[-1:]:
        shutil.copy(path, place / RESULTS)


def _has_passed_case(results: Path) -> bool:
    return any(case["ok"] for case in json.loads(results.read_text())["cases"])


def publish() -> int:
    """Copy all that is measured to reports/published, and write the tables of the documents."""
    from tools import readme

    places = sorted(STATE.glob("*/publish/*"))
    for place in places:
        shutil.copytree(place, PUBLISHED / place.name, dirs_exist_ok=True)
        print(f"published: {relative(PUBLISHED / place.name)}")
    problems = readme.write_sections(REPO)
    print(
        "\n".join(
            [*problems, f"{len(places)} published; read each {RESULTS}, then commit reports, suites, vendors and docs"]
        )
    )
    return int(bool(problems))


def published_items(published: Path, catalog: Catalog) -> str:
    """Return the tables of the published items, and of those that are owed on the goals' chips."""
    results: dict[tuple[str, str], tuple[str, Result]] = {}
    for file in sorted(published.glob(f"*/{ITEM}"), key=lambda file: file.parent.name[-10:]):
        result = read_result(file)
        chip = result.machine.get("hardware", "")
        if not any(chip in vendor.chips for vendor in catalog.vendors.values()):
            raise FormatError(f"{file}: machine.hardware is {chip!r}; expected a chip of vendors/*/vendor.toml")
        results[chip, result.name] = (file.parent.name[-10:], result)
    goals = {suite.goal.chip for suite in catalog.suites.values() if suite.goal}
    chips = {chip: vendor for vendor in catalog.vendors.values() for chip in vendor.chips}
    head = ["hardware", "item", "status", "figures", "goal", "machine", "command"]
    rows, owed = [head, ["---"] * len(head)], [["hardware", "item", "command"], ["---"] * 3]
    for chip in sorted(goals | {chip for chip, _ in results}):
        vendor = chips[chip]
        for item in make_items(Target(catalog, vendor, chip, vendor.chips[chip].devices_per_host or 1), STATE):
            again = f"`make gpu VENDOR={vendor.name} ITEMS={item.name}`"
            if (chip, item.name) in results:
                date, result = results[chip, item.name]
                facts = [f"{name} {text}" for name, text in result.machine.items() if name.startswith(MACHINE)]
                rows.append([chip, *result.row[:2], *result.row[3:], "; ".join([date, *facts]), again])
            elif item.figures:
                owed.append([chip, item.name, again])
    measured_rows = "\n".join(map(row, rows)) if len(rows) > 2 else "No result of a device is published yet."
    return "\n\n".join([measured_rows, "Owed:", "\n".join(map(row, owed))])


# -- the command ---------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the items that fit into the slice; the next call continues."""
    began = time.monotonic()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--with-rank-python"]:
        return with_rank_python(Path(words[1]), words[2:])
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
        return publish()
    if not options.slice > 0:
        parser.error(f"--slice={options.slice:g}: expected more than 0")
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
    target = Target(catalog, vendor, chip, count, site, options.wheels)
    folder = STATE / target.name
    try:
        items = with_last_durations(selected(make_items(target, folder), options.items), folder)
    except ValueError as error:
        parser.error(f"--items={options.items}: {error}")
    print(f"{vendor.name} {chip}, {count} devices, slices of {options.slice:g} minutes; results: {relative(folder)}")
    print(line)
    if options.plan:
        print(plan_text(items, 60 * options.slice))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as lock, StopSignals() as stop:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another call measures on this machine: wait for its end, or stop it", file=sys.stderr)
            return 1
        available = Slice(60 * options.slice, began)
        results = run_items(items, available, folder, stop, lambda result: collect(result, folder, chip))
    print((folder / "items.md").read_text())
    print(closing(items, results, folder))
    return 128 + stop.number if stop.number else exit_code(results)


def plan_text(items: Sequence[Item], seconds: float) -> str:
    """Return the items in their order, by slice."""
    rows = [
        (str(number), item.name, f"{item.estimate_s:.0f} ({item.estimate_from})", item.shown)
        for number, chosen in enumerate(slices(items, seconds), 1)
        for item in chosen
    ]
    skipped = [f"skipped: {item.name}: {item.skip}" for item in items if item.skip]
    return "\n".join([table(("slice", "item", "estimate (s)", "command"), rows), *skipped])


def closing(items: Sequence[Item], results: Sequence[Result], folder: Path) -> str:
    """Return what is left to do, else "all done"."""
    left = {result.name: result for result in results if result.status in (NOT_RUN, STOPPED)}
    bad = [result for result in results if result.status in (FAILED, TIMED_OUT)]
    lines = [f"{result.status}: {result.name}: {result.reason}" for result in [*left.values(), *bad]]
    if bad:
        lines.append(f"A failed item runs again after its folder in {relative(folder)} is removed.")
    if left:
        minutes = sum(item.estimate_s for item in items if item.name in left) / 60
        lines.append(f"{len(left)} items left, about {minutes:.0f} minutes: run the same command again")
    else:
        lines.append("all done")
    lines.append("publish the results: make gpu-publish")
    return "\n".join(lines)


if __name__ == "__main__":
    if "MAKELEVEL" in os.environ:
        die_with(os.getppid())
    sys.exit(main())
