"""Publish what ``make gpu`` measured: at once beside the state, and by ``make gpu-publish`` in reports/published."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from pytest_flagperf import stored
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.report.export.markdown import row
from pytest_flagperf.results.tables import published
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import RESULTS, SUMS
from pytest_flagperf.stored.plan import VERSION

from .gpu_items import STATE, Target, make_items
from .items import PASSED, Result, read_result
from .section import REPO, relative

PUBLISHED = REPO / "reports" / "published"
ITEM = "item.json"
"""The result of an item, beside the published results.json."""
MACHINE = ("driver", "power_limit", "framework", "python", "commit", f"{VERSION} ")
"""Beginnings of the machine's facts in the table of published items."""


def collect(result: Result, folder: Path, chip: str) -> None:
    """Copy what an item measured to the folder ``publish``: its result, and its run if one of the cases passed."""
    runs = [path for path in sorted((folder / result.name).glob(f"run*/{RESULTS}")) if _has_passed_case(path)]
    if not (runs or result.status == PASSED) or not result.figures:
        return
    place = folder / "publish" / f"{chip.lower()}-{result.name}-{time.strftime('%Y-%m-%d')}"
    shutil.rmtree(place, ignore_errors=True)
    stored.write(place / ITEM, replace(result, machine={"hardware": chip, **result.machine}))
    for path in runs[-1:]:
        for file in filter(Path.is_file, (path, path.with_name(SUMS))):  # a run of version 0.1 has no sums
            shutil.copy(file, place)


def _has_passed_case(results: Path) -> bool:
    return any(case["ok"] for case in json.loads(results.read_text())["cases"])


def publish() -> int:
    """Copy all that is measured to reports/published; ``python -m tools.readme`` then writes the tables."""
    problems = []
    for place in sorted(STATE.glob("*/publish/*"), key=lambda place: place.stat().st_mtime):
        try:
            published.load(place)
        except FormatError as error:
            problems.append(f"not published: {error}")
            continue
        shutil.copytree(place, PUBLISHED / place.name, dirs_exist_ok=True)
        print(f"published: {relative(PUBLISHED / place.name)}")
    print("\n".join([*problems, f"read each {RESULTS}, then commit reports, suites, vendors and docs"]))
    return int(bool(problems))


def published_items(folder: Path, catalog: Catalog) -> str:
    """Return the tables of the published items, and of those that are owed on the goals' chips."""
    results: dict[tuple[str, str], tuple[str, Result]] = {}
    for file in sorted(folder.glob(f"*/{ITEM}"), key=lambda file: file.parent.name[-10:]):
        result = read_result(file)
        chip = result.machine.get("hardware", "")
        if not any(chip in vendor.chips for vendor in catalog.vendors.values()):
            raise FormatError(f"{file}: machine.hardware is {chip!r}; expected a chip of vendors/*/vendor.toml")
        results[chip, result.name] = (file.parent.name[-10:], result)
    goals = {suite.goal.chip for suite in catalog.trainings.values() if suite.goal}
    chips = {chip: vendor for vendor in catalog.vendors.values() for chip in vendor.chips}
    head = ["hardware", "item", "status", "figures", "goal", "machine", "command"]
    rows, owed = [head, ["---"] * len(head)], []
    for chip in sorted(goals | {chip for chip, _ in results}):
        vendor = chips[chip]
        items = make_items(Target(catalog, vendor, chip, vendor.chips[chip].devices_per_host or 1), STATE)
        known = {item.name: f"`make gpu VENDOR={vendor.name} ITEMS={item.name}`" for item in items}
        older = {name: "no item has this name any more" for of, name in results if of == chip and name not in known}
        for name, again in (known | older).items():
            if (chip, name) in results:
                date, result = results[chip, name]
                facts = [f"{fact} {text}" for fact, text in result.machine.items() if fact.startswith(MACHINE)]
                rows.append([chip, *result.row[:2], *result.row[3:], "; ".join([date, *facts]), again])
        names = [f"`{item.name}`" for item in items if item.read_figures and (chip, item.name) not in results]
        if names:
            command = f"`make gpu VENDOR={vendor.name} ITEMS=NAME`"
            owed.append(f"Owed on {chip}, by the command that measures it, {command}: {', '.join(names)}.")
    measured_rows = "\n".join(map(row, rows)) if len(rows) > 2 else "No result of a device is published yet."
    return "\n\n".join([measured_rows, *owed])
