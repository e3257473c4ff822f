"""The plan of a case: all decisions, made before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pytest_flagperf.stored.plan import SCHEMA as PLAN_SCHEMA
from pytest_flagperf.stored.plan import is_cpu

from ..case import Case
from ..catalog import DataItem, LeftOut, SuiteMetric
from ..config import Deviation, Translated, Value
from .additions import Addition

SCHEMA = 1


@dataclass(frozen=True)
class Plan:
    """A case with its vendor, config and fingerprint."""

    case: Case
    vendor: str
    scale: str
    synthetic: bool
    throughput_only: bool
    metric: SuiteMetric
    target: float
    also: Mapping[str, float]
    """Further metrics with their targets."""
    sample_unit: str
    left_out: LeftOut
    """The most that p_core may leave out."""
    device: str
    backend: str
    modules: tuple[str, ...]  # imported by each rank, in this order, before the device exists
    device_module: str | None  # relative to the staged code
    chip_names: tuple[str, ...]
    """Regular expressions for the name that the chip's devices report."""
    replaced_vendor: str
    """What has a vendor of this name, which the vendor's folder replaces; empty if it replaces none."""
    visible_devices: str | None
    runtime: str
    extern: str | None  # relative to the staged code
    values: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    additions: tuple[Addition, ...]
    """The vendor's steps, hooks, variables, packages and extensions."""
    manifest: tuple[DataItem, ...]
    flops_per_sample: float | None
    peak_tflops: float | None  # dense, of one card at the config's precision
    min_efficiency: float
    fingerprint: Mapping[str, object]
    reference: Mapping[str, object] | None = None
    """The suite's reference curves at this scale, to judge the round by."""
    translated: tuple[Translated, ...] = ()
    """The outcome of each FlagPerf name in the vendor's config file."""

    @cached_property
    def config(self) -> dict[str, Any]:
        return {key: value.value for key, value in self.values.items()}

    @property
    def devices_are_cores(self) -> bool:
        return is_cpu(self.device)

    @property
    def data_dir(self) -> str | None:
        return self.config["data_dir"] or None

    @property
    def precision(self) -> str:
        return str(self.config["precision"])

    @property
    def scaling(self) -> str:
        return str(self.config["scaling"])

    @property
    def program(self) -> str:
        """The path of the training program, relative to the staged code."""
        return f"suites/{self.case.model}/{self.case.framework_name}/run_pretraining.py"

    def seed(self, round_number: int) -> int:
        """The seed of a round: each round has its own."""
        return int(self.config["seed"]) + round_number - 1

    def case_json(self, round_number: int, code_root: str) -> dict[str, Any]:
        """Return the file that ranks read: the complete config, nothing left to merge."""
        seed = self.seed(round_number)
        return {
            "schema": SCHEMA,
            **self._facts(),
            "round": round_number,
            "seed": seed,
            "device_module": f"{code_root}/{self.device_module}" if self.device_module else None,
            "extern": f"{code_root}/{self.extern}" if self.extern else None,
            "config": {**self.config, "seed": seed},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the file that reports read, without the values of a round: its number, hosts, Python and code."""
        return {
            "schema": PLAN_SCHEMA,
            **self._facts(),
            "device_module": self.device_module,
            "extern": self.extern,
            "config": self.config,
            "values": {key: asdict(value) for key, value in self.values.items()},
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "additions": [asdict(addition) for addition in self.additions],
            "manifest": [_without_none(asdict(item)) for item in self.manifest],
            "left_out": asdict(self.left_out),
            "flops_per_sample": self.flops_per_sample,
            "peak_tflops": self.peak_tflops,
            "chip_names": list(self.chip_names),
            "replaced_vendor": self.replaced_vendor,
            "min_efficiency": self.min_efficiency,
            "scaling": self.scaling,
            "runtime": self.runtime,
            "fingerprint": dict(self.fingerprint),
            "reference": self.reference,
        }

    def _facts(self) -> dict[str, Any]:
        return {
            "case": str(self.case),
            "model": self.case.model,
            "framework": self.case.framework_name,
            "framework_version": self.case.framework_version,
            "vendor": self.vendor,
            "hardware": self.case.hardware,
            "nnodes": self.case.nnodes,
            "nproc": self.case.nproc,
            "scale": self.scale,
            "synthetic": self.synthetic,
            "throughput_only": self.throughput_only,
            "metric": {**self.metric.to_json(), "target": self.target, "also": dict(self.also)},
            "sample_unit": self.sample_unit,
            "device": self.device,
            "backend": self.backend,
            "modules": list(self.modules),
            "data_dir": self.data_dir,
        }


def _without_none(item: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in item.items() if value is not None}
