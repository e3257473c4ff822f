"""A vendor's environment_variables.sh, sourced once on the host; what it exports goes to every rank."""

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
# The file comes by stdin, which over SSH is a socket and cannot be opened by name: hence the here-string. What the
# file prints must not fall among the variables; a failing last command, as in many such files, is no failure, but
# what bash cannot read, it would leave out from there on.
_SOURCE = r"""_file="$(cat)"; bash -n /dev/stdin <<< "$_file" || exit 2
env -0; printf '\0'; set -a; . /dev/stdin >&2 <<< "$_file"; exec env -0"""
# The shell's own doing.
_NOT_TAKEN = frozenset(["_", "SHLVL", "PWD", "OLDPWD"])


def source_file(run: Run, env: Mapping[str, str], file: Path) -> Mapping[str, str]:
    """The variables that the file sets or changes, for processes that have ``env`` besides the place's own.

    ``run`` runs a program where the ranks will run, with a stdin and further variables: nothing is copied there.
    """
    text = file.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")  # as some editors save it
    done = run(["bash", "-c", _SOURCE, NAME], text, env)
    before, separator, after = done.out.partition("\0\0")
    if done.code != 0 or not separator:
        last = (done.err.strip().splitlines() or ["no output"])[-1].replace("/dev/stdin", NAME)
        raise RuntimeSetupError(f"{file} cannot be sourced (exit code {done.code}): {last}")
    old, new = _variables(before), _variables(after)
    return {name: value for name, value in new.items() if old.get(name) != value and name not in _NOT_TAKEN}


def with_environment_file(
    host: Host, interpreter: Interpreter, file: Path | None, said: Iterable[tuple[str, str]] = ()
) -> Interpreter:
    """The interpreter of a plain host with what the vendor says and the file sets; as it is where there is neither."""
    if environment := dict(said):
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
