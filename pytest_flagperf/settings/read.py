"""Read the settings of a run: the command line, then the settings file, then the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import expected as expectations
from .. import redaction
from ..expected import Expected
from ..packages import advice
from ..problems import kind, shown
from .checks import check_numbers, checked
from .options import COMMAND_LINE, DEFAULT, OPTIONS, REMOVED, Settings, SettingsError, SiteTable
from .paths import located, located_in, no_root, roots_of, unusable_paths
from .tree import given_options, settings_file


def read_settings(command_line: Mapping[str, Any], root: Path, cwd: Path | None = None) -> Settings:
    """Return the settings with absolute paths; the command line overrides the file, the file overrides the defaults."""
    root = root.absolute()
    values: dict[str, Any] = {option.key: option.default for option in OPTIONS}
    values |= {key: located(values[key], root) for key in ("reports", "baselines")}
    sources = dict.fromkeys(values, DEFAULT)
    problems: list[str] = []
    located_table = settings_file(root)
    roots: tuple[str, ...] = (str(root),)
    cluster_table = slurm_table = None
    engine_tables: dict[str, SiteTable] = {}
    expected: tuple[Expected, ...] = ()
    if located_table is not None:
        path, table = located_table
        table = dict(table)
        if "expected" in table:
            expected = expectations.of_tables(table.pop("expected"), str(path), problems)
        if "cluster" in table and not isinstance(table["cluster"], str):
            cluster_table = _site_table("cluster", table, path, problems)
        if "slurm" in table:
            slurm_table = _site_table("slurm", table, path, problems)
        for name in [name for name in table if advice(name)]:
            problems.append(f"{path}: [{name}]: {advice(name)}")
            del table[name]
        if "engines" in table:
            engine_tables = _engine_tables(table.pop("engines"), path, problems)
        if "roots" in table:
            roots = roots_of(table.pop("roots"), path, problems)
            sources["roots"] = str(path)
        in_file = checked(table, path, problems)
        problems += [f"{path}: {problem}" for problem in unusable_paths(in_file, path.parent)]
        _take(values, sources, located_in(in_file, path.parent), str(path))
    given = given_options(command_line)
    problems += [f"--{problem}" for problem in unusable_paths(given, cwd or Path.cwd())]
    _take(values, sources, located_in(given, cwd or Path.cwd()), COMMAND_LINE)
    # --resume passes the stored roots, which include the tree.
    if not problems:
        others = (folder for folder in values["roots"] if Path(folder) != root)
        problems += [f"--roots={folder}: {problem}" for folder in others if (problem := no_root(folder))]
    values["roots"] = dict.fromkeys((*roots, *values["roots"]))
    check_numbers(values, sources, problems)
    if values["image"] is not None and not (
        redaction.is_image(values["image"]) or redaction.is_image_file(values["image"])
    ):
        image = shown(redaction.image(values["image"]))
        problems.append(
            f"image = {image} ({sources['image']}): expected an image name for docker pull, a path, or docker://NAME"
        )
    if problems:
        raise SettingsError(problems)
    for option in OPTIONS:
        if option.many:
            values[option.key] = tuple(values[option.key])
    file = str(located_table[0]) if located_table is not None else ""
    return Settings(
        **values,
        cluster_table=cluster_table,
        slurm_table=slurm_table,
        engine_tables=engine_tables,
        expected=expected,
        expected_in=file,
        sources=sources,
    )


def _site_table(name: str, table: dict[str, Any], path: Path, problems: list[str]) -> SiteTable | None:
    """Remove a table and return it, without keys that are reported as removed settings."""
    given = table.pop(name)
    if isinstance(given, dict):
        table |= {key: value for key, value in given.items() if key in REMOVED}
        return SiteTable({key: value for key, value in given.items() if key not in REMOVED}, path)
    text = ", or a string, as in cluster = 'gpu1,gpu2'" if name == "cluster" else ""
    problems.append(f"{path}: {name}: expected a table, [{name}]{text}; got {kind(given)}")
    return None


def _engine_tables(given: Any, path: Path, problems: list[str]) -> dict[str, SiteTable]:
    """Return the tables [engines.NAME] by name."""
    if not isinstance(given, dict):
        problems.append(f"{path}: engines: expected tables [engines.NAME]; got {kind(given)}")
        return {}
    problems += [
        f"{path}: engines.{name}: expected a table, [engines.{name}]; got {kind(table)}"
        for name, table in given.items()
        if not isinstance(table, dict)
    ]
    return {name: SiteTable(table, path) for name, table in given.items() if isinstance(table, dict)}


def _take(values: dict[str, Any], sources: dict[str, str], given: Mapping[str, Any], source: str) -> None:
    for key, value in given.items():
        values[key] = value
        sources[key] = source
