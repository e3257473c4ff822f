"""The plan of a case: all decisions, made from the catalog and its config before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import flagperf_driver
from flagperf_driver.driver import SCHEMA as CASE_SCHEMA
from flagperf_driver.driver import RunCase
from flagperf_driver.training.parallel import DDP, ParallelError

from ..case import Case, Shape
from ..catalog import REFERENCE, Catalog, Chip, DataItem, Suite, Vendor, framework_of
from ..config import DATA_KEYS, ConfigError, Resolved, TranslatedName, Value, parse_settings, resolve
from ..kind import kind_named, kind_of
from ..problems import Problems
from ..runtime import environment_file, runtimes
from ..settings import COMMAND_LINE
from ..stored import to_json_types
from ..stored.plan import PEAKS, SCHEMA, TRAINING, Addition, MeasuredFigure, PlanFacts, metric_json
from . import vendor_settings
from .additions import find_additions
from .fingerprint import code_hash, digest, digest_of, fingerprint, of_one_card, one_card_batch
from .memory import ONE_CARD, ShapeEstimates, estimates


@dataclass(frozen=True, kw_only=True)
class Plan(PlanFacts):
    """A case with its vendor, config and fingerprint."""

    backend: str
    modules: tuple[str, ...]  # imported by each rank, in this order, before the device exists
    device_module: str | None  # relative to the staged code
    visible_devices: str | None
    extern: str | None  # relative to the staged code
    manifest: tuple[DataItem, ...]
    min_efficiency: float
    translated: tuple[TranslatedName, ...] = ()
    """The outcome of each FlagPerf name in the vendor's config file."""
    estimates: tuple[ShapeEstimates, ...] = ()
    """The memory of each rank, first of the case's shape, then of others; empty if the suite estimates none."""
    memory_gib: float | None = None
    """The memory of a device, if the vendor declares it."""
    further_suite: str = ""
    """The suite whose code the ranks need beside the case's own."""

    def with_values(self, source: str, **values: object) -> Plan:
        """Return the plan with other values of the config, which ``source`` sets."""
        own = {key: Value(value, source, 0, "case") for key, value in values.items()}
        return replace(self, values={**self.values, **own})

    @property
    def data_dir(self) -> str | None:
        return self.config["data_dir"] or None

    @property
    def precision(self) -> str:
        """What the matrix products are computed in, as the chip's peaks name it."""
        return _precision(self.config)

    @property
    def scaling(self) -> str:
        """How the batch of several cards follows from that of one; a measurement has no batch."""
        return str(self.config.get("scaling", ""))

    @property
    def program(self) -> str:
        """The path of the ranks' program, relative to the staged code."""
        return f"suites/{self.case.model}/{self.case.framework_name}/{kind_of(self).program}"

    def seed(self, round_number: int) -> int:
        """The seed of a round: each round has its own."""
        return int(self.config["seed"]) + round_number - 1

    def case_json(self, round_number: int, code_root: str) -> dict[str, Any]:
        """Return the file that ranks read: the complete config, nothing left to merge."""
        facts, seed = self._json, self.seed(round_number)
        return {
            **{item.name: facts[item.name] for item in fields(RunCase) if item.name in facts},
            "schema": CASE_SCHEMA,
            "round": round_number,
            "seed": seed,
            "device_module": f"{code_root}/{self.device_module}" if self.device_module else None,
            "extern": f"{code_root}/{self.extern}" if self.extern else None,
            "config": {**self.config, "seed": seed},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the file that reports read, without the values of a round: its number, hosts, Python and code."""
        return dict(self._json)

    @cached_property
    def _json(self) -> Mapping[str, Any]:
        return {
            **to_json_types(self),
            "schema": SCHEMA,
            "metric": metric_json(self.metric),
            "case": str(self.case),
            "model": self.case.model,
            "framework": self.case.framework_name,
            "framework_version": self.case.framework_version,
            "hardware": self.case.hardware,
            "nnodes": self.shape.nnodes,
            "nproc": self.case.nproc,
            "data_dir": self.data_dir,
            "scaling": self.scaling,
        }


CASE_SETTINGS, CASE_CONFIG = "case_settings", "case_config"
"""Of a suite with a ``case_key``: settings of the training that it names, and the training's config, which follows."""
_DRIVER = Path(flagperf_driver.__file__).parent


class PlanError(Problems):
    """A case that cannot run with these options."""


@dataclass(frozen=True)
class PlanRequest:
    """A case and the options of its plan; without ``throughput_only`` the config decides, and then the shape."""

    case: Case
    vendor: str
    scale: str = ""  # empty: the vendor's
    runtime: str = ""  # empty: the vendor's
    settings: Sequence[str] = ()
    """Values of config keys, as in ``key=value``."""
    settings_source: str = COMMAND_LINE
    synthetic: bool = False
    """Generated data: the case is for throughput only, since it cannot converge."""
    throughput_only: bool | None = None
    data_dir: str | Path | Value | None = None
    check_data: bool = True


def make_plan(catalog: Catalog, asked: PlanRequest) -> Plan:
    """Return the plan of a case; raise one error with all problems."""
    case, vendor = asked.case, catalog.vendor(asked.vendor)
    suite = catalog.suite(case.model, case.framework)
    asked = replace(asked, scale=asked.scale or vendor.toml.scale, runtime=asked.runtime or vendor.toml.runtime)
    kind = kind_of(suite)
    if not kind.converges:  # it has no other throughput, and perhaps nothing to generate
        asked = replace(asked, synthetic=asked.synthetic and kind.generates, throughput_only=None)
    catalog.find(case, vendor.name, asked.scale)
    problems: list[str] = []
    additions: tuple[Addition, ...] = ()
    try:
        own = catalog.case_folder(suite, vendor)
        additions = find_additions(suite, vendor, own, case, runtimes()[asked.runtime])
    except Problems as error:
        problems += error.problems
    try:
        check = asked.check_data and not asked.synthetic
        resolved = resolve(suite, vendor, case, asked.scale, _given(asked), catalog=catalog, check_data=check)
    except ConfigError as error:
        raise PlanError([f"case {case}: {problem}" for problem in problems + error.problems]) from error
    further = None
    if suite.case_key:
        try:
            further, resolved = _with_training(catalog, asked, vendor, resolved, suite)
        except Problems as error:
            place = resolved.values[suite.case_key].where
            problems += [f"{place}: {suite.case_key}: {problem}" for problem in error.problems]
    resolved, found = kind.check(suite, asked.scale, case.shape, resolved, vendor.chip(case.hardware), further)
    if problems := problems + found:
        raise PlanError([f"case {case}: {problem}" for problem in problems])
    return _plan(catalog, asked, suite, vendor, resolved, additions, further)


def _with_training(
    catalog: Catalog, asked: PlanRequest, vendor: Vendor, resolved: Resolved, of: Suite
) -> tuple[Suite, Resolved]:
    """Return the suite of the training that a config key names, and the config with that of the training.

    Without a framework or a shape the training has that of the case. A vendor need not have a config for it.
    """
    name, case, framework = resolved.values[of.case_key], asked.case, framework_of(of)
    model, *rest = str(name.value).split(":")
    if len(rest) > 2 or rest[:1] not in ([], [framework]):
        raise PlanError([f"{name.value!r}: expected MODEL, MODEL:{framework} or MODEL:{framework}:NxP"])
    suite, shape = catalog.suite(model, framework), Shape.parse(rest[1]) if rest[1:] else case.shape
    if suite.kind != TRAINING or asked.scale not in suite.scales:
        got = f"a {suite.kind} with the scales {', '.join(suite.scales)}"
        raise PlanError([f"{suite.name} is {got}; expected a training with the scale {asked.scale}"])
    training = Case(suite.model, suite.framework, case.hardware, shape.nnodes, shape.nproc, 1)
    given = parse_settings(resolved.config[CASE_SETTINGS], resolved.values[CASE_SETTINGS].where)
    own = resolve(suite, vendor, training, asked.scale, given, catalog=catalog, check_data=False)
    own, problems = kind_of(suite).check(suite, asked.scale, shape, own, vendor.chip(training.hardware))
    if problems:
        raise PlanError(problems)
    whole = replace(name, value=f"{suite.name}:{shape}")
    config = Value(own.config, f"case {training}", 0, "case")
    return suite, replace(resolved, values={**resolved.values, of.case_key: whole, CASE_CONFIG: config})


def is_throughput_shape(shape: Shape, scale: str) -> bool:
    """Return True if the default is throughput only: one card needs days to reach the reference scale's target."""
    return scale == REFERENCE and shape.cards == 1


def short_plan(plan: Plan) -> Plan:
    """Return a plan with the same cards and the same work per card, for throughput only."""
    changed = plan.with_values(f"short round of {plan.case}", throughput_only=True)
    return replace(changed, case=replace(plan.case, repeat=1), throughput_only=True, replay={})


def one_card_plan(plan: Plan) -> Plan:
    """Return a plan for one card with the work of one of the plan's cards, to measure the speed-up."""
    batch = plan.config["train_batch_size"]
    alone = one_card_batch(batch, plan.data_ranks, plan.scaling)
    own: dict[str, object] = {"throughput_only": True}
    own |= {"parallel": DDP} if plan.config.get("parallel", DDP) != DDP else {}
    own |= {"train_batch_size": alone} if alone != batch else {}
    changed = plan.with_values(f"one card of {plan.case}", **own)
    estimate = tuple(row for row in plan.estimates if row.shape == ONE_CARD and alone == batch)
    return replace(
        changed,
        case=replace(plan.case, nnodes=1, nproc=1, repeat=1),
        throughput_only=True,
        replay={},
        memory=_estimated(estimate),
        estimates=estimate,
        fingerprint=of_one_card(plan.fingerprint, changed.config, plan.scaling),
    )


def clean_plan(plan: Plan, given: Mapping[str, Any]) -> Plan:
    """Return the plan of the process that repeats a segment of a training: without what the vendor adds.

    A device that PyTorch does not know needs the vendor's package and hooks.
    """
    vendors = any(addition.runs_code for addition in plan.additions)
    eager = {"compile": False} if vendors and plan.config.get("compile") else {}
    changed = plan.with_values(f"replay of {plan.case}", **eager)
    if not is_foreign(plan.device):
        changed = replace(changed, modules=(), device_module=None)
    return replace(changed, extern=None, additions=(), drill=(), min_goodput=None, replay=given)


def is_foreign(device: str) -> bool:
    """Return True for a device that only a package of its vendor adds to the framework."""
    return device.lower() not in ("cpu", "cuda", "gpu", "xpu", "mps")


def plan_on_fewer_hosts(plan: Plan, nnodes: int) -> Plan | None:
    """Return a plan for a later start of a training: fewer hosts, and as many samples in a step.

    A rank's batch grows no larger; it accumulates more batches instead. None if the ranks cannot share the samples.
    """
    smaller, batch = replace(plan, nnodes=nnodes), plan.config["train_batch_size"]
    try:
        ranks = smaller.data_ranks
    except ParallelError:
        return None
    samples, rest = divmod(batch * plan.config["gradient_accumulation_steps"] * plan.data_ranks, ranks)
    if rest:
        return None
    parts = next(parts for parts in range(-(-samples // batch), samples + 1) if samples % parts == 0)
    source = f"{nnodes} of {plan.case.nnodes} hosts"
    return smaller.with_values(source, train_batch_size=samples // parts, gradient_accumulation_steps=parts)


def _plan(
    catalog: Catalog,
    asked: PlanRequest,
    suite: Suite,
    vendor: Vendor,
    resolved: Resolved,
    additions: tuple[Addition, ...],
    further: Suite | None,
) -> Plan:
    """Return the plan: a table of its facts, each with its source."""
    case, scale, config = asked.case, suite.scales[asked.scale], resolved.config
    framework = framework_of(suite)
    chip, names = vendor.chip(case.hardware), vendor.toml.framework[framework]
    own, module = catalog.case_folder(suite, vendor), vendor.device_module(framework)
    replaced = {deviation.reference for deviation in resolved.deviations if deviation.key in DATA_KEYS}
    manifest = tuple(item for item in scale.data if item.path not in replaced)  # the config names others
    memory = estimates(suite, config, case.shape)
    facts = _facts(asked, suite, vendor, own, additions, manifest)
    facts |= {"further_code": code_hash(*further.code)} if further else {}
    return Plan(
        case=case,
        scale=scale.name,
        runtime=asked.runtime,
        synthetic=asked.synthetic,
        # the suite
        kind=suite.kind,
        figures=figures_of(suite, vendor, case),
        metric=scale.target,
        sample_unit=suite.sample_unit,
        reference=suite.reference(scale.name),
        left_out=scale.left_out,
        flops_per_sample=scale.flops_per_sample,
        manifest=manifest,
        # the vendor
        vendor=vendor.name,
        replaced_vendor=catalog.replaced.get(vendor.name, ""),
        visible_devices=vendor.toml.visible_devices,
        device=names.device,
        backend=names.backend,
        modules=names.modules,
        device_module=f"vendors/{vendor.name}/{module.name}" if module else None,
        extern=f"vendors/{vendor.name}/{suite.folder}/extern" if (own / "extern").is_dir() else None,
        additions=additions,
        chip_names=chip.names,
        chip_pci=chip.pci * chip.devices_per_pci,
        peak_source=chip.source,
        memory_gib=chip.memory_gib,
        further_suite=further.name if further else "",
        peak_tflops=chip.peak_tflops.get(_precision(config)),
        peaks=_peaks(chip, case),
        # the config
        values=resolved.values,
        deviations=resolved.deviations,
        translated=resolved.translated,
        throughput_only=bool(config.get("throughput_only")),
        min_efficiency=_min_efficiency(vendor, suite, resolved.values.get("min_efficiency")),
        memory=_estimated(memory),
        estimates=memory,
        fingerprint={
            **fingerprint(facts, config, cards=case.shape.cards, scaling=str(config.get("scaling", ""))),
            # Values that differ from the suite's, for readers; the key contains hashes of all of them.
            "deviations": {
                **{one.key: [one.value, one.reference] for one in resolved.deviations if one.key != "checkpoint_dir"},
                **{one.name: [one.value, one.reference] for one in additions},
            },
        },
    )


def _precision(config: Mapping[str, Any]) -> str:
    return PEAKS.get(config["precision"], str(config["precision"]))


def _estimated(shapes: Sequence[ShapeEstimates]) -> Mapping[str, float]:
    """Return the parts of the first shape's estimate."""
    return shapes[0].estimate.bytes if shapes and shapes[0].estimate else {}


def _peaks(chip: Chip, case: Case) -> Mapping[str, float]:
    """Return the declared peaks that bound a case; the links between devices of a host bound one host with several."""
    within_a_host = case.nproc > 1 and case.nnodes == 1
    return {key: peak for key, peak in chip.peaks.items() if within_a_host or key != "link_gb_s"}


def figures_of(suite: Suite, vendor: Vendor, case: Case) -> tuple[MeasuredFigure, ...]:
    """Return the figures that the suite declares, with the peaks and the promises of the vendor."""
    chip = vendor.chip(case.hardware)
    peaks = _peaks(chip, case)
    figures = []
    for name, figure in suite.figures.items():
        declared = {key: value for key, value in vars(figure).items() if key != "original"}
        declared["peak"] = peaks.get(figure.peak or "")
        promised = chip.promised.get(figure.peak or "") if declared["peak"] is not None else None
        figures.append(MeasuredFigure(name, **declared, promised=promised))
    return tuple(figures)


def _min_efficiency(vendor: Vendor, suite: Suite, given: Value | None) -> float:
    """Return the required speed-up per card: the user's, else the strictest of the suite and the vendor."""
    if given is None:
        return 0.0
    value = float(given.value) if isinstance(given.value, (int, float)) else None
    if value is not None and given.layer == "setting":
        return value
    return vendor.min_efficiency(framework_of(suite), value)


def _given(asked: PlanRequest) -> dict[str, Value]:
    given = parse_settings(asked.settings, "" if asked.settings_source == COMMAND_LINE else asked.settings_source)
    if (data_dir := asked.data_dir) is not None:
        given["data_dir"] = data_dir if isinstance(data_dir, Value) else Value(str(data_dir), "--data-dir", 0, "case")
    if asked.synthetic:
        given["throughput_only"] = Value(True, "--synthetic", 0, "case")
    elif asked.throughput_only is not None:
        option = "--throughput-only" if asked.throughput_only else "--no-throughput-only"
        given["throughput_only"] = Value(asked.throughput_only, option, 0, "case")
    return given


def _facts(
    asked: PlanRequest,
    suite: Suite,
    vendor: Vendor,
    own: Path,
    additions: Sequence[Addition],
    manifest: Sequence[DataItem],
) -> dict[str, object]:
    """Return what the fingerprint has of a case besides its config: a table."""
    case, module, variables = asked.case, vendor.device_module(framework_of(suite)), _variables(vendor, own)
    # The settings in vendor.toml that change the training, and the modules that ranks import.
    settings = [
        [one.name, one.value] for one in additions if one.name.startswith("module ") or vendor_settings.in_key(one.name)
    ]
    return {
        "vendor": vendor.name,
        "hardware": case.hardware,
        "nnodes": case.nnodes,
        "nproc": case.nproc,
        "model": case.model,
        "framework": case.framework_name,
        "framework_version": case.framework_version,
        "scale": asked.scale,
        "synthetic": asked.synthetic,
        **({"variant": case.variant_name} if case.variant else {}),
        "runtime": asked.runtime,
        "suite_code": code_hash(*suite.code),
        "vendor_code": code_hash(own, *([module] if module else [])),
        "driver_code": code_hash(*driver_code(framework_of(suite), suite.kind)),
        "requirements": code_hash(suite.path / "requirements.txt", own / "config" / "requirements.txt"),
        **({"environment": digest(variables)} if variables else {}),
        "vendor_settings": digest(json.dumps(settings).encode()),
        "data": digest_of(manifest),
    }


def driver_code(framework: str, kind: str = TRAINING) -> list[Path]:
    """Return what a rank runs: not the agent's code, nor that of other frameworks and kinds of suites."""
    folders = (*kind_named(kind).driver, framework)
    return [*sorted(_DRIVER.glob("*.py")), *(_DRIVER / name for name in folders)]


def _variables(vendor: Vendor, own: Path) -> bytes:
    """Return the vendor's environment variables, some of which select other kernels or collectives."""
    file = own / "config" / environment_file.NAME
    if not vendor.toml.environment and not file.is_file():
        return b""
    text = json.dumps(sorted(vendor.toml.environment.items())).encode()
    return text + (file.read_bytes() if file.is_file() else b"")
