"""The options of ``docker run``, parsed as Docker parses them, and without their secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from flagperf_driver.addresses import HIDDEN

# Docker's options without a value; every other one takes a value.
_FLAGS = frozenset(
    [
        "--detach",
        "--disable-content-trust",
        "--help",
        "--init",
        "--interactive",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--privileged",
        "--publish-all",
        "--quiet",
        "--read-only",
        "--rm",
        "--sig-proxy",
        "--tty",
        "--use-api-socket",
    ]
)
_SHORT = {
    "-P": "--publish-all",
    "-a": "--attach",
    "-c": "--cpu-shares",
    "-d": "--detach",
    "-e": "--env",
    "-h": "--hostname",
    "-i": "--interactive",
    "-l": "--label",
    "-m": "--memory",
    "-p": "--publish",
    "-q": "--quiet",
    "-t": "--tty",
    "-u": "--user",
    "-v": "--volume",
    "-w": "--workdir",
}
_ALIASES = {"--net": "--network"}

# The options whose values are stored and shown, where a value has these characters only. All other values are hidden.
_PUBLIC = frozenset(
    [
        "--add-host",
        "--cap-add",
        "--cap-drop",
        "--cpus",
        "--device",
        "--gpus",
        "--group-add",
        "--hostname",
        "--ipc",
        "--memory",
        "--memory-swap",
        "--network",
        "--pid",
        "--pids-limit",
        "--runtime",
        "--security-opt",
        "--shm-size",
        "--ulimit",
        "--user",
        "--uts",
        "--volume",
        "--workdir",
    ]
)
_SECRET = frozenset(["--entrypoint", "--env", "--mount", "--tmpfs"])
_PLAIN = re.compile(r"[\w./:,={}$~%+-]*")
_NAME = re.compile(r"--[a-z][a-z0-9-]*|-[A-Za-z]")
_VARIABLE = re.compile(r"[\w.-]+")


def options(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option by its long name with its value; None where the value is missing.

    A flag has the value ``true``. A word without an option is yielded as the value of an option without a name.
    """
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("--"):
            yield _long(word, remaining)
        elif word.startswith("-") and len(word) > 1:
            yield from _cluster(word[1:], remaining)
        else:
            yield "", word


def shown(text: str) -> str:
    """Return the options without values that may be secret; variables keep their names.

    Options without secrets are returned unchanged.
    """
    try:
        parsed = list(options(shlex.split(text)))
    except ValueError:  # an unclosed quote: the end of the value is unknown
        return HIDDEN
    if all(name and value_shown(name, value) == (value or "") for name, value in parsed):
        return text
    return " ".join(_option_shown(name, value) for name, value in parsed)


def name_shown(name: str) -> str:
    """Return the name of an option; a word that cannot be such a name is hidden."""
    return name if _NAME.fullmatch(name) else HIDDEN


def value_shown(name: str, value: str | None) -> str:
    """Return the value of an option where it may be shown, of a variable its name."""
    if value is None or (name in _PUBLIC | _FLAGS and _PLAIN.fullmatch(value)):
        return value or ""
    variable, equals, _ = value.partition("=")
    if name == "--env" and _VARIABLE.fullmatch(variable):
        return f"{variable}={HIDDEN}" if equals else variable
    return HIDDEN


def _option_shown(name: str, value: str | None) -> str:
    if not name:
        return HIDDEN
    if name in _FLAGS and value == "true":
        return name
    return f"{name_shown(name)} {value_shown(name, value)}".rstrip()


def _long(word: str, remaining: list[str]) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    name = _ALIASES.get(name, name)
    if equals:
        return name, value
    if name in _FLAGS:
        return name, "true"
    # An unknown option may or may not take a value.
    if not remaining or (name not in _PUBLIC | _SECRET and remaining[0].startswith("-")):
        return name, None
    return name, remaining.pop(0)


def _cluster(letters: str, remaining: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the short options of one word, as in ``-ite NAME=VALUE``: flags, then one option with its value."""
    while letters:
        short, letters = f"-{letters[0]}", letters[1:]
        name = _SHORT.get(short, short)
        if letters.startswith("="):
            yield name, letters[1:]
            return
        if name in _FLAGS:
            yield name, "true"
            continue
        yield name, letters or (remaining.pop(0) if remaining else None)
        return
