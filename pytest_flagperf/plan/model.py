"""The plan of a case: all decisions, made before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from flagperf_driver.driver import SCHEMA as CASE_SCHEMA
from flagperf_driver.driver import RunCase

from ..catalog import DataItem
from ..config import Translated
from ..stored import to_json_types
from ..stored.plan import SCHEMA, PlanFacts


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
    translated: tuple[Translated, ...] = ()
    """The outcome of each FlagPerf name in the vendor's config file."""

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
        """The path of the training program, relative to the staged code."""
        return f"suites/{self.case.model}/{self.case.framework_name}/run_pretraining.py"

    def seed(self, round_number: int) -> int:
        """The seed of a round: each round has its own."""
        return int(self.config["seed"]) + round_number - 1

    def case_json(self, round_number: int, code_root: str) -> dict[str, Any]:
        """Return the file that ranks read: the complete config, nothing left to merge."""
        facts, seed = self.to_json(), self.seed(round_number)
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
        return {
            **to_json_types(self),
            "schema": SCHEMA,
            "case": str(self.case),
            "model": self.case.model,
            "framework": self.case.framework_name,
            "framework_version": self.case.framework_version,
            "hardware": self.case.hardware,
            "nnodes": self.case.nnodes,
            "nproc": self.case.nproc,
            "data_dir": self.data_dir,
            "config": self.config,
            "scaling": self.scaling,
        }
