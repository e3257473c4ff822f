"""The texts of the generated sections of a vendor's case: its environment, its command and its config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_flagperf.config import Deviation
from pytest_flagperf.plan import Plan
from pytest_flagperf.report.export.markdown import NONE, row
from pytest_flagperf.results.figures.units import plain
from tools.documented_tree import Tree, VendorCase
from tools.sections import packages


def environment(tree: Tree, document: Path, vendor_case: VendorCase) -> str:
    """The hardware and software that the case needs, as vendor.toml and the suite declare them."""
    plans, vendor = vendor_case.plans, vendor_case.vendor
    rows = [["chip", "devices per host", "memory", "dense peaks (TFLOPS)"], ["---"] * 4]
    for hardware in dict.fromkeys(hardware for hardware, _ in plans):
        chip = vendor.chip(hardware)
        peaks = ", ".join(f"{name} {plain(peak)}" for name, peak in chip.peak_tflops.items())
        amounts = ((chip.memory_gib, "GiB"), (chip.memory_gb_s, "GB/s"))
        memory = ", ".join(f"{plain(amount)} {unit}" for amount, unit in amounts if amount) or NONE
        devices = str(chip.devices_per_host) if chip.devices_per_host else NONE
        rows.append([hardware, devices, memory, peaks or "none: no MFU"])
    return "\n".join([*map(row, rows), "", *_surroundings(tree, document, vendor_case, next(iter(plans.values())))])


def _surroundings(tree: Tree, document: Path, vendor_case: VendorCase, plan: Plan) -> Iterator[str]:
    vendor, config = vendor_case.vendor, vendor_case.folder / "config"
    toml = tree.link(document, vendor.path / "vendor.toml", "vendor.toml")
    yield f"- Device `{plan.device}`, backend `{plan.backend}` ({toml})."
    image = _image(tree, document, vendor_case)
    yield f"- Default runtime: `{vendor.toml.runtime}`. Image for `--runtime=docker`: {image}."
    yield f"- Packages of the suite: {packages(tree, document, vendor_case.suite.path / 'requirements.txt')}."
    if (own := config / "requirements.txt").is_file():
        yield f"- Packages of the vendor: {packages(tree, document, own)}."
    if vendor.toml.environment:
        yield f"- Variables of every rank: {', '.join(f'`{name}`' for name in vendor.toml.environment)} ({toml})."
    if (file := config / "environment_variables.sh").is_file():
        yield f"- Variables of this case: {tree.link(document, file, file.name)}."
    for addition in plan.additions:
        if addition.name.partition(" ")[0] in ("step", "hook", "module", "extension"):
            file = tree.root / addition.file
            yield f"- The vendor's own {addition.name}: {tree.link(document, file, file.name)}."
    yield "- The notes below the results name the driver, the kernel and the host of each published result."


def _image(tree: Tree, document: Path, vendor_case: VendorCase) -> str:
    image = vendor_case.vendor.image(vendor_case.suite.framework)
    if image is None:
        return "none; pass `--image=NAME`"
    if image.folder:
        return tree.link(document, image.folder / "Dockerfile", f"{image.folder.name}/Dockerfile")
    return f"`{image.name}`"


def run(tree: Tree, document: Path, vendor_case: VendorCase) -> str:
    """The command that runs the case."""
    plans = [*vendor_case.plans.values()]
    plan = next((plan for plan in plans if not plan.throughput_only), plans[0])
    model = tree.link(document, vendor_case.suite.path.parent / "README.md", "the model's README")
    cluster = tree.link(document, tree.root / "docs" / "cluster.md", "Several hosts")
    return "\n".join([
        "```sh",
        f"pytest suites --vendor={vendor_case.vendor.name} --case={plan.case}=DATA_DIR",
        "```",
        "",
        f"`DATA_DIR` is the folder with the data that {model} describes.",
        "For throughput without data, leave out `=DATA_DIR` and add `--synthetic`.",
        f"{cluster} need their addresses.",
    ])  # fmt: skip


def config(tree: Tree, document: Path, vendor_case: VendorCase) -> str:
    """The values that differ from the suite's, for each chip and shape."""
    chips = dict.fromkeys(hardware for hardware, _ in vendor_case.plans)
    return "\n\n".join(_deviations(tree, document, vendor_case, hardware) for hardware in chips)


def _deviations(tree: Tree, document: Path, vendor_case: VendorCase, hardware: str) -> str:
    files = tree.catalog.configs(vendor_case.suite, vendor_case.vendor)
    plans = {shape: plan for (chip, shape), plan in vendor_case.plans.items() if chip == hardware}
    values = {shape: _changed(plan) for shape, plan in plans.items()}
    changed = {key for deviations in values.values() for key in deviations}
    keys = [key for key in next(iter(plans.values())).values if key in changed]
    head = ["key", "suite", *(tree.link(document, files[hardware, shape], f"{hardware} {shape}") for shape in plans)]
    judged = ("throughput only" if plan.throughput_only else "convergence" for plan in plans.values())
    rows = [head, ["---"] * len(head), ["judged by", "", *judged]]
    for key in keys:
        deviations = [of_shape.get(key) for of_shape in values.values()]
        reference = next(deviation.reference for deviation in deviations if deviation)
        cells = (str(deviation.value) if deviation else "as the suite" for deviation in deviations)
        rows.append([f"`{key}`", str(reference), *cells])
    return "\n".join(map(row, rows))


def _changed(plan: Plan) -> dict[str, Deviation]:
    """Return the deviations by key, without throughput_only, which has its own row."""
    return {deviation.key: deviation for deviation in plan.deviations if deviation.key != "throughput_only"}


def changed_keys(vendor_case: VendorCase) -> list[str]:
    """Return the keys whose values differ from the suite's; the README must give a reason for each."""
    return sorted({key for plan in vendor_case.plans.values() for key in _changed(plan)})


def unchanged_keys(vendor_case: VendorCase) -> list[str]:
    """Return the keys that have the suite's values for every chip and shape."""
    return sorted({key for plan in vendor_case.plans.values() for key in plan.values} - {*changed_keys(vendor_case)})
