"""Remove secrets from the command line of a run before it is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flagperf_driver.addresses import HIDDEN

# The options of pytest and pytest-xdist whose values are stored. Values of other options may be passwords.
_PUBLIC = frozenset([
    "--basetemp", "--capture", "--color", "--config-file", "--confcutdir", "--deselect", "--dist", "--durations",
    "--durations-min", "--html", "--ignore", "--ignore-glob", "--import-mode", "--junit-prefix", "--junit-xml",
    "--junitxml", "--log-cli-level", "--log-file", "--log-level", "--max-worker-restart", "--maxfail",
    "--maxprocesses", "--numprocesses", "--rootdir", "--show-capture", "--tb", "--verbosity", "-W", "-c", "-k", "-m",
    "-n", "-p", "-r",
])  # fmt: skip
_SHORT_FLAGS = "dflqsvx"
_SHORT_WITH_VALUE = "cknmoprW"
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*", re.IGNORECASE)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of pytest without the values that may be secret."""
    return list(_without_secrets([str(argument) for argument in arguments]))


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("--"):
            yield from _long(word, remaining)
        elif word.startswith("-") and len(word) > 1:
            yield from _short(word, remaining)
        else:
            yield _path(word)


def _long(word: str, remaining: list[str]) -> Iterator[str]:
    name, equals, value = word.partition("=")
    shown = name if _OPTION.fullmatch(name) or name == "--" else HIDDEN
    if equals:
        yield f"{shown}={_value(name, value)}"
        return
    yield shown
    if remaining and _takes_a_value(name):
        yield _value(name, remaining.pop(0))


def _short(word: str, remaining: list[str]) -> Iterator[str]:
    """Yield a word of short options such as ``-xvk EXPRESSION``: flags, then an option with its value."""
    flags = re.match(f"-[{_SHORT_FLAGS}]*", word)
    assert flags is not None
    rest = word[flags.end() :]
    if not rest:
        yield word
    elif rest[0] not in _SHORT_WITH_VALUE:
        yield f"{flags[0]}{HIDDEN}"
    else:
        name = f"-{rest[0]}"
        yield f"{flags[0]}{rest[0]}{_value(name, rest[1:]) if rest[1:] else ''}"
        if not rest[1:] and remaining:
            yield _value(name, remaining.pop(0))


def _takes_a_value(name: str) -> bool:
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS

    return name in _PUBLIC or any(name == f"--{option.name}" and not option.flag for option in COMMAND_LINE_OPTIONS)


def _value(name: str, value: str) -> str:
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS

    for option in COMMAND_LINE_OPTIONS:
        if name == f"--{option.name}":
            return option.shown(value)
    return value if name in _PUBLIC else HIDDEN


def _path(word: str) -> str:
    """Return a file, a folder or a node id; hide every other word, which may be the value of an unknown option."""
    from pytest_flagperf.catalog import bundled_argument

    try:
        is_path = Path(word.partition("::")[0].removeprefix("@")).exists() or bundled_argument(word, Path.cwd())
        return word if is_path else HIDDEN
    except (OSError, ValueError):
        return HIDDEN
