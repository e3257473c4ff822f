"""What a user may ask for: one table of options, and where each value came from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from .problems import Problems, near

COMMAND_LINE = "command line"
DEFAULT = "default"


class SettingsError(Problems):
    """Options or a settings file that cannot be used."""


@dataclass(frozen=True)
class Option:
    """One option: ``--name`` on the command line, ``name`` in the settings file."""

    name: str
    help: str
    metavar: str | None = None
    default: Any = None
    choices: tuple[str, ...] = ()
    many: bool = False
    flag: bool = False

    @property
    def key(self) -> str:
        """The name Python knows it by."""
        return self.name.replace("-", "_")


OPTIONS = (
    Option("vendor", "maker of the accelerators: a folder of vendors/", "NAME", "cpu"),
    Option("hw", "chip of that vendor (default: its first)", "CHIP"),
    Option("nodes", "shapes to run, hosts x cards each (default: what vendor.toml names)", "NxP[,NxP...]"),
    Option("repeat", "rounds of each case", "N", 1),
    Option(
        "case",
        "one case in full, model:framework:hardware:nnodes:nproc:repeat; may be given again",
        "CASE[=DATA_DIR]",
        (),
        many=True,
    ),
    Option("data-dir", "folder of the training data, for every case that names none itself", "DIR"),
    Option(
        "runtime",
        "where the ranks' Python comes from (default: what vendor.toml names)",
        default=None,
        choices=("host", "venv", "docker"),
    ),
    Option("python", "the interpreter of --runtime=host (default: python3 on the PATH)", "PATH"),
    Option("pip-source", "package index that environments are built from", "URL"),
    Option("launcher", "who starts the ranks of a host", default="env", choices=("env", "torchrun")),
    Option(
        "scale",
        "the real model and data, or the small version of the same code (default: what vendor.toml names)",
        choices=("reference", "small"),
    ),
    Option(
        "synthetic",
        "real shapes from a seeded generator instead of data: throughput only",
        default=False,
        flag=True,
    ),
    Option(
        "throughput-only",
        "bounded steps after a warm-up for every case; no convergence is asked",
        default=False,
        flag=True,
    ),
    Option("set", "another value for a mutable parameter; may be given again", "KEY=VALUE", (), many=True),
    Option("plan", "print what would run, where and with which values; start nothing", default=False, flag=True),
    Option("reports", "folder of the run directories", "DIR", "reports"),
    Option(
        "lease",
        "what a case takes for itself: its devices or the whole host (default: what vendor.toml names)",
        choices=("device", "host"),
    ),
    Option("test-conf", "the original's test_conf.py, used as it is", "FILE"),
)


@dataclass(frozen=True)
class Settings:
    """Every option's value; ``sources`` says where each was given."""

    vendor: str
    hw: str | None
    nodes: str | None
    repeat: int
    case: tuple[str, ...]
    data_dir: str | None
    runtime: str | None
    python: str | None
    pip_source: str | None
    launcher: str
    scale: str | None
    synthetic: bool
    throughput_only: bool
    set: tuple[str, ...]
    plan: bool
    reports: str
    lease: str | None
    test_conf: str | None
    roots: tuple[str, ...] = (".",)
    sources: Mapping[str, str] = field(default_factory=dict)

    def given(self, key: str) -> bool:
        """Whether somebody chose this value."""
        return self.sources[key] != DEFAULT


def concerned(root: Path, command_line: Mapping[str, Any]) -> bool:
    """Whether a tree may be one with suites; a cheap look, for every pytest run anywhere makes it."""
    return (
        any(value for value in command_line.values())
        or any(root.glob("suites/*/*/suite.toml"))
        or settings_file(root) is not None
    )


def settings_file(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The settings file of a tree and its table: flagperf.toml, else [tool.flagperf] of pyproject.toml."""
    own = root / "flagperf.toml"
    if own.is_file():
        return own, _load(own)
    project = root / "pyproject.toml"
    if project.is_file():
        table = _load(project).get("tool", {}).get("flagperf")
        if table is not None:
            return project, table
    return None


def read_settings(command_line: Mapping[str, Any], root: Path) -> Settings:
    """The command line over the settings file over the defaults."""
    values: dict[str, Any] = {option.key: option.default for option in OPTIONS}
    sources = dict.fromkeys(values, DEFAULT)
    problems: list[str] = []
    found = settings_file(root)
    roots: tuple[str, ...] = (".",)
    if found is not None:
        path, table = found
        table = dict(table)
        raw_roots = table.pop("roots", ["."])
        if isinstance(raw_roots, list) and all(isinstance(item, str) for item in raw_roots):
            roots = tuple(raw_roots)
        else:
            problems.append(f"{path}: roots must be a list of folders, got {raw_roots!r}")
        _take(values, sources, _checked(table, path, problems), str(path))
    given = {key: value for key, value in command_line.items() if value is not None and value is not False}
    _take(values, sources, given, COMMAND_LINE)
    _check_repeat(values, sources, problems)
    if problems:
        raise SettingsError(problems)
    for option in OPTIONS:
        if option.many:
            values[option.key] = tuple(values[option.key])
    return Settings(**values, roots=roots, sources=sources)


def _take(values: dict[str, Any], sources: dict[str, str], given: Mapping[str, Any], source: str) -> None:
    for key, value in given.items():
        values[key] = value
        sources[key] = source


def _load(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"{path}: not a TOML file: {error}"]) from error
    return table


def _checked(table: Mapping[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """The table by option key; every unknown name and wrong value becomes a problem."""
    options = {option.name: option for option in OPTIONS} | {option.key: option for option in OPTIONS}
    values = {}
    for name, value in table.items():
        option = options.get(name)
        if option is None:
            problems.append(
                f"{path}: unknown setting {name!r}{near(name, [*(option.name for option in OPTIONS), 'roots'])}"
            )
        elif wrong := _wrong(option, value):
            problems.append(f"{path}: {name} = {value!r}: {wrong}")
        else:
            values[option.key] = value
    return values


def _wrong(option: Option, value: Any) -> str | None:
    """What is not right about a settings file's value; None when it will do."""
    if option.flag:
        return None if isinstance(value, bool) else "true or false is wanted"
    if option.many:
        fine = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if fine else "a list of strings is wanted"
    if isinstance(option.default, int):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number is wanted"
    if not isinstance(value, str):
        return "a string is wanted"
    if option.choices and value not in option.choices:
        return f"allowed are {', '.join(option.choices)}{near(value, option.choices)}"
    return None


def _check_repeat(values: Mapping[str, Any], sources: Mapping[str, str], problems: list[str]) -> None:
    if values["repeat"] < 1:
        problems.append(f"repeat = {values['repeat']} ({sources['repeat']}): at least one round is wanted")
