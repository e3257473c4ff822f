"""A vendor's environment_variables.sh: sourced once on the host; every rank gets the variables that it exports."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.hosts import Completed, Host, HostError

from . import Interpreter, RuntimeSetupError

NAME = "environment_variables.sh"
TIMEOUT_S = 60.0
Run = Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]
# The file is passed on stdin, which is a socket over SSH and cannot be opened by name: hence the here-string. Its
# output must not mix with the variables. A failing last command is allowed, as in many such files; a syntax error is
# not, because bash would ignore the rest of the file.
_SOURCE = r"""_file="$(cat)"; bash -n /dev/stdin <<< "$_file" || exit 2
env -0; printf '\0'; set -a; . /dev/stdin >&2 <<< "$_file"; exec env -0"""
# Variables that the shell itself sets.
_IGNORED = frozenset(["_", "SHLVL", "PWD", "OLDPWD"])


def source_file(run: Run, env: Mapping[str, str], file: Path) -> Mapping[str, str]:
    """Return the variables that the file sets or changes, given the variables ``env`` and the host's own.

    ``run`` runs a program where the ranks will run, with a stdin and additional variables.
    """
    text = file.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")  # as some editors save it
    done = run(["bash", "-c", _SOURCE, NAME], text, env)
    before, separator, after = done.out.partition("\0\0")
    if done.code != 0 or not separator:
        last = (done.err.strip().splitlines() or ["no output"])[-1].replace("/dev/stdin", NAME)
        raise RuntimeSetupError(f"{file} cannot be sourced (exit code {done.code}): {last}")
    old, new = _variables(before), _variables(after)
    return {name: value for name, value in new.items() if old.get(name) != value and name not in _IGNORED}


def with_environment_file(
    host: Host, interpreter: Interpreter, file: Path | None, variables: Iterable[tuple[str, str]] = ()
) -> Interpreter:
    """Return the interpreter with the vendor's variables and those that the file sets."""
    if environment := dict(variables):
        interpreter = replace(interpreter, env={**interpreter.env, **environment})
    if file is None or not file.is_file():
        return interpreter

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        return host.run(argv, timeout_s=TIMEOUT_S, stdin=stdin, env=env)

    try:
        changed = source_file(run, interpreter.env, file)
    except RuntimeSetupError as error:
        raise RuntimeSetupError(f"{host.name}: {error}") from error
    except HostError as error:
        raise type(error)(f"{error}; the command was to source {file}") from error
    return replace(interpreter, env={**interpreter.env, **changed})


def _variables(text: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
