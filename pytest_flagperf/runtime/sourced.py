"""A vendor's environment_variables.sh, sourced once on the host; what it exports goes to every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.cluster import Host

from . import Interpreter, RuntimeSetupError

NAME = "environment_variables.sh"
_TIMEOUT_S = 60.0
# What the file prints must not fall among the variables; a failing last command, as in many such files, is no failure.
_SOURCE = 'set -a; . "$0" >&2; exec env -0'
# The shell's own doing.
_NOT_TAKEN = frozenset(["_", "SHLVL", "PWD", "OLDPWD"])


def sourced(host: Host, interpreter: Interpreter, folder: Path) -> Interpreter:
    """The interpreter with what the file in a case's config folder sets; as it is where there is no such file."""
    file = folder / NAME
    if not file.is_file():
        return interpreter
    before = _variables(host, ["env", "-0"], interpreter.env)
    after = _variables(host, ["bash", "-c", _SOURCE, str(file)], interpreter.env)
    changed = {name: value for name, value in after.items() if before.get(name) != value and name not in _NOT_TAKEN}
    return replace(interpreter, env={**interpreter.env, **changed})


def _variables(host: Host, argv: list[str], env: Mapping[str, str]) -> dict[str, str]:
    done = host.run(argv, timeout_s=_TIMEOUT_S, env=env)
    if done.code != 0:
        last = (done.err.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeSetupError(f"{host.name}: {argv[-1]} cannot be sourced (exit code {done.code}): {last}")
    pairs = (entry.partition("=") for entry in done.out.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
