"""The texts of the generated sections of READMEs, from the tree's files and the published results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from html import escape
from pathlib import Path

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import REFERENCE, Catalog, DataItem, Scale, Suite, Vendor
from pytest_flagperf.commands.source_tree import marked
from pytest_flagperf.config import Deviation
from pytest_flagperf.plan import Plan, make_plan
from pytest_flagperf.report.export.markdown import NONE, figure_names, figures, row
from pytest_flagperf.results import published
from pytest_flagperf.results.published import Published
from pytest_flagperf.results.units import count, plain, quantity
from pytest_flagperf.runtime import requirements

_NO_CONFIG = "–"
_NOT_MEASURED = "not measured"
_WORDS = {
    "en": {
        "model": "model",
        "framework": "framework",
        "planned": "planned",
        "measured": "measured: {number} of {all}",
        "synthetic": "{number} with synthetic data",
        "small": "small scale measured",
        "legend": "*planned*: configs exist, and no result is published.\n*measured*: so many of the configs have a"
        " published result.\n–: no config; the small scale needs none.",
    },
    "zh": {
        "model": "模型",
        "framework": "框架",
        "planned": "待测",
        "measured": "已测 {number}/{all}",
        "synthetic": "其中 {number} 项使用合成数据",
        "small": "已测小规模",
        "legend": "*待测*：已有配置，尚未发布结果。\n*已测*：已发布结果的配置数。\n–：没有配置；小规模不需要配置。",
    },
}


@dataclass(frozen=True)
class VendorCase:
    """One suite on one vendor's chips: the folder ``vendors/<vendor>/<model>-<framework>``."""

    suite: Suite
    vendor: Vendor
    folder: Path
    plans: Mapping[tuple[str, Shape], Plan]
    """The plan of each config by chip and shape, chips in the order of vendor.toml."""


@dataclass(frozen=True)
class Tree:
    """The suites, vendors and published results below one folder."""

    root: Path
    catalog: Catalog

    @cached_property
    def suites(self) -> list[Suite]:
        return sorted((one for one in self.catalog.suites.values() if one.root == self.root), key=lambda one: one.name)

    @cached_property
    def vendors(self) -> list[Vendor]:
        return sorted(self.catalog.vendors.values(), key=lambda vendor: vendor.name)

    @cached_property
    def results(self) -> tuple[Published, ...]:
        return published.load(self.root / "reports" / "published")

    def vendor_cases(self) -> Iterator[VendorCase]:
        """Every folder of configs below the root; raises Problems where a config is wrong."""
        for suite in sorted(self.catalog.suites.values(), key=lambda one: one.name):
            for vendor in self.vendors:
                folder = self.catalog.case_folder(suite, vendor)
                if folder.is_relative_to(self.root) and self.catalog.configs(suite, vendor):
                    yield VendorCase(suite, vendor, folder, self._plans(suite, vendor))

    def results_of(self, suite: Suite, vendor: Vendor) -> list[Published]:
        name = (suite.model, suite.framework, vendor.name)
        return [one for one in self.results if (one.first.model, _framework(one), one.first.vendor) == name]

    def _plans(self, suite: Suite, vendor: Vendor) -> dict[tuple[str, Shape], Plan]:
        keys = sorted(self.catalog.configs(suite, vendor), key=lambda key: (_place(vendor, key[0]), key[1]))
        return {key: self.plan(suite, vendor, *key) for key in keys}

    def plan(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape) -> Plan:
        case = Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc, 1)
        return make_plan(self.catalog, case, vendor=vendor.name, scale=REFERENCE, check_data=False)

    def link(self, document: Path, target: Path, text: str) -> str:
        """A link from a document to another file of the tree; the bare text for itself and for a file elsewhere."""
        if target == document or not target.is_relative_to(self.root) or not target.exists():
            return text
        path = Path(os.path.relpath(target, document.parent)).as_posix()
        return f"[{text}]({path})"


def _framework(result: Published) -> str:
    return result.first.framework.partition("_")[0]


def _place(vendor: Vendor, hardware: str) -> tuple[int, str]:
    chips = list(vendor.chips)
    return (chips.index(hardware) if hardware in chips else len(chips)), hardware


# -- the tree's README ---------------------------------------------------------------------------------------


def support(tree: Tree, document: Path, language: str) -> str:
    """Models by vendors."""
    words = _WORDS[language]
    vendors = [tree.link(document, vendor.path / "README.md", vendor.title) for vendor in tree.vendors]
    head = [words["model"], words["framework"], *vendors]
    rows = [head, ["---"] * len(head)]
    for suite in tree.suites:
        model = tree.link(document, suite.path.parent / "README.md", _title(suite))
        framework = tree.link(document, suite.path / "README.md", suite.framework)
        rows.append([model, framework, *(_status(tree, document, suite, vendor, language) for vendor in tree.vendors)])
    return "\n".join([*map(row, rows), "", words["legend"]])


def _title(suite: Suite) -> str:
    """The heading of the model's README."""
    file = suite.path.parent / "README.md"
    lines = marked.read(file).splitlines() if file.is_file() else []
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), suite.model)


def _status(tree: Tree, document: Path, suite: Suite, vendor: Vendor, language: str) -> str:
    words, configs = _WORDS[language], tree.catalog.configs(suite, vendor)
    results = [one for one in tree.results_of(suite, vendor) if one.measured]
    real = {_config(one) for one in results if one.first.scale == REFERENCE and not one.first.synthetic} & {*configs}
    synthetic = {_config(one) for one in results if one.first.scale == REFERENCE and one.first.synthetic} & {*configs}
    parts = []
    if real | synthetic:
        parts.append(words["measured"].format(number=len(real | synthetic), all=len(configs)))
        if synthetic - real:
            parts.append(words["synthetic"].format(number=len(synthetic - real)))
    elif configs:
        parts.append(words["planned"])
    if not real | synthetic and any(one.first.scale != REFERENCE for one in results):
        parts.append(words["small"])
    if not parts:
        return _NO_CONFIG
    target = tree.catalog.case_folder(suite, vendor) if configs else suite.path / "README.md"
    return tree.link(document, target, ", ".join(parts))


def _config(result: Published) -> tuple[str, Shape]:
    return result.first.hardware, Shape(*result.shape)


# -- a model's README ----------------------------------------------------------------------------------------


def chips(tree: Tree, document: Path, suites: Sequence[Suite]) -> str:
    """Frameworks and chips of a model."""
    rows = [["vendor", "framework", "configs", "published results"], ["---"] * 4]
    for suite in suites:
        framework = tree.link(document, suite.path / "README.md", suite.framework)
        for vendor in tree.vendors:
            configs = tree.catalog.configs(suite, vendor)
            results = [_config(one) for one in tree.results_of(suite, vendor) if one.measured]
            if configs or results:
                name = tree.link(document, tree.catalog.case_folder(suite, vendor) / "README.md", vendor.title)
                rows.append([name, framework, _by_chip(vendor, configs), _by_chip(vendor, results)])
    return "\n".join([*map(row, rows), "", "Every other vendor runs the small scale, which needs no config."])


def _by_chip(vendor: Vendor, keys: Iterable[tuple[str, Shape]]) -> str:
    shapes: dict[str, set[Shape]] = {}
    for hardware, shape in sorted(keys, key=lambda key: (_place(vendor, key[0]), key[1])):
        shapes.setdefault(hardware, set()).add(shape)
    return "; ".join(f"{hardware}: {', '.join(map(str, sorted(held)))}" for hardware, held in shapes.items()) or "none"


# -- a suite's README ----------------------------------------------------------------------------------------


def case(tree: Tree, document: Path, suite: Suite) -> str:
    """What suite.toml and requirements.txt declare."""
    scales = list(suite.scales.values())
    limit = "at most" if suite.metric.direction == "lower" else "at least"
    rows = [
        ["scale", *(scale.name for scale in scales)],
        ["---"] * (len(scales) + 1),
        [f"target: {suite.metric.name}", *(f"{limit} {quantity(one.target, suite.metric.unit)}" for one in scales)],
        ["samples", *([suite.sample_unit] * len(scales))],
        ["training FLOPs per sample", *(_flops(scale) for scale in scales)],
        ["data directory", *(_data(scale) for scale in scales)],
    ]
    software = _software(tree, document, suite.path / "requirements.txt")
    return "\n".join([*map(row, rows), "", f"Framework: {suite.framework}. Packages: {software}."])


def _flops(scale: Scale) -> str:
    return NONE if scale.flops_per_sample is None else f"{scale.flops_per_sample:.5g}"


def _data(scale: Scale) -> str:
    return ", ".join(map(_item, scale.data)) or "none: the data ship with the suite"


def _item(item: DataItem) -> str:
    held = [count(number, noun) for number, noun in ((item.files, "file"), (item.folders, "folder")) if number]
    return f"`{item.path}`" + (f" ({' in '.join(held)})" if held else "")


def _software(tree: Tree, document: Path, file: Path) -> str:
    if not file.is_file():
        return "none"
    named = ", ".join(f"`{line.shown}`" for line in requirements.union([file]))
    return f"{named} ({tree.link(document, file, file.name)})"


def suite_results(tree: Tree, document: Path, suite: Suite) -> str:
    """The published results of a suite on all chips."""
    return _results(tree, document, suite, tree.vendors)


# -- results -------------------------------------------------------------------------------------------------


def vendor_results(tree: Tree, document: Path, one: VendorCase) -> str:
    """The published results of a suite on a vendor's chips."""
    return _results(tree, document, one.suite, [one.vendor])


def _results(tree: Tree, document: Path, suite: Suite, vendors: Sequence[Vendor]) -> str:
    head = ["hardware", "shape", "result", *figure_names(suite.metric.name)]
    rows = [line for vendor in vendors for line in _rows(tree, document, suite, vendor, len(head))]
    notes = [note for vendor in vendors for note in _notes(tree, document, suite, vendor)]
    words = (
        f"Throughputs in {suite.sample_unit}/s over all cards, e2e_time in s, mem in GiB, `{NONE}`: not measured.\n"
        "Of several rounds the median counts."
    )
    return "\n".join([*map(row, [head, ["---"] * len(head), *rows]), "", words, *(["", *notes] if notes else [])])


def _rows(tree: Tree, document: Path, suite: Suite, vendor: Vendor, width: int) -> Iterator[list[str]]:
    """A row for each result, and one of each chip for the shapes that have a config and no result of it."""
    configs, results = tree.catalog.configs(suite, vendor), _in_order(tree, suite, vendor)
    of_config = {_config(one) for one in results if one.first.scale == REFERENCE}
    hardware = {*(name for name, _ in configs), *(one.first.hardware for one in results)}
    for name in sorted(hardware, key=lambda name: _place(vendor, name)):
        chip = tree.link(document, tree.catalog.case_folder(suite, vendor) / "README.md", f"{vendor.title} {name}")
        for one in results:
            if one.first.hardware == name:
                yield [chip, str(Shape(*one.shape)), _kind(one), *figures(one.case)]
        missing = sorted(key[1] for key in configs if key[0] == name and key not in of_config)
        if missing:
            yield [chip, ", ".join(map(str, missing)), _NOT_MEASURED, *[NONE] * (width - 3)]


def _in_order(tree: Tree, suite: Suite, vendor: Vendor) -> list[Published]:
    results = tree.results_of(suite, vendor)
    return sorted(results, key=lambda one: (_place(vendor, one.first.hardware), one.shape, _kind(one)))


def _kind(one: Published) -> str:
    """The scale and the data, and whether a round failed."""
    parts = [f"{one.first.scale} scale"]
    if one.first.synthetic:
        parts.append("synthetic data")
    if not one.measured:
        parts.append("no round ended well")
    elif one.failed:
        parts.append(f"failed: {' and '.join(one.failed)}")
    return ", ".join(parts)


def _notes(tree: Tree, document: Path, suite: Suite, vendor: Vendor) -> Iterator[str]:
    """Where each result is from, and what it ran on."""
    for one in _in_order(tree, suite, vendor):
        marks = (mark.sentence for outcome in one.case.outcomes for mark in outcome.marks)
        facts = escape("; ".join(dict.fromkeys([*_ran_on(one), *_other_values(tree, suite, vendor, one), *marks])))
        name = f"{one.first.hardware} {Shape(*one.shape)}, {one.first.scale} scale"
        yield f"- {name}: {facts}; {tree.link(document, one.file, published.FILE)}"


def _other_values(tree: Tree, suite: Suite, vendor: Vendor, one: Published) -> Iterator[str]:
    """A sentence where the config has other values now than the run had."""
    then = one.first.fingerprint.get("deviations")
    if one.first.scale != REFERENCE or _config(one) not in tree.catalog.configs(suite, vendor) or then is None:
        return
    had = {key: values[0] for key, values in then.items() if " " not in key}
    has = {each.key: each.value for each in tree.plan(suite, vendor, *_config(one)).deviations}
    changed = sorted(key for key in had.keys() | has.keys() if had.get(key) != has.get(key))
    if changed:
        yield f"the config has other values now: {', '.join(changed)}"


_MACHINE = ("chip", "driver", "cpu", "usable_cores", "memory", "interconnect", "network", "os", "kernel", "image")


def _ran_on(one: Published) -> Iterator[str]:
    first, rounds = one.first, count(len(one.case.outcomes), "round")
    ended = datetime.fromtimestamp((first.ended_ms or 0) / 1000, timezone.utc).date().isoformat()
    yield f"{rounds} on {ended}" if first.ended_ms else rounds
    yield from (f"{name} {first.machine[name]}" for name in _MACHINE if first.machine.get(name))
    yield from filter(None, [first.environment.get("framework")])
    if one.case.vendor_code:
        yield one.case.vendor_code


# -- a vendor's case -----------------------------------------------------------------------------------------


def environment(tree: Tree, document: Path, one: VendorCase) -> str:
    """Hardware and software that the case needs, as vendor.toml and the suite declare them."""
    plans, vendor = one.plans, one.vendor
    rows = [["chip", "devices per host", "memory", "dense peaks (TFLOPS)"], ["---"] * 4]
    for hardware in dict.fromkeys(hardware for hardware, _ in plans):
        chip = vendor.chips.get(hardware)
        peaks = ", ".join(f"{name} {plain(peak)}" for name, peak in chip.peak_tflops.items()) if chip else ""
        memory = f"{chip.memory_gib:g} GiB" if chip and chip.memory_gib else NONE
        most = str(chip.devices_per_host) if chip and chip.devices_per_host else NONE
        rows.append([hardware, most, memory, peaks or "none: no MFU"])
    return "\n".join([*map(row, rows), "", *_surroundings(tree, document, one, next(iter(plans.values())))])


def _surroundings(tree: Tree, document: Path, one: VendorCase, plan: Plan) -> Iterator[str]:
    vendor, config = one.vendor, one.folder / "config"
    toml = tree.link(document, vendor.path / "vendor.toml", "vendor.toml")
    yield f"- Device `{vendor.device}`, backend `{vendor.backend}` ({toml})."
    yield f"- Default runtime: `{vendor.runtime}`. Image for `--runtime=docker`: {_image(tree, document, one)}."
    yield f"- Packages of the suite: {_software(tree, document, one.suite.path / 'requirements.txt')}."
    if (own := config / "requirements.txt").is_file():
        yield f"- Packages of the vendor: {_software(tree, document, own)}."
    if vendor.environment:
        yield f"- Variables of every rank: {', '.join(f'`{name}`' for name in vendor.environment)} ({toml})."
    if (file := config / "environment_variables.sh").is_file():
        yield f"- Variables of this case: {tree.link(document, file, file.name)}."
    for brought in plan.brought:
        if brought.name.partition(" ")[0] in ("step", "hook", "module", "extension"):
            file = tree.root / brought.file
            yield f"- The vendor's own {brought.name}: {tree.link(document, file, file.name)}."
    yield "- Driver, kernel and host of each published result stand below the results."


def _image(tree: Tree, document: Path, one: VendorCase) -> str:
    image = one.vendor.image(one.suite.framework)
    if image is None:
        return "none, pass `--image=NAME`"
    if image.folder:
        return tree.link(document, image.folder / "Dockerfile", f"{image.folder.name}/Dockerfile")
    return f"`{image.name}`"


def run(tree: Tree, document: Path, one: VendorCase) -> str:
    """The command that runs the case."""
    plans = [*one.plans.values()]
    plan = next((plan for plan in plans if not plan.throughput_only), plans[0])
    model = tree.link(document, one.suite.path.parent / "README.md", "the model's README")
    cluster = tree.link(document, tree.root / "docs" / "cluster.md", "Several hosts")
    return "\n".join([
        "```sh",
        f"pytest suites --vendor={one.vendor.name} --case={plan.case}=DATA_DIR",
        "```",
        "",
        f"`DATA_DIR` holds the data that {model} describes.",
        "For throughput without data, leave out `=DATA_DIR` and add `--synthetic`.",
        f"{cluster} need their addresses.",
    ])  # fmt: skip


def config(tree: Tree, document: Path, one: VendorCase) -> str:
    """Every value that is not the suite's own, for each chip and shape."""
    chips = dict.fromkeys(hardware for hardware, _ in one.plans)
    return "\n\n".join(_deviations(tree, document, one, hardware) for hardware in chips)


def _deviations(tree: Tree, document: Path, one: VendorCase, hardware: str) -> str:
    files = tree.catalog.configs(one.suite, one.vendor)
    plans = {shape: plan for (chip, shape), plan in one.plans.items() if chip == hardware}
    values = {shape: _changed(plan) for shape, plan in plans.items()}
    changed = {key for found in values.values() for key in found}
    keys = [key for key in next(iter(plans.values())).values if key in changed]
    head = ["key", "suite", *(tree.link(document, files[hardware, shape], f"{hardware} {shape}") for shape in plans)]
    judged = ("throughput only" if plan.throughput_only else "convergence" for plan in plans.values())
    rows = [head, ["---"] * len(head), ["judged by", "", *judged]]
    for key in keys:
        reference = next(found[key].reference for found in values.values() if key in found)
        cells = (str(found[key].value) if key in found else "as the suite" for found in values.values())
        rows.append([f"`{key}`", str(reference), *cells])
    return "\n".join(map(row, rows))


def _changed(plan: Plan) -> dict[str, Deviation]:
    """The deviations by key, without the one that has a row of its own."""
    return {each.key: each for each in plan.deviations if each.key != "throughput_only"}


def changed_keys(one: VendorCase) -> list[str]:
    """The keys that a vendor's case sets to other values than the suite, and whose reasons its README must give."""
    return sorted({key for plan in one.plans.values() for key in _changed(plan)})


def unchanged_keys(one: VendorCase) -> list[str]:
    """The keys whose values are the suite's for every chip and shape."""
    return sorted({key for plan in one.plans.values() for key in plan.values} - {*changed_keys(one)})
