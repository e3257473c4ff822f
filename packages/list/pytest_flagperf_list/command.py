"""List the suites, vendors, chips and scales, and the shapes that have a config."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.case import Shape
from pytest_flagperf.catalog import Catalog, CatalogError, Chip, Suite, Vendor
from pytest_flagperf.commands import common, tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.table import aligned
from pytest_flagperf.results.figures import targets

_MIN_WIDTH = 24
_NO_BREAK = "\N{NO-BREAK SPACE}"
EXAMPLE = "--roots=/opt/our-suites"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root",
        metavar="ROOT",
        type=Path,
        nargs="?",
        help="the folder with suites/ and vendors/ (default: the current tree)",
    )
    tree.add_roots(parser)


def run(arguments: argparse.Namespace) -> int:
    root: Path = arguments.root or tree.root()
    if not root.is_dir():
        raise Problems([f"{root}: no such directory"])
    catalog = tree.catalog(root, arguments.roots)
    if not catalog.suites:
        raise Problems([f"{root}: no suites: no file suites/<model>/<framework>/suite.toml"])
    entries: list[Suite | Vendor] = [*_sorted_suites(catalog), *_sorted_vendors(catalog)]
    problems = [problem for entry in entries for problem in _problems(entry)]
    if problems:
        raise Problems(problems)
    print("\n".join(_lines(catalog, root.resolve())))
    return 0


def _lines(catalog: Catalog, root: Path) -> Iterator[str]:
    yield from _table([("suite", "metric", "scales"), *(_suite(suite) for suite in _sorted_suites(catalog))])
    yield ""
    yield from _table(_vendors(catalog, root))
    yield ""
    rows = [
        row
        for suite in _sorted_suites(catalog)
        for vendor in _sorted_vendors(catalog)
        for row in _configs(catalog, suite, vendor)
    ]
    yield from _table([("config for", "vendor", "chip", "shapes"), *rows])
    yield ""
    yield "Neither the small scale nor a measurement of the machine needs a config."


def _suite(suite: Suite) -> tuple[str, ...]:
    more = len(suite.figures) - 1
    metric = suite.metric.name
    texts = {name: targets.text(scale.target).removeprefix(metric) for name, scale in suite.scales.items()}
    figures = metric + (f" and {more} more" if more > 0 else "")
    return suite.name, figures, ", ".join(f"{name}{text}" for name, text in texts.items())


def _vendors(catalog: Catalog, root: Path) -> list[tuple[str, ...]]:
    """Return the table's rows; the column "from" is left out if all vendors are in the tree."""
    vendors = _sorted_vendors(catalog)
    origins = ["" if vendor.root == root else catalog.packages.get(vendor.root, str(vendor.root)) for vendor in vendors]
    rows = [("vendor", "name", "default scale", "from", "chips")]
    rows += [
        (
            vendor.name,
            vendor.toml.name,
            vendor.toml.scale,
            origin,
            ", ".join(_chip(*item) for item in vendor.chips.items()),
        )
        for vendor, origin in zip(vendors, origins, strict=True)
    ]
    return [row if any(origins) else (*row[:3], row[4]) for row in rows]


def _chip(name: str, chip: Chip) -> str:
    memory = f"{chip.memory_gib:g} GiB" if chip.memory_gib else ""
    devices = f"up to {chip.devices_per_host} per host" if chip.devices_per_host else ""
    details = ", ".join(filter(None, (memory, devices)))
    return f"{name} ({details})".replace(" ", _NO_BREAK) if details else name


def _configs(catalog: Catalog, suite: Suite, vendor: Vendor) -> Iterator[tuple[str, ...]]:
    shapes: dict[str, list[Shape]] = {}
    for hardware, shape in catalog.configs(suite, vendor):
        shapes.setdefault(hardware, []).append(shape)
    for hardware, configured in sorted(shapes.items()):
        yield suite.name, vendor.name, hardware, ", ".join(map(str, sorted(configured)))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return left-aligned columns; wrap the last column at the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(common.width() - sum(widths[:-1]) - 2 * len(widths[:-1]), _MIN_WIDTH)
    lines = [line for row in rows for line in _wrap_last(row, room)]
    return [line.replace(_NO_BREAK, " ") for line in aligned(lines, left=len(widths))]


def _wrap_last(row: Sequence[str], room: int) -> Iterator[tuple[str, ...]]:
    first, *others = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (*row[:-1], first)
    yield from ((*("" for _ in row[:-1]), other) for other in others)


def _sorted_suites(catalog: Catalog) -> list[Suite]:
    return sorted(catalog.suites.values(), key=lambda suite: suite.name)


def _sorted_vendors(catalog: Catalog) -> list[Vendor]:
    return sorted(catalog.vendors.values(), key=lambda vendor: vendor.name)


def _problems(entry: Suite | Vendor) -> list[str]:
    """Return the problems of a suite.toml or vendor.toml."""
    try:
        _ = entry.toml if isinstance(entry, Vendor) else entry.scales
    except CatalogError as error:
        return error.problems
    return []
