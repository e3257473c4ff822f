"""FlagPerf's published config files (tests/flagperf), laid out as trees for the tests."""

import shutil
from pathlib import Path

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import Catalog

REPO = Path(__file__).resolve().parents[2]


def files() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (REPO / "tests/flagperf/published.txt").read_text(encoding="utf-8").split("== ")[1:]:
        path, _, text = part.partition("\n")
        found[path] = text
    return found


def checkout(root: Path) -> Path:
    """Lay out what is stored of a FlagPerf checkout; return its training folder."""
    for path, text in files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root / "training"


def catalog(root: Path) -> Catalog:
    """Return this repository's suites and vendors, with the published config folders in place of the vendors' own."""
    for folder in sorted(checkout(root / "FlagPerf").glob("*/*-pytorch")):
        vendor = root / "vendors" / folder.parent.name
        vendor.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / "vendors" / vendor.name / "vendor.toml", vendor)
        shutil.copytree(folder, vendor / folder.name)
    (root / "suites").symlink_to(REPO / "suites")
    return Catalog.scan([root])


def cases(of: Catalog) -> list[tuple[str, Case]]:
    """Return the vendor and the case of each published config file that is a case's."""
    return [
        (vendor.name, Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc))
        for vendor in of.vendors.values()
        for suite in of.trainings.values()
        for hardware, shape in of.configs(suite, vendor)
    ]


def case(model: str, hardware: str, shape: str) -> Case:
    parsed = Shape.parse(shape)
    return Case(model, "pytorch", hardware, parsed.nnodes, parsed.nproc)
