"""Wrong names and values: in a settings file, on the command line and in a stored run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..limits import LARGEST_INT
from ..problems import kind, near, shown
from .options import OPTIONS, RENAMED, SITE, Option, SettingsError
from .tree import find_root, settings_file

_NUMBER = re.compile(r"[0-9.]+")


def check_unknown(unknown: Sequence[str], arguments: Sequence[str], rootpath: Path) -> None:
    """Raise if words that pytest does not know are former names of options, or keys of the settings file."""
    names = {word.partition("=")[0].removeprefix("--") for word in unknown if word.startswith("--")}
    problems = [f"--{old} was renamed; use --{new}" for old, new in RENAMED.items() if old in names]
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
    """The line of a settings file that sets what a command line asked for."""
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
    """The table by option key; every unknown name and wrong value becomes a problem."""
    options = {option.name: option for option in OPTIONS} | {option.key: option for option in OPTIONS}
    values = {}
    for name, value in table.items():
        option = options.get(name)
        if option is None:
            known = [*(option.name for option in OPTIONS), "expected"]
            hint = f"; use {RENAMED[name]}" if name in RENAMED else near(name, known)
            problems.append(f"{path}: unknown setting {name!r}{hint}")
        elif wrong := wrong_value(option, value):
            public = shown(value) if option.may_be_stored(value) else f"<{kind(value)}>"
            problems.append(f"{path}: {name} = {public}: {wrong}")
        else:
            values[option.key] = value
    return values


def wrong_value(option: Option, value: Any) -> str | None:
    """Return what is wrong with a value of a settings file or of a stored run; None for a good one."""
    if option.flag:
        return None if isinstance(value, bool) else "true or false is wanted"
    if option.many:
        fine = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if fine else "a list of strings is wanted"
    if isinstance(option.default, (int, float)):
        kinds = (int,) if isinstance(option.default, int) else (int, float)
        fine = isinstance(value, kinds) and not isinstance(value, bool)
        if not fine:
            return f"a {'whole ' if kinds == (int,) else ''}number is wanted"
        return None if abs(value) <= LARGEST_INT or value != value else f"expected a number up to {LARGEST_INT}"
    if not isinstance(value, str):
        return "a string is wanted"
    if option.path and not value:
        return "a path is wanted"
    if option.choices and value not in option.choices:
        return f"allowed are {', '.join(option.choices)}{near(value, option.choices)}"
    return None


def check_numbers(values: Mapping[str, Any], sources: Mapping[str, str], problems: list[str]) -> None:
    least = {"repeat": (1, "at least one round is wanted"), "sample": (0.01, "allowed are 0.01 s and more")}
    least["lease_time"] = (0.0, "allowed are 0 s and more")
    for key, (bound, wanted) in least.items():
        # Not `<`: a number that is none is wrong too.
        if not values[key] >= bound:
            problems.append(f"{key.replace('_', '-')} = {values[key]} ({sources[key]}): {wanted}")
