"""The texts of the generated sections of READMEs, from the tree's files and the published results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import publish
from flagperf_driver.target import Target
from pytest_flagperf.case import Shape
from pytest_flagperf.catalog import REFERENCE, DataItem, Scale, Suite, Vendor
from pytest_flagperf.kinds.training.tables import figure_names, figures
from pytest_flagperf.report.export.markdown import NONE, row
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.tables.published import Published
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.runtime import requirements
from pytest_flagperf.stored.layout import RESULTS
from tools import markers
from tools.documented_tree import Tree, VendorCase, chip_order

_NO_CONFIG = "–"
_NOT_MEASURED = "not measured"
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "en": {
        "models": ("model", "framework", "target at the reference scale", "target at the small scale", "configs"),
        "facts": " ({})",
        "measured": "{number} of {all} measured",
        "synthetic": "{number} with synthetic data",
        "small": "small scale measured",
        "vendors": ("vendor", "chips", "framework: device, backend", "devices are read with", "container images"),
        "own_image": "your own",
    },
    "zh": {
        "models": ("模型", "框架", "参考规模的目标", "小规模的目标", "配置"),
        "facts": "（{}）",
        "measured": "已测 {number}/{all}",
        "synthetic": "其中 {number} 项使用合成数据",
        "small": "已测小规模",
        "vendors": ("厂商", "芯片", "框架：设备、通信后端", "读取设备的方式", "容器镜像"),
        "own_image": "自备",
    },
}


# -- the tree's README ---------------------------------------------------------------------------------------


def models(tree: Tree, document: Path, language: str) -> str:
    """The table of suites in docs/support.md: their targets, and the vendors that have configs or results."""
    words = _WORDS[language]
    rows = [words["models"], ["---"] * len(words["models"])]
    for suite in tree.suites:
        scales = [suite.scales.get(name) for name in (REFERENCE, "small")]
        configs = [status for vendor in tree.vendors if (status := _status(tree, document, suite, vendor, language))]
        rows.append([
            tree.link(document, suite.path.parent / "README.md", _title(suite)),
            tree.link(document, suite.path / "README.md", suite.framework),
            *(_targets(scale.target) if scale else NONE for scale in scales),
            ", ".join(configs) or _NO_CONFIG,
        ])  # fmt: skip
    return "\n".join(map(row, rows))


def _targets(target: Target) -> str:
    """The metrics of a scale with their targets."""
    return ", ".join(targets.texts(target)).replace("<=", "≤").replace(">=", "≥")


def vendors(tree: Tree, document: Path, language: str) -> str:
    """The table of vendors in docs/support.md: their chips, devices and images, as vendor.toml declares them."""
    words = _WORDS[language]
    rows = [words["vendors"], ["---"] * len(words["vendors"])]
    for vendor in tree.vendors:
        frameworks = (
            f"{name}: {of.device}, {of.backend}" + "".join(f" (`{module}`)" for module in of.modules)
            for name, of in vendor.toml.framework.items()
        )
        reader = (
            "NVML"
            if vendor.toml.nvml
            else tree.link(document, vendor.probe, "probe.py")
            if vendor.probe
            else _NO_CONFIG
        )
        dockerfiles = (file.parent.name for file in sorted(vendor.path.glob("images/*/Dockerfile")))
        images = ", ".join([*vendor.toml.images, *dockerfiles]) or words["own_image"]
        name = tree.link(document, vendor.path / "README.md", vendor.toml.name)
        rows.append([f"{name} `{vendor.name}`", ", ".join(vendor.chips), "; ".join(frameworks), reader, images])
    return "\n".join(map(row, rows))


def measurements(tree: Tree, document: Path, _: str) -> str:
    """The suites that measure a machine with their figures, in docs/machine.md; each README describes its figures."""
    rows = [["suite", "figures"], ["---"] * 2]
    for suite in tree.measurements:
        link = tree.link(document, suite.path / "README.md", suite.model)
        rows.append([link, ", ".join(f"`{name}`" for name in suite.figures)])
    return "\n".join(map(row, rows))


def served(tree: Tree, document: Path, _: str) -> str:
    """The suites that serve a model, in packages/serving/README.md."""
    rows = [["model", "engine", "scales"], ["---"] * 3]
    for suite in tree.served:
        model = tree.link(document, suite.path.parent / "README.md", _title(suite))
        engine = tree.link(document, suite.path / "README.md", suite.framework)
        rows.append([model, engine, ", ".join(suite.scales)])
    return "\n".join(map(row, rows))


def items(tree: Tree, document: Path, _: str) -> str:
    """The published items of ``make gpu``, and those that are owed."""
    return publish.published_items(document.parent, tree.catalog)


def _title(suite: Suite) -> str:
    """The heading of the model's README."""
    file = suite.path.parent / "README.md"
    lines = markers.read_document(file).splitlines() if file.is_file() else []
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), suite.model)


def _status(tree: Tree, document: Path, suite: Suite, vendor: Vendor, language: str) -> str:
    """The vendor with the number of measured configs; empty without a config or a result."""
    words, configs = _WORDS[language], tree.catalog.configs(suite, vendor)
    results = [result for result in tree.results_of(suite, vendor) if result.case.finished]
    reference = [result for result in results if result.first.scale == REFERENCE and _config(result) in configs]
    real = {_config(result) for result in reference if not result.first.synthetic}
    synthetic = {_config(result) for result in reference if result.first.synthetic}
    measured = real | synthetic
    small = not measured and any(result.first.scale != REFERENCE for result in results)
    if not configs and not small:
        return ""
    facts = [
        words["measured"].format(number=len(measured), all=len(configs)) if measured else "",
        words["synthetic"].format(number=len(synthetic - real)) if synthetic - real else "",
        words["small"] if small else "",
    ]
    shown = words["facts"].format(", ".join(filter(None, facts))) if any(facts) else ""
    target = tree.catalog.case_folder(suite, vendor) if configs else suite.path / "README.md"
    return tree.link(document, target, vendor.toml.name + shown)


def _config(result: Published) -> tuple[str, Shape]:
    return result.first.hardware, result.first.shape


# -- a model's README ----------------------------------------------------------------------------------------


def chips(tree: Tree, document: Path, suites: Sequence[Suite]) -> str:
    """Frameworks and chips of a model."""
    rows = [["vendor", "framework", "configs", "published results"], ["---"] * 4]
    for suite in suites:
        framework = tree.link(document, suite.path / "README.md", suite.framework)
        for vendor in tree.vendors:
            configs = tree.catalog.configs(suite, vendor)
            results = [_config(result) for result in tree.results_of(suite, vendor) if result.case.finished]
            if configs or results:
                name = tree.link(document, tree.catalog.case_folder(suite, vendor) / "README.md", vendor.toml.name)
                rows.append([name, framework, _by_chip(vendor, configs), _by_chip(vendor, results)])
    if len(rows) == 2:
        return "No vendor has a config or a result yet. Every vendor runs the small scale, which needs no config."
    return "\n".join([*map(row, rows), "", "Every other vendor runs the small scale, which needs no config."])


def _by_chip(vendor: Vendor, keys: Iterable[tuple[str, Shape]]) -> str:
    shapes: dict[str, set[Shape]] = {}
    for hardware, shape in sorted(keys, key=lambda key: (chip_order(vendor, key[0]), key[1])):
        shapes.setdefault(hardware, set()).add(shape)
    return (
        "; ".join(f"{hardware}: {', '.join(map(str, sorted(of_chip)))}" for hardware, of_chip in shapes.items())
        or "none"
    )


# -- a suite's README ----------------------------------------------------------------------------------------


_FIGURE_HEAD = ("figure", "unit", "peak in vendor.toml", "meaning")


def _figures(suite: Suite) -> Iterator[list[str]]:
    for name, figure in suite.figures.items():
        yield [f"`{name}`", figure.unit, f"`{figure.peak}`" if figure.peak else NONE, figure.about]


def measurement(tree: Tree, document: Path, suite: Suite) -> str:
    """The figures of a suite that measures a machine, as suite.toml declares them."""
    rows = [list(_FIGURE_HEAD), ["---"] * len(_FIGURE_HEAD), *_figures(suite)]
    software = packages(tree, document, suite.path / "requirements.txt")
    return "\n".join([*map(row, rows), "", f"Framework: {suite.framework}. Packages: {software}."])


def case(tree: Tree, document: Path, suite: Suite) -> str:
    """The case as suite.toml and requirements.txt declare it."""
    if suite.figures:
        return measurement(tree, document, suite)
    scales = list(suite.scales.values())
    cells_of: dict[str, list[str]] = {}
    for number, scale in enumerate(scales):
        for name, value in scale.target.values.items():
            limit = "at most" if suite.metric.direction == "lower" else "at least"
            cells_of.setdefault(name, [NONE] * len(scales))[number] = f"{limit} {quantity(value, suite.metric.unit)}"
    rows = [
        ["scale", *(scale.name for scale in scales)],
        ["---"] * (len(scales) + 1),
        *([f"target: {name}", *cells] for name, cells in cells_of.items()),
        ["samples", *([suite.sample_unit] * len(scales))],
        ["training FLOPs per sample", *(_flops(scale) for scale in scales)],
        ["data directory", *(_data(scale) for scale in scales)],
    ]
    software = packages(tree, document, suite.path / "requirements.txt")
    return "\n".join([*map(row, rows), "", f"Framework: {suite.framework}. Packages: {software}."])


def _flops(scale: Scale) -> str:
    return NONE if scale.flops_per_sample is None else f"{scale.flops_per_sample:.5g}"


def _data(scale: Scale) -> str:
    return ", ".join(map(_item, scale.data)) or "none: the suite contains its data"


def _item(item: DataItem) -> str:
    counts = [count(number, noun) for number, noun in ((item.files, "file"), (item.folders, "folder")) if number]
    return f"`{item.path}`" + (f" ({' in '.join(counts)})" if counts else "")


def packages(tree: Tree, document: Path, file: Path) -> str:
    if not file.is_file():
        return "none"
    named = ", ".join(f"`{line.shown}`" for line in requirements.union([file]))
    return f"{named} ({tree.link(document, file, file.name)})"


def suite_results(tree: Tree, document: Path, suite: Suite) -> str:
    """The published results of a suite on all chips."""
    return _results(tree, document, suite, tree.vendors)


# -- results -------------------------------------------------------------------------------------------------


def vendor_results(tree: Tree, document: Path, vendor_case: VendorCase) -> str:
    """The published results of a suite on a vendor's chips."""
    return _results(tree, document, vendor_case.suite, [vendor_case.vendor])


def _results(tree: Tree, document: Path, suite: Suite, vendors: Sequence[Vendor]) -> str:
    names = ["e2e_time", *suite.figures] if suite.figures else figure_names(suite.metric.name)
    head = ["hardware", "shape", "result", *names]
    rows = [line for vendor in vendors for line in _rows(tree, document, suite, vendor, len(head))]
    notes = [note for vendor in vendors for note in _notes(tree, document, suite, vendor)]
    throughputs = f"Throughputs in {suite.sample_unit}/s over all cards, e2e_time in s, mem in GiB, "
    words = (
        f"{'Figures of the slowest rank, ' if suite.figures else throughputs}`{NONE}`: not measured.\n"
        "Results of several rounds are medians."
    )
    return "\n".join([*map(row, [head, ["---"] * len(head), *rows]), "", words, *(["", *notes] if notes else [])])


def _rows(tree: Tree, document: Path, suite: Suite, vendor: Vendor, width: int) -> Iterator[list[str]]:
    """Yield a row for each result, and a row for each chip with its shapes that have a config but no result."""
    configs, results = tree.catalog.configs(suite, vendor), _in_order(tree, suite, vendor)
    of_config = {_config(result) for result in results if result.first.scale == REFERENCE}
    hardware = {*(name for name, _ in configs), *(result.first.hardware for result in results)}
    for name in sorted(hardware, key=lambda name: chip_order(vendor, name)):
        chip = tree.link(document, tree.catalog.case_folder(suite, vendor) / "README.md", f"{vendor.toml.name} {name}")
        for result in results:
            if result.first.hardware == name:
                cells = _values(suite, result.case) if suite.figures else figures(result.case)
                yield [chip, str(result.first.shape), _kind(result), *cells]
        missing = sorted(key[1] for key in configs if key[0] == name and key not in of_config)
        if missing:
            yield [chip, ", ".join(map(str, missing)), _NOT_MEASURED, *[NONE] * (width - 3)]


def _values(suite: Suite, case: CaseResult) -> Iterator[str]:
    """Yield the cells of a measurement: the medians over the finished rounds."""
    units = {"e2e_time": "s", **{name: figure.unit for name, figure in suite.figures.items()}}
    for name, unit in units.items():
        value = case.median(name)
        yield NONE if value is None else quantity(value, unit)


def _in_order(tree: Tree, suite: Suite, vendor: Vendor) -> list[Published]:
    results = tree.results_of(suite, vendor)
    return sorted(
        results, key=lambda result: (chip_order(vendor, result.first.hardware), result.first.shape, _kind(result))
    )


def _kind(result: Published) -> str:
    """The scale, the kind of data, and failed rounds."""
    parts = [f"{result.first.scale} scale"]
    if result.first.synthetic:
        parts.append("synthetic data")
    if not result.case.finished:
        parts.append("no successful round")
    elif result.failed:
        parts.append(f"failed: {' and '.join(result.failed)}")
    return ", ".join(parts)


def _notes(tree: Tree, document: Path, suite: Suite, vendor: Vendor) -> Iterator[str]:
    """Yield a note on each result: its date, machine and file."""
    for result in _in_order(tree, suite, vendor):
        distorted = (warning.sentence for outcome in result.case.outcomes for warning in outcome.validity_warnings)
        facts = escape(
            "; ".join(dict.fromkeys([*_ran_on(result), *_other_values(tree, suite, vendor, result), *distorted]))
        )
        name = f"{result.first.hardware} {result.first.shape}, {result.first.scale} scale"
        yield f"- {name}: {facts}; {tree.link(document, result.file, RESULTS)}"


def _other_values(tree: Tree, suite: Suite, vendor: Vendor, result: Published) -> Iterator[str]:
    """Yield a sentence if the config has changed since the run."""
    then = result.first.fingerprint.get("deviations")
    if result.first.scale != REFERENCE or _config(result) not in tree.catalog.configs(suite, vendor) or then is None:
        return
    had = {key: values[0] for key, values in then.items() if " " not in key}
    has = {deviation.key: deviation.value for deviation in tree.plan(suite, vendor, *_config(result)).deviations}
    changed = sorted(key for key in had.keys() | has.keys() if had.get(key) != has.get(key))
    if changed:
        yield f"the config has changed since: {', '.join(changed)}"


_MACHINE = ("chip", "driver", "cpu", "usable_cores", "memory", "interconnect", "network", "os", "kernel", "image")


def _ran_on(result: Published) -> Iterator[str]:
    first, rounds = result.first, count(len(result.case.outcomes), "round")
    ended = datetime.fromtimestamp((first.ended_ms or 0) / 1000, UTC).date().isoformat()
    yield f"{rounds} on {ended}" if first.ended_ms else rounds
    yield from (f"{name} {first.machine[name]}" for name in _MACHINE if first.machine.get(name))
    yield from filter(None, [first.environment.get("framework")])
    if result.case.vendor_code:
        yield result.case.vendor_code
