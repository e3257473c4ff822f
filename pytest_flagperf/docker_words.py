"""The options of ``docker run``, parsed as Docker parses them, and without their secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from flagperf_driver.addresses import HIDDEN

ARGUMENTS = {
    "--gpus": "device_requests", "--device": "devices", "--volume": "mounts", "--mount": "mounts", "--tmpfs": "tmpfs",
    "--env": "environment", "--privileged": "privileged", "--cap-add": "cap_add", "--cap-drop": "cap_drop",
    "--group-add": "group_add", "--security-opt": "security_opt", "--ulimit": "ulimits", "--ipc": "ipc_mode",
    "--pid": "pid_mode", "--uts": "uts_mode", "--network": "network_mode", "--add-host": "extra_hosts",
    "--hostname": "hostname", "--shm-size": "shm_size", "--memory": "mem_limit", "--memory-swap": "memswap_limit",
    "--cpus": "nano_cpus", "--pids-limit": "pids_limit", "--runtime": "runtime", "--user": "user", "--init": "init",
    "--entrypoint": "entrypoint", "--workdir": "working_dir",
}  # fmt: skip
"""The supported options, each with the argument of docker-py."""
FLAGS = frozenset(["--init", "--privileged"])
"""Those without a value."""
_SECRET = frozenset(["--entrypoint", "--env", "--mount", "--tmpfs"])
"""Those whose values are hidden. Other values are stored and shown where they have only the characters of _PLAIN."""
_SHORT = {"-e": "--env", "-h": "--hostname", "-m": "--memory", "-u": "--user", "-v": "--volume", "-w": "--workdir"}
_ALIASES = {"--net": "--network"}
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
            yield _short(word[1:], remaining)
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
    if value is None or (name in ARGUMENTS.keys() - _SECRET and _PLAIN.fullmatch(value)):
        return value or ""
    variable, equals, _ = value.partition("=")
    if name == "--env" and _VARIABLE.fullmatch(variable):
        return f"{variable}={HIDDEN}" if equals else variable
    return HIDDEN


def _option_shown(name: str, value: str | None) -> str:
    if not name:
        return HIDDEN
    if name in FLAGS and value == "true":
        return name
    return f"{name_shown(name)} {value_shown(name, value)}".rstrip()


def _long(word: str, remaining: list[str]) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    name = _ALIASES.get(name, name)
    if equals:
        return name, value
    return name, "true" if name in FLAGS else _following(name, remaining)


def _short(letters: str, remaining: list[str]) -> tuple[str, str | None]:
    """Return a short option with its value, as in ``-eNAME=VALUE``."""
    name = _SHORT.get(f"-{letters[0]}", f"-{letters[0]}")
    value = letters[1:].removeprefix("=")
    return name, value if letters[1:] else _following(name, remaining)


def _following(name: str, remaining: list[str]) -> str | None:
    """Take the next word as the value of an option; an unknown option may or may not take a value."""
    if not remaining or (name not in ARGUMENTS and remaining[0].startswith("-")):
        return None
    return remaining.pop(0)
