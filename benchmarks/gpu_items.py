"""The items of ``make gpu``: their commands in the order of their value, and the readers of their figures."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flagperf.catalog import REFERENCE, Catalog, Suite, Vendor
from pytest_flagperf.plan.fingerprint import code_hash
from pytest_flagperf.results.measured.profile import peaks_sentence
from pytest_flagperf.stored.layout import RESULTS
from pytest_flagperf.stored.plan import MEASUREMENT, package_of

from . import site_python
from .items import VALIDITY, Figure, Item, Measured
from .section import PYTEST, REPO, relative

FRAMEWORK = "pytorch"
STATE = REPO / "reports" / "gpu"
"""The state of all calls: a folder for each chip, code and PyTorch, and in it a folder for each item."""
GUESSES_S = {
    "llama32_1b": 120, "llama31_8b": 300, "gpt_oss_20b": 400, "flux1": 300,
    "bert": 125, "resnet50": 75, "glm": 115,
    "vit": 75, "cpm": 100, "mobilenetv2": 95, "transformer": 130, "faster_rcnn": 105, "swin_transformer": 140,
    "efficientnet": 160, "mask_rcnn": 130, "retinanet": 115, "tacotron2": 220, "wav2vec2": 310, "waveglow": 210,
    "bigtransfer": 230,
}  # fmt: skip
"""The models, most valuable first, with guessed seconds of a compiled measurement; another model comes last."""
OTHER_MODEL_S = 150.0
DEVICES = {"llama31_8b": 8, "gpt_oss_20b": 8, "flux1": 8}
"""The devices of the models whose reference scale does not fit into the memory of one."""
MACHINE_S = {"computation": 110, "main_memory": 50, "transfer": 50, "interconnect": 90, "storage": 45}
"""The suites that measure the machine, with guessed seconds of one shape; another suite comes last."""
OTHER_SUITE_S = 60.0
CONVERGENCE_S = 30.0
"""Guess for the small scale of one model."""
SWITCHES = {
    "bert": ["compile_mode=max-autotune"],
    "resnet50": ["compile_mode=max-autotune"],
    "glm": ["compile_mode=max-autotune", "pack_tokens=False"],
    "mobilenetv2": ["channels_last=False"],
    "swin_transformer": ["fused_attention=False"],
    "tacotron2": ["compile_mode=reduce-overhead"],
    "efficientnet": ["channels_last=False"],
}
"""Settings whose gain only a device can show: each is compared with the model's compiled measurement."""
KEPT = (
    "p_core", "mfu", "device_power", "device_sm_clock", "device_memory_clock", "device_throttled", "peak_memory",
    "compile_time", "device_energy_per_sample", "input_wait_share", "padding_share", "e2e_time",
    "time_to_target", "vendor_factor",
)  # fmt: skip
MOST_DIFFERENCE = 1e-3
"""Largest difference of a weight after the two optimizers' steps, relative to the largest weight."""
MOST_PIXEL_DIFFERENCE = 4.0
"""Largest mean difference of a reader's pixels from Pillow's, of 255: decoders and resizing differ by one to two."""
PROGRAMS = ("benchmarks/extern_step.py", "benchmarks/readers.py", "benchmarks/mixture.py")
"""The programs of the items that do not run pytest."""
LIMIT_S = 1800
"""Longest duration of an item: compiling takes minutes on some devices. The slice is another limit."""


def measured(folder: Path) -> Measured:
    """Return the figures of a run's cases that passed, and the machine; each case must have its main figure."""
    files = sorted(folder.glob(f"run*/{RESULTS}"))
    all_cases = [case for path in files for case in json.loads(path.read_text())["cases"]]
    cases = [case for case in all_cases if case["ok"]]
    if not cases:
        raise ValueError(f"no case that passed in a {RESULTS}")
    figures = {}
    for case in cases:
        model, _, _, shape = case["case"].split(":", 3)
        prefix = f"{model} {shape} " if len(all_cases) > 1 else ""
        declared = [figure["name"] for figure in (case.get("outcomes") or [{}])[0].get("figures", ())]
        main = declared[0] if declared else "p_core"
        if not float(case["metrics"][main]["median"]) > 0:
            raise ValueError(f"{case['case']}: expected {main} > 0")
        metrics = {name: case["metrics"][name] for name in (*declared, *KEPT) if name in case["metrics"]}
        figures.update({prefix + name: Figure(metric["median"], metric["unit"]) for name, metric in metrics.items()})
        if case["speedup"] is not None:
            figures[f"{prefix}speedup"] = Figure(case["speedup"], "x")
    first = cases[0]["outcomes"][0]
    machine = {name: str(text) for name, text in first["machine"].items()}
    machine |= {name: text for name, text in first["environment"].items() if name in ("framework", "precision")}
    for name, (got, expected) in first["fingerprint"].get("deviations", {}).items():
        if package_of(name):
            machine[name] = f"{got}, required {expected}"
    if names := [warning["kind"] for warning in first["validity_warnings"]]:
        machine[VALIDITY] = ", ".join(names)
    profile = first.get("profile") or {}
    line = "; ".join(filter(None, [profile.get("largest_loss"), peaks_sentence(profile.get("of_peaks", {}))]))
    return Measured(figures, machine, line)


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


def mixture(folder: Path) -> Measured:
    """Return the rates of a mixture of experts in one call and expert by expert, with their shares of the peak."""
    pattern = r"^(one call|loop): (\d+) tokens/s(?:, MFU ([\d.]+)%)?"
    rows = re.findall(pattern, (folder / "output.log").read_text(), re.MULTILINE)
    if [name for name, *_ in rows] != ["one call", "loop"]:
        raise ValueError(f"expected the rates of one call and of the loop in output.log, got {len(rows)}")
    figures: dict[str, Figure] = {}
    for name, rate, share in rows:
        figures[name] = Figure(float(rate), "tokens/s")
        if share:
            figures[f"{name}, mfu"] = Figure(float(share) / 100, "share")
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
        models = {model for model, framework in self.catalog.trainings if framework == FRAMEWORK}
        return sorted(models, key=lambda model: (order.index(model) if model in order else len(order), model))

    @property
    def measurements(self) -> list[Suite]:
        """The suites that measure the machine, in the order of ``MACHINE_S``."""
        suites = {suite.model: suite for suite in self.catalog.suites.values() if suite.framework == FRAMEWORK}
        order = [*MACHINE_S, *suites]
        return sorted((s for s in suites.values() if s.kind == MEASUREMENT), key=lambda suite: order.index(suite.model))

    @property
    def name(self) -> str:
        """The name of the state's folder: another one for other code of the ranks, or another PyTorch."""
        trees = [REPO / name for name in ("flagperf_driver", "suites", "vendors")]
        configs = [folder for tree in trees for folder in sorted(tree.rglob("config"))]
        programs = [REPO / name for name in PROGRAMS]
        torch = f"torch{self.site.torch}" if self.site else "venv"
        return f"{self.chip}-{code_hash(*trees, *configs, *programs)}-{torch}"


def make_items(target: Target, folder: Path) -> list[Item]:
    """Return all items, the most valuable first."""
    vendor, models, all_devices = target.vendor, target.models, f"1x{target.devices}"
    synthetic = [f"--scale={vendor.toml.scale}", "--synthetic"]
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
        guess = GUESSES_S.get(model, OTHER_MODEL_S) / (1 if compiled else 2)
        devices = DEVICES.get(model, 1) if vendor.toml.scale == REFERENCE else 1
        settings = [
            "--set=precision=bf16",
            f"--set=compile={compiled}",
            *words,
        ]
        nodes = f"1x{devices}"
        item = run(f"{model}-bf16-{name}", guess, *synthetic, *settings, suite=model, devices=devices, nodes=nodes)
        goal = suite.goal and replace(suite.goal, rate=suite.goal.rate * devices, batch=suite.goal.batch * devices)
        return replace(item, goal=goal if vendor.toml.scale == REFERENCE else None)

    def machine(suite: Suite) -> Item:
        shapes = ["1x1"] * (suite.ranks.least == 1) + [all_devices] * (target.devices > 1 or suite.ranks.least > 1)
        guess = MACHINE_S.get(suite.model, OTHER_SUITE_S) * len(shapes)
        scale, nodes = f"--scale={vendor.toml.scale}", ",".join(shapes)
        return run(suite.model, guess, scale, suite=suite.model, nodes=nodes, devices=suite.ranks.least)

    rank_python = [sys.executable, "-m", "benchmarks.site_python", f"--vendor={vendor.name}", *target.words]
    small_step, few_pictures = ["--layers=1", "--width=64"], ["--pictures=64", "--batch=16"]
    on_cpu = vendor.name == "cpu"
    lamb = [*rank_python, "--model=bert", PROGRAMS[0], *(small_step if on_cpu else [])]
    pictures = [*rank_python, "--model=resnet50", PROGRAMS[1], *(few_pictures if on_cpu else [])]
    peak = vendor.chip(target.chip).peak_tflops.get("bf16")
    cut = ["--width=64", "--hidden=64", "--words=500", "--length=256", "--steps=3"]
    experts = [*rank_python, "--model=gpt_oss_20b", PROGRAMS[2], *(cut if on_cpu else [])]
    kernels = "" if vendor.name in ("nvidia", "cpu") else "compares NVIDIA's kernels"
    preflight = run("preflight", 10, small, "--preflight")
    return [
        replace(preflight, limit_s=300, read_figures=None),
        *(machine(suite) for suite in target.measurements),
        *(throughput(model, "compiled") for model in models),
        replace(
            run("converges", CONVERGENCE_S * len(models), small, "-m", "not measurement"),
            read_figures=convergence,
            parts=len(models),
        ),
        *(throughput(model, "eager", compiled=False) for model in models),
        *(
            throughput(model, setting.replace("=", "-"), f"--set={setting}")
            for model in models
            for setting in SWITCHES.get(model, ())
        ),
        run("resnet50-fp16-converges", 30, small, "--set=precision=fp16", suite="resnet50"),
        Item("lamb", lamb, 30, LIMIT_S, optimizers, skip=kernels),
        Item("readers", pictures, 60, LIMIT_S, readers),
        Item("mixture", [*experts, *([f"--peak={peak:g}"] if peak else [])], 120, LIMIT_S, mixture),
        run("resnet50-speedup", 90, *synthetic, suite="resnet50", nodes=f"1x1,{all_devices}", devices=2),
        run("glm-fsdp-converges", 60, small, "--set=parallel=fsdp", suite="glm", nodes=all_devices, devices=2),
    ]
