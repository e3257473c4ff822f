"""The plan: the frozen answer to what exactly will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pytest_flagperf.stored.plan import SCHEMA as PLAN_SCHEMA

from ..case import Case
from ..catalog import DataItem, Metric
from ..config import Deviation, Translated, Value
from .brought import Brought

SCHEMA = 1


@dataclass(frozen=True)
class Plan:
    """A case, resolved."""

    case: Case
    vendor: str
    scale: str
    synthetic: bool
    throughput_only: bool
    metric: Metric
    target: float
    sample_unit: str
    device: str
    backend: str
    modules: tuple[str, ...]  # imported by each rank, in this order, before the device exists
    device_module: str | None  # within the code that the hosts get
    visible_devices: str | None
    runtime: str
    launcher: str
    extern: str | None  # within the code that the hosts get
    values: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    brought: tuple[Brought, ...]
    """What the vendor brings beside its config."""
    manifest: tuple[DataItem, ...]
    flops_per_sample: float | None
    peak_tflops: float | None  # dense, of one card at the config's precision
    min_efficiency: float
    fingerprint: Mapping[str, object]
    reference: Mapping[str, object] | None = None
    """The suite's reference curves at this scale, which the round is judged by."""
    translated: tuple[Translated, ...] = ()
    """What became of each name of a vendor's file with the original's names."""

    @cached_property
    def config(self) -> dict[str, Any]:
        return {key: value.value for key, value in self.values.items()}

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
        """The training program, within the code that the hosts get."""
        return f"suites/{self.case.model}/{self.case.framework_name}/run_pretraining.py"

    def seed(self, round_number: int) -> int:
        """The seed of a round: each round has its own."""
        return int(self.config["seed"]) + round_number - 1

    def case_json(self, round_number: int, code_root: str) -> dict[str, Any]:
        """What a rank reads: everything decided, nothing left to merge."""
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
        """What reports read, but for what only a round knows: its number, its hosts, their Python and code."""
        return {
            "schema": PLAN_SCHEMA,
            **self._facts(),
            "device_module": self.device_module,
            "extern": self.extern,
            "config": self.config,
            "values": {key: asdict(value) for key, value in self.values.items()},
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "brought": [asdict(one) for one in self.brought],
            "manifest": [_without_none(asdict(item)) for item in self.manifest],
            "flops_per_sample": self.flops_per_sample,
            "peak_tflops": self.peak_tflops,
            "min_efficiency": self.min_efficiency,
            "scaling": self.scaling,
            "runtime": self.runtime,
            "launcher": self.launcher,
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
            "metric": {**self.metric.to_json(), "target": self.target},
            "sample_unit": self.sample_unit,
            "device": self.device,
            "backend": self.backend,
            "modules": list(self.modules),
            "data_dir": self.data_dir,
        }


def _without_none(item: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in item.items() if value is not None}
