"""How a plan is made: a case, looked up in the catalog and given its config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import flagperf_driver
from flagperf_driver.launch import DEFAULT as DEFAULT_LAUNCHER
from flagperf_driver.launch import frameworks_of, launchers

from ..case import Case, Shape
from ..catalog import REFERENCE, RUNTIMES, Catalog, DataItem, Suite, Vendor
from ..config import DATA_KEYS, ConfigError, Resolved, Value, parse_settings, resolve
from ..problems import Problems, near
from ..runtime import runtimes
from ..settings import COMMAND_LINE
from .brought import Brought, brought
from .fingerprint import code_hash, digest_of, fingerprint, one_card_batch
from .model import Plan

_DRIVER = Path(flagperf_driver.__file__).parent
_PLACES = ("data_dir", "checkpoint_dir")


class PlanError(Problems):
    """A case that cannot be planned as asked."""


def make_plan(
    catalog: Catalog,
    case: Case,
    *,
    vendor: str,
    scale: str | None = None,
    settings: Sequence[str] = (),
    settings_source: str = COMMAND_LINE,
    runtime: str | None = None,
    launcher: str = DEFAULT_LAUNCHER,
    synthetic: bool = False,
    throughput_only: bool | None = None,
    data_dir: str | Path | Value | None = None,
    check_data: bool = True,
) -> Plan:
    """Everything that runs for a case, or an error with all that stands in the way.

    ``settings`` are ``key=value``. Synthetic data can show no convergence, so they are for throughput only.
    ``throughput_only`` None leaves it to the config, and to the shape where that sets nothing.
    """
    maker, suite = catalog.vendor(vendor), catalog.suite(case.model, case.framework)
    scale, runtime = scale or maker.scale, runtime or maker.runtime
    catalog.find(case, vendor, scale)
    problems = _unknown("runtime", runtime, RUNTIMES) + _check_launcher(launcher, case.framework_name)
    theirs: tuple[Brought, ...] = ()
    try:
        in_image = runtime in runtimes() and runtimes()[runtime].uses_images
        theirs = brought(suite, maker, catalog.case_folder(suite, maker), in_image=in_image)
    except Problems as error:
        problems += error.problems
    try:
        given = _given(settings, settings_source, data_dir, throughput_only, synthetic)
        check = check_data and not synthetic
        resolved = resolve(suite, maker, case, scale, given, catalog=catalog, check_data=check)
    except ConfigError as error:
        raise PlanError([f"case {case}: {problem}" for problem in problems + error.problems]) from error
    problems += _no_curve(suite, scale, resolved.values["parity_samples"])
    if problems:
        raise PlanError([f"case {case}: {problem}" for problem in problems])
    resolved = _with_shape(resolved, case.shape, scale)
    return _plan(catalog, suite, maker, case, scale, runtime, launcher, synthetic, resolved, theirs)


def is_throughput_shape(shape: Shape, scale: str) -> bool:
    """Whether a shape measures throughput alone by default: one card takes days to the reference scale's target."""
    return scale == REFERENCE and shape.cards == 1


def _with_shape(resolved: Resolved, shape: Shape, scale: str) -> Resolved:
    """The config with the shape's default of ``throughput_only``, where no file and no option sets it."""
    if resolved.values["throughput_only"].layer != "defaults" or not is_throughput_shape(shape, scale):
        return resolved
    value = Value(True, f"default of {shape} at the {scale} scale", 0, "defaults")
    return replace(resolved, values={**resolved.values, "throughput_only": value})


def _check_launcher(launcher: str, framework: str) -> list[str]:
    unknown = _unknown("launcher", launcher, tuple(launchers()))
    frameworks = None if unknown else frameworks_of(launcher)
    if frameworks is None or framework in frameworks:
        return unknown
    names = ", ".join(sorted(frameworks))
    only = f"launcher = {launcher!r} starts ranks of {names} only"
    return [f"{only}; got framework {framework}; set launcher = {DEFAULT_LAUNCHER!r} in flagperf.toml"]


def _no_curve(suite: Suite, scale: str, parity: Value) -> list[str]:
    """Better told before a training than after it."""
    file = suite.reference_file(scale)
    if parity.value is None or file.is_file():
        return []
    there = file.relative_to(suite.root)
    return [f"{parity.where}: parity_samples wants the suite's reference, {there}: flagperf reference makes it"]


def short_plan(plan: Plan) -> Plan:
    """The same cards and the same work of each, for throughput only."""
    values = {**plan.values, "throughput_only": Value(True, f"short round of {plan.case}", 0, "case")}
    return replace(plan, case=replace(plan.case, repeat=1), throughput_only=True, values=values)


def one_card_plan(plan: Plan) -> Plan:
    """One card with the work of one of the plan's: what the speed-up is measured against."""
    alone = replace(plan.case, nnodes=1, nproc=1, repeat=1)
    source = f"one card of {plan.case}"
    batch = one_card_batch(plan.config["train_batch_size"], plan.case.shape.cards, plan.scaling)
    values = dict(plan.values)
    values["throughput_only"] = Value(True, source, 0, "case")
    if batch != plan.config["train_batch_size"]:
        values["train_batch_size"] = Value(batch, source, 0, "case")
    config = {key: value.value for key, value in values.items()}
    told = _told_facts(plan.fingerprint) | {"nnodes": 1, "nproc": 1}
    return replace(
        plan,
        case=alone,
        throughput_only=True,
        values=values,
        fingerprint=fingerprint(told, config, cards=1, scaling=plan.scaling),
    )


def _plan(
    catalog: Catalog,
    suite: Suite,
    vendor: Vendor,
    case: Case,
    scale: str,
    runtime: str,
    launcher: str,
    synthetic: bool,
    resolved: Resolved,
    theirs: tuple[Brought, ...],
) -> Plan:
    config = resolved.config
    declared, own = suite.scales[scale], catalog.case_folder(suite, vendor)
    manifest = _manifest(declared.data, resolved)
    facts = (
        _facts(case, vendor, scale, synthetic, runtime)
        | _code(suite, vendor, own)
        | _surroundings(vendor, own)
        | {"data": digest_of(manifest)}
    )
    least = config["min_efficiency"]
    return Plan(
        case=case,
        vendor=vendor.name,
        scale=scale,
        synthetic=synthetic,
        throughput_only=bool(config["throughput_only"]),
        metric=suite.metric,
        target=declared.target,
        sample_unit=suite.sample_unit,
        device=vendor.toml.device,
        backend=vendor.toml.backend,
        modules=vendor.toml.modules,
        device_module=f"vendors/{vendor.name}/{module.name}" if (module := vendor.device_module) else None,
        visible_devices=vendor.toml.visible_devices,
        runtime=runtime,
        launcher=launcher,
        extern=f"vendors/{vendor.name}/{suite.folder}/extern" if (own / "extern").is_dir() else None,
        values=resolved.values,
        deviations=resolved.deviations,
        brought=theirs,
        manifest=manifest,
        flops_per_sample=declared.flops_per_sample,
        peak_tflops=vendor.peak_tflops(case.hardware, str(config["precision"])),
        min_efficiency=float(least) if isinstance(least, (int, float)) else vendor.toml.min_efficiency,
        fingerprint={
            **fingerprint(facts, config, cards=case.shape.cards, scaling=str(config["scaling"])),
            # What is not the suite's own; in the key are hashes of it all.
            "deviations": {
                **{one.key: [one.value, one.reference] for one in resolved.deviations if one.key not in _PLACES},
                **{one.name: [one.value, one.reference] for one in theirs},
            },
        },
        reference=suite.reference(scale),
        translated=resolved.translated,
    )


def _manifest(declared: Sequence[DataItem], resolved: Resolved) -> tuple[DataItem, ...]:
    """What the data directory must hold, without what the config replaced by data of another name."""
    replaced = {deviation.reference for deviation in resolved.deviations if deviation.key in DATA_KEYS}
    return tuple(item for item in declared if item.path not in replaced)


def _given(
    settings: Sequence[str],
    source: str,
    data_dir: str | Path | Value | None,
    throughput_only: bool | None,
    synthetic: bool,
) -> dict[str, Value]:
    given = parse_settings(settings, "" if source == COMMAND_LINE else source)
    if data_dir is not None:
        given["data_dir"] = data_dir if isinstance(data_dir, Value) else Value(str(data_dir), "--data-dir", 0, "case")
    if synthetic:
        given["throughput_only"] = Value(True, "--synthetic", 0, "case")
    elif throughput_only is not None:
        option = "--throughput-only" if throughput_only else "--no-throughput-only"
        given["throughput_only"] = Value(throughput_only, option, 0, "case")
    return given


def _facts(case: Case, vendor: Vendor, scale: str, synthetic: bool, runtime: str) -> dict[str, object]:
    return {
        "vendor": vendor.name,
        "hardware": case.hardware,
        "nnodes": case.nnodes,
        "nproc": case.nproc,
        "model": case.model,
        "framework": case.framework_name,
        "framework_version": case.framework_version,
        "scale": scale,
        "synthetic": synthetic,
        "runtime": runtime,
    }


def _code(suite: Suite, vendor: Vendor, own: Path) -> dict[str, object]:
    return {
        "suite_code": code_hash(suite.path, suite.root / "suites" / "common"),
        "vendor_code": code_hash(own, vendor.path / "device.py"),
        "driver_code": code_hash(_DRIVER),
        "requirements": code_hash(suite.path / "requirements.txt", own / "config" / "requirements.txt"),
    }


def _surroundings(vendor: Vendor, own: Path) -> dict[str, object]:
    """Where a vendor sets environment variables: some make other kernels and other collectives."""
    file = own / "config" / "environment_variables.sh"
    if not vendor.environment and not file.is_file():
        return {}
    told = json.dumps(sorted(vendor.environment.items())).encode() + (file.read_bytes() if file.is_file() else b"")
    return {"environment": hashlib.sha256(told).hexdigest()[:16]}


def _told_facts(told: Mapping[str, object]) -> dict[str, object]:
    made = ("schema", "precision", "batch_per_card", "config", "key", "one_card_key", "deviations")
    return {name: value for name, value in told.items() if name not in made}


def _unknown(what: str, name: str, allowed: Sequence[str]) -> list[str]:
    if name in allowed:
        return []
    return [f"{what} {name!r} is unknown{near(name, list(allowed))} (there are: {', '.join(allowed)})"]
