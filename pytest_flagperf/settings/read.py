"""Read the settings of a run, and check them: the command line, then the settings file, then the defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from flagperf_driver import addresses

from .. import expected as expectations
from .. import redaction
from ..packages import advice
from ..problems import kind, near, shown, unusable_path
from ..stored.plan import FAULTS, LINK, Price, split_faults
from ..typed import Check, Rule
from .options import COMMAND_LINE, DEFAULT, OPTIONS, SITE, Option, Settings, SettingsError, SiteTable

ENGINES = ("agents",)
"""The values of ``engine`` that need no package."""
_CHECK, _CHECK_TABLE = Check(), Check(all_keys=True)
_ROOTS = Annotated[list[str], Rule("a list with at least one folder", bool)]


def tree_root(rootpath: Path, command_line: Mapping[str, Any]) -> Path | None:
    """Return the tree of a pytest run, if any. This must be fast: every pytest run calls it."""
    return find_root(rootpath) or (rootpath if given_options(command_line) else None)


def find_root(rootpath: Path) -> Path | None:
    """Return the nearest folder, upwards, with suites, vendors or settings."""
    return next((folder for folder in (rootpath, *rootpath.parents) if _is_root(folder)), None)


def _is_root(folder: Path) -> bool:
    # os.path instead of Path.is_file: an unreadable parent folder is not an error.
    if os.path.isfile(folder / "flagperf.toml"):  # noqa: PTH113
        return True
    for name, files in (("suites", "suites/*/*/suite.toml"), ("vendors", "vendors/*/vendor.toml")):
        if os.path.isdir(folder / name) and any(folder.glob(files)):  # noqa: PTH112
            return True
    return _mentions_us(folder / "pyproject.toml") and settings_file(folder) is not None


def _mentions_us(project: Path) -> bool:
    """Return True if a pyproject.toml may have our settings: files of other projects may be large or invalid."""
    try:
        return b"flagperf" in project.read_bytes()
    except OSError:
        return False


def settings_file(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the settings file of a tree and its table: flagperf.toml, else [tool.flagperf] of pyproject.toml."""
    own = root / "flagperf.toml"
    if own.is_file():
        return own, _load(own)
    project = root / "pyproject.toml"
    tools = _load(project).get("tool") if project.is_file() else None
    table = tools.get("flagperf") if isinstance(tools, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise SettingsError([f"{project}: tool.flagperf: expected a table, [tool.flagperf], got {kind(table)}"])
    return project, table


def _load(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not a TOML file: not UTF-8: {error}"]) from error
    except (ValueError, RecursionError) as error:  # too many digits in a number raise a plain ValueError
        raise SettingsError([f"{path}: not a TOML file: {error}"]) from error
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from error
    return table


def given_options(command_line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in command_line.items() if value is not None}


LACKS = "contains neither vendors/<vendor>/vendor.toml nor suites/<model>/<framework>/suite.toml"


def located(path: str, folder: Path) -> str:
    """Return the absolute path of a path that is relative to a folder."""
    return str(folder / os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for an unknown user


def split_case(text: str) -> tuple[str, str | None]:
    """Split CASE=DIR into the case and its data directory."""
    case, _, folder = text.partition("=")
    return case, folder or None


def located_in(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return values with absolute paths; relative paths start at the folder."""
    values = dict(given)
    for option in OPTIONS:
        # A program name without a slash is searched on the PATH.
        if option.path and option.key in given and (option.key != "python" or "/" in given[option.key]):
            value = given[option.key]
            values[option.key] = [located(text, folder) for text in value] if option.many else located(value, folder)
    if "case" in given:
        pairs = map(split_case, given["case"])
        values["case"] = [f"{case}={located(data_dir, folder)}" if data_dir else case for case, data_dir in pairs]
    return values


def unusable_paths(given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the problems of paths that are relative to a folder, each with its option's name."""
    for option in OPTIONS:
        value = given.get(option.key)
        if value is None or not (option.path or option.key == "case"):
            continue
        for text in value if option.many else (value,):
            path = split_case(text)[1] if option.key == "case" else text
            if path == "":
                yield f"{option.name} is empty: expected a path"
            elif path is not None and (problem := unusable_path(path) or unusable_path(located(path, folder))):
                yield f"{option.name}: {shown(addresses.redacted(path))}: {problem}"


def roots_of(given: Any, path: Path, problems: list[str]) -> tuple[str, ...]:
    """Return the roots that a file lists; each must exist and contain suites or vendors."""
    if expected := _CHECK.expected(given, _ROOTS):
        problems.append(f"{path}: roots = {addresses.redacted_text(shown(given))}: expected {expected}")
        return ()
    roots = tuple(located(item, path.parent) for item in given)
    own = path.parent.resolve()
    for item, root in zip(given, roots, strict=True):
        problem = unusable_path(item) or unusable_path(root)
        if problem is None and Path(root).resolve() != own:
            problem = no_root(root)
        problems += [f"{path}: roots: {addresses.redacted(root)}: {problem}"] if problem else []
    return () if problems else roots


def no_root(root: str) -> str | None:
    """Return why a folder cannot be a root; None if it can."""
    folder = Path(root)
    try:
        if not folder.is_dir():
            return "no such folder"
        if holds_some(folder):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if above := next(filter(holds_some, folder.resolve().parents[:2]), None):
        return f"expected the folder above vendors/ or suites/: {above}"
    return f"this folder {LACKS}"


def holds_some(folder: Path) -> bool:
    """Return True if a folder contains a suite or a vendor."""
    return any(any(folder.glob(files)) for files in ("vendors/*/vendor.toml", "suites/*/*/suite.toml"))


def check_unknown(unknown: Sequence[str], rootpath: Path) -> None:
    """Raise SettingsError for unknown options that are keys of the settings file, or have a similar name."""
    names = {word.partition("=")[0].removeprefix("--").removeprefix("no-") for word in unknown if word[:2] == "--"}
    site = [option for option in OPTIONS if option.group == SITE and option.name in names]
    problems = []
    if site:
        root = find_root(rootpath) or rootpath
        file, _ = settings_file(root) or (root / "flagperf.toml", {})
        place = f"[tool.flagperf] of {file}" if file.name == "pyproject.toml" else str(file)
        problems += [
            f"--{option.name} is a setting of flagperf.toml: write {option.name} = ... in {place}" for option in site
        ]
    known = [option.name for option in OPTIONS]
    other = sorted(names - {*known})
    problems += [f"--{name}: unknown option{hint}" for name in other if (hint := near(name, known))]
    if problems:
        raise SettingsError(problems)


def check_paths(arguments: Sequence[str], folder: Path) -> None:
    """Raise SettingsError for paths that do not exist beside files with a similar name; pytest reports all others."""
    problems = []
    for argument in arguments:
        path = folder / argument.partition("::")[0]
        names = [] if path.exists() or not path.parent.is_dir() else [other.name for other in path.parent.iterdir()]
        problems += [f"{argument}: no such file or folder{hint}" for hint in [near(path.name, names)] if hint]
    if problems:
        raise SettingsError(problems)


def checked(table: Mapping[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the valid values by option key; add each unknown name and invalid value to the problems."""
    options = {option.name: option for option in OPTIONS} | {option.key: option for option in OPTIONS}
    values = {}
    for name, value in table.items():
        option = options.get(name)
        if option is None:
            known = [*(option.name for option in OPTIONS), "expected", "price"]
            problems.append(f"{path}: unknown setting {name!r}{near(name, known)}")
        elif problem := wrong_value(option, value):
            public = shown(value) if option.may_be_stored(value) else f"<{kind(value)}>"
            problems.append(f"{path}: {name} = {public}: {problem}")
        else:
            values[option.key] = value
    return values


def wrong_value(option: Option, value: Any) -> str | None:
    """Return the expectation that a value of a settings file or a stored run does not meet; None for a valid value."""
    expected = "a path" if option.path and value == "" else _CHECK.expected(value, option.kind)
    return f"expected {expected}" if expected else None


def _impossible_values(values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of values that every source may give, each with its source."""
    for option in OPTIONS:
        value = values[option.key]
        # Not `<`, which is false for NaN.
        if option.least is not None and not value >= option.least:
            expected = f"expected at least {option.least:g}{' s' if option.metavar == 'SECONDS' else ''}"
            yield f"{option.name} = {value} ({sources[option.key]}): {expected}"
    wheels, image, drill = values["wheels"], values["image"], values["drill"]
    if values["min_goodput"] > 1:
        yield f"min-goodput = {values['min_goodput']:g} ({sources['min_goodput']}): expected a share, at most 1"
    faults = split_faults(drill)
    if wrong := [fault for fault in faults if fault not in FAULTS or faults.count(fault) > 1]:
        expected = f"expected {', '.join(FAULTS)}, each at most once, with commas between them"
        yield f"drill = {shown(drill)} ({sources['drill']}): {shown(wrong[0])}: {expected}"
    elif (needed := sum(fault != LINK for fault in faults)) > values["restarts"]:
        yield f"drill = {drill} ({sources['drill']}): needs --restarts={needed} or more: each rank or host ends a start"
    if wheels is not None and not os.path.isdir(wheels):  # noqa: PTH112 - also a name that is too long
        yield f"wheels = {wheels} ({sources['wheels']}): no such folder; flagperf wheels fills one"
    if image is not None and not (redaction.is_image(image) or redaction.is_image_file(image)):
        expected = "expected an image name for docker pull, a path, or docker://NAME"
        yield f"image = {shown(redaction.image(image))} ({sources['image']}): {expected}"


def read_settings(command_line: Mapping[str, Any], root: Path, cwd: Path | None = None) -> Settings:
    """Return the settings with absolute paths: the command line's, else the file's, else the engine's, else ours."""
    root, cwd = root.absolute(), cwd or Path.cwd()
    values: dict[str, Any] = {option.key: option.default for option in OPTIONS}
    values |= {key: located(values[key], root) for key in ("reports", "baselines")}
    sources = dict.fromkeys(values, DEFAULT)
    problems: list[str] = []
    roots: tuple[str, ...] = (str(root),)
    tables: dict[str, Any] = {}
    if (found := settings_file(root)) is not None:
        path, table = found[0], dict(found[1])
        tables = _take_tables(table, path, problems)
        if "roots" in table:
            roots, sources["roots"] = roots_of(table.pop("roots"), path, problems), str(path)
        in_file = checked(table, path, problems)
        problems += [f"{path}: {problem}" for problem in unusable_paths(in_file, path.parent)]
        values |= located_in(in_file, path.parent)
        sources |= dict.fromkeys(in_file, str(path))
    given = given_options(command_line)
    problems += [f"--{problem}" for problem in unusable_paths(given, cwd)]
    values |= located_in(given, cwd)
    sources |= dict.fromkeys(given, COMMAND_LINE)
    # --resume passes the stored roots, which include the tree.
    if not problems:
        others = (folder for folder in values["roots"] if Path(folder) != root)
        problems += [f"--roots={folder}: {problem}" for folder in others if (problem := no_root(folder))]
    values["roots"] = dict.fromkeys((*roots, *values["roots"]))
    problems += _impossible_values(values, sources)
    if problems:
        raise SettingsError(problems)
    values |= {option.key: tuple(values[option.key]) for option in OPTIONS if option.many}
    if (engine := values["engine"]) not in ENGINES:
        added = _defaults_of(engine, sources)
        values |= added
        sources |= dict.fromkeys(added, f"--engine={engine}")
    return Settings(**values, **tables, sources=sources)


def _defaults_of(engine: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that an installed engine has for options that are not set."""
    from ..hooks import EngineFactory  # other engines need no package
    from ..hooks.plugins import guard, named

    found = named("flagperf_engines", EngineFactory, ENGINES)
    if engine not in found:
        return {}  # opening it says so
    plugin, factory = found[engine]

    def unset() -> dict[str, Any]:
        return {key: value for key, value in factory.defaults.items() if sources[key] == DEFAULT}

    return guard(plugin, f"engine {engine}: defaults", unset)


def _take_tables(table: dict[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """Remove the tables from those of a settings file; return them by the fields of ``Settings``."""
    tables: dict[str, Any] = {"expected_in": str(path)}
    if "expected" in table:
        tables["expected"] = expectations.of_tables(table.pop("expected"), str(path), problems)
    if "price" in table:
        given = table.pop("price")
        wrong = [*_CHECK_TABLE.problems(given, Price, ("price",))]
        problems += [f"{path}: {text}" for _, text in wrong]
        tables["price"] = None if wrong else _CHECK_TABLE.made(given, Price)
    if "cluster" in table and not isinstance(table["cluster"], str):
        tables["cluster_table"] = _site_table("cluster", table.pop("cluster"), path, problems)
    engines = _engine_tables(table.pop("engines", {}), path, problems)
    if "slurm" in table and (own := _site_table("slurm", table.pop("slurm"), path, problems)):
        if "slurm" in engines:
            problems.append(f"{path}: [slurm] and [engines.slurm] are the same table: remove one of them")
        engines["slurm"] = own
    tables["engine_tables"] = engines
    for part in [part for part in table if advice(part)]:
        problems.append(f"{path}: [{part}]: {advice(part)}")
        del table[part]
    return tables


def _site_table(name: str, given: Any, path: Path, problems: list[str]) -> SiteTable | None:
    """Return a table; report a value that is none."""
    if isinstance(given, dict):
        return SiteTable(given, path)
    text = ", or a string, as in cluster = 'gpu1,gpu2'" if name == "cluster" else ""
    problems.append(f"{path}: {name}: expected a table, [{name}]{text}; got {kind(given)}")
    return None


def _engine_tables(given: Any, path: Path, problems: list[str]) -> dict[str, SiteTable]:
    """Return the tables [engines.NAME] by name."""
    if not isinstance(given, dict):
        problems.append(f"{path}: engines: expected tables [engines.NAME]; got {kind(given)}")
        return {}
    tables = {name: _site_table(f"engines.{name}", table, path, problems) for name, table in given.items()}
    return {name: table for name, table in tables.items() if table is not None}
