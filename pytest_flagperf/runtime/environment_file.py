"""A vendor's environment_variables.sh: sourced once on the host; every rank gets the variables that it exports.

A line that only sets variables to texts and to other variables runs no program. Every other line is a command, which
the plan lists with its text: ``X=$(program)`` too. A text may have several lines unless a command precedes it: after
``echo '`` the next quote ends a text, and what follows it would run.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flagperf.hosts import Completed, Host, HostError

from . import Interpreter, RuntimeSetupError

NAME = "environment_variables.sh"
TIMEOUT_S = 60.0
Run = Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]
# The file is passed on stdin, which is a socket over SSH and cannot be opened by name: hence the here-string. Its
# output must not mix with the variables. A failing last command is allowed, as in many such files; a syntax error is
# not, because bash would ignore the rest of the file. After it only bash's own commands run: no program of a new PATH.
_SOURCE = r"""_file="$(cat)"; bash -n /dev/stdin <<< "$_file" || exit 2
env -0; printf '\0'; set -a; . /dev/stdin >&2 <<< "$_file"
_names="$(compgen -e)" || exit 3
while IFS= read -r _name; do [ -z "${!_name+x}" ] || printf '%s=%s\0' "$_name" "${!_name}"; done <<< "$_names"
"""
# Variables that the shell itself sets.
_IGNORED = frozenset(["_", "_file", "_name", "_names", "SHLVL", "PWD", "OLDPWD"])
_REFERENCE = r"\$(?:\w+\b|\{\w+(?::?[-+=][\w ./:,+%@~-]*)?\})"
_TEXT = rf"(?:[\w./:,+%@=^~-]|'[^']*'|\"(?:[^\"$`\\]|\\.|{_REFERENCE})*\"|{_REFERENCE})*"
_ASSIGNMENT = re.compile(rf"([A-Za-z_]\w*)={_TEXT}", re.ASCII)
_EXPORT = r"(?:export[ \t]+|declare[ \t]+-x[ \t]+)?"
_LINE_END = r"(?=\n)"
_END = rf"(?:[ \t]+|[ \t]*;[ \t]*|{_LINE_END})"
_ASSIGNMENTS = re.compile(rf"[ \t]*((?:{_EXPORT}{_ASSIGNMENT.pattern}{_END})+)(?:#.*)?{_LINE_END}", re.ASCII)


@dataclass(frozen=True)
class Line:
    """A line of the file: the names of the variables that it sets, or the command that it runs.

    A line whose texts have several lines has the number of the first.
    """

    number: int
    names: tuple[str, ...]
    command: str


def read_lines(file: Path) -> Iterator[Line]:
    """Yield the lines of the file that have an effect."""
    text = _read(file).decode("utf-8", "replace") + "\n"
    number, start, after_command = 1, 0, False
    while start < len(text):
        end = text.index("\n", start)
        match = _ASSIGNMENTS.match(text, start, end + 1 if after_command else len(text))
        if match and "\0" not in match[0]:  # bash ignores a null byte, also after a backslash
            end = match.end()
            yield Line(number, tuple(_ASSIGNMENT.findall(match[1])), "")
        elif (line := text[start:end].strip(" \t")) and not line.startswith("#"):  # bash's blanks, not Python's
            after_command = True
            yield Line(number, (), line)
        number += text.count("\n", start, end) + 1
        start = end + 1


def source_file(run: Run, env: Mapping[str, str], file: Path) -> Mapping[str, str]:
    """Return the variables that the file sets or changes, given the variables ``env`` and the host's own.

    ``run`` runs a program where the ranks will run, with a stdin and additional variables.
    """
    done = run(["bash", "-c", _SOURCE, NAME], _read(file), env)
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


def _read(file: Path) -> bytes:
    """Return what bash reads: without the byte order mark and the carriage returns that some editors write."""
    return file.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def _variables(text: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
