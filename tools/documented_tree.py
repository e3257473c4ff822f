"""The sources of generated READMEs: the suites, vendors, configs and published results of a tree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import REFERENCE, Catalog, Suite, Vendor
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.results.tables import published
from pytest_flagperf.results.tables.published import Published
from pytest_flagperf.stored.plan import MEASUREMENT, TRAINING


@dataclass(frozen=True)
class VendorCase:
    """One suite on one vendor's chips: the folder ``vendors/<vendor>/<model>-<framework>``."""

    suite: Suite
    vendor: Vendor
    folder: Path
    plans: Mapping[tuple[str, Shape], Plan]
    """The plan of each config by chip and shape; chips have the order of vendor.toml."""


@dataclass(frozen=True)
class Tree:
    """The suites, vendors and published results below one folder."""

    root: Path
    catalog: Catalog

    @cached_property
    def suites(self) -> list[Suite]:
        """The suites that train."""
        return self._sorted(TRAINING)

    @cached_property
    def measurements(self) -> list[Suite]:
        """The suites that measure the machine."""
        return self._sorted(MEASUREMENT)

    @cached_property
    def served(self) -> list[Suite]:
        """The suites that serve a model."""
        return self._sorted("serving")

    def _sorted(self, kind: str) -> list[Suite]:
        suites = (suite for suite in self.catalog.suites.values() if suite.root == self.root)
        return sorted((suite for suite in suites if suite.kind == kind), key=lambda suite: suite.name)

    @cached_property
    def vendors(self) -> list[Vendor]:
        return sorted(self.catalog.vendors.values(), key=lambda vendor: vendor.name)

    @cached_property
    def results(self) -> tuple[Published, ...]:
        return published.load(self.root / "reports" / "published")

    def vendor_cases(self) -> Iterator[VendorCase]:
        """Yield every folder of configs below the root; raise Problems for an invalid config."""
        for suite in sorted(self.catalog.trainings.values(), key=lambda suite: suite.name):
            for vendor in self.vendors:
                folder = self.catalog.case_folder(suite, vendor)
                if folder.is_relative_to(self.root) and self.catalog.configs(suite, vendor):
                    yield VendorCase(suite, vendor, folder, self._plans(suite, vendor))

    def results_of(self, suite: Suite, vendor: Vendor) -> list[Published]:
        name = (suite.model, suite.framework, vendor.name)
        return [
            result for result in self.results if (result.first.model, _framework(result), result.first.vendor) == name
        ]

    def _plans(self, suite: Suite, vendor: Vendor) -> dict[tuple[str, Shape], Plan]:
        keys = sorted(self.catalog.configs(suite, vendor), key=lambda key: (chip_order(vendor, key[0]), key[1]))
        return {key: self.plan(suite, vendor, *key) for key in keys}

    def plan(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape) -> Plan:
        case = Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc, 1)
        return make_plan(self.catalog, PlanRequest(case, vendor=vendor.name, scale=REFERENCE, check_data=False))

    def link(self, document: Path, target: Path, text: str) -> str:
        """Return a link from a document to another file of the tree; only the text for any other target."""
        if target == document or not target.is_relative_to(self.root) or not target.exists():
            return text
        path = Path(os.path.relpath(target, document.parent)).as_posix()
        return f"[{text}]({path})"


def _framework(result: Published) -> str:
    return result.first.framework.partition("_")[0]


def chip_order(vendor: Vendor, hardware: str) -> tuple[int, str]:
    """Return a sort key: the order of vendor.toml, then other chips by name."""
    chips = list(vendor.chips)
    return (chips.index(hardware) if hardware in chips else len(chips)), hardware
