"""Check names and values of settings: in a file, on the command line and in a stored run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..problems import kind, near, shown
from ..whole_numbers import LARGEST_INT
from .options import OPTIONS, REMOVED, RENAMED, SITE, Option, SettingsError
from .tree import find_root, settings_file

_NUMBER = re.compile(r"[0-9.]+")


def check_unknown(unknown: Sequence[str], arguments: Sequence[str], rootpath: Path) -> None:
    """Raise SettingsError for unknown arguments that are keys of the settings file or former names of options."""
    names = {word.partition("=")[0].removeprefix("--") for word in unknown if word.startswith("--")}
    problems = [f"--{old} was renamed; use --{new}" for old, new in RENAMED.items() if old in names]
    problems += [f"--{old} was removed: {why}" for old, why in REMOVED.items() if old in names]
    names |= {name.removeprefix("no-") for name in names}
    site = [option for option in OPTIONS if option.group == SITE and option.name in names]
    if site:
        root = find_root(rootpath) or rootpath
        file, _ = settings_file(root) or (root / "flagperf.toml", {})
        place = f"[tool.flagperf] of {file}" if file.name == "pyproject.toml" else str(file)
        problems += [
            f"--{option.name} is a setting of flagperf.toml: write {_as_setting(option, arguments)} in {place}"
            for option in site
        ]
    if problems:
        raise SettingsError(problems)


def _as_setting(option: Option, arguments: Sequence[str]) -> str:
    """Return the line of a settings file that has the effect of the command line arguments."""
    if option.flag:
        return f"{option.name} = {'false' if f'--no-{option.name}' in arguments else 'true'}"
    values = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == f"--{option.name}":
            values.append(option.shown(value if equals else following))
    if not values:
        return f"{option.name} = ..."
    if isinstance(option.default, float):
        return f"{option.name} = {values[-1] if _NUMBER.fullmatch(values[-1]) else '...'}"
    return f"{option.name} = {shown(values if option.many else values[-1])}"


def checked(table: Mapping[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the valid values by option key; add each unknown name and invalid value to the problems."""
    options = {option.name: option for option in OPTIONS} | {option.key: option for option in OPTIONS}
    values = {}
    for name, value in table.items():
        option = options.get(name)
        if name in REMOVED:
            problems.append(f"{path}: remove the setting {name!r}: {REMOVED[name]}")
        elif option is None:
            known = [*(option.name for option in OPTIONS), "expected"]
            hint = f"; use {RENAMED[name]}" if name in RENAMED else near(name, known)
            problems.append(f"{path}: unknown setting {name!r}{hint}")
        elif problem := wrong_value(option, value):
            public = shown(value) if option.may_be_stored(value) else f"<{kind(value)}>"
            problems.append(f"{path}: {name} = {public}: {problem}")
        else:
            values[option.key] = value
    return values


def wrong_value(option: Option, value: Any) -> str | None:
    """Return the expectation that a value of a settings file or a stored run does not meet; None for a valid value."""
    if option.flag:
        return None if isinstance(value, bool) else "expected true or false"
    if option.many:
        valid = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if valid else "expected a list of strings"
    if isinstance(option.default, (int, float)):
        kinds = (int,) if isinstance(option.default, int) else (int, float)
        valid = isinstance(value, kinds) and not isinstance(value, bool)
        if not valid:
            return f"expected a {'whole ' if kinds == (int,) else ''}number"
        return None if abs(value) <= LARGEST_INT or value != value else f"expected a number up to {LARGEST_INT}"
    if not isinstance(value, str):
        return "expected a string"
    if option.path and not value:
        return "expected a path"
    if option.choices and value not in option.choices:
        return f"expected one of {', '.join(option.choices)}{near(value, option.choices)}"
    return None


def check_numbers(values: Mapping[str, Any], sources: Mapping[str, str], problems: list[str]) -> None:
    limits = {"repeat": (1, "expected at least 1"), "sample": (0.01, "expected at least 0.01 s")}
    limits["lease_time"] = (0.0, "expected at least 0 s")
    for key, (minimum, expected) in limits.items():
        # Not `<`, which is false for NaN.
        if not values[key] >= minimum:
            problems.append(f"{key.replace('_', '-')} = {values[key]} ({sources[key]}): {expected}")
