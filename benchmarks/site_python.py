"""Find a Python of this site that has PyTorch and sees the device: nothing is installed where one exists.

    python -m benchmarks.site_python --vendor=nvidia --model=bert PROGRAM ARGUMENT...

This command continues as the program in the Python of the model's ranks, with their packages and variables.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.problems import Problems
from pytest_flagperf.runtime import RuntimeSetupError, runtimes
from pytest_flagperf.settings import read_settings

from .section import REPO

LIMIT_S = 120.0
"""Longest duration of a first import of PyTorch with its CUDA context, from a slow disk."""
_ASK = """
import sys
try:
    import torch
except ImportError as error:
    sys.exit(f"no PyTorch: {error}")
try:
    torch.ones(2, device=sys.argv[1]).sum().item()
except Exception as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    sys.exit(f"PyTorch {torch.__version__} cannot use {sys.argv[1]}: {reason}")
print(torch.__version__)
"""


class SitePythonError(Exception):
    """The Python that the user names cannot be used."""


@dataclass(frozen=True)
class SitePython:
    """An interpreter of this site with PyTorch."""

    python: str
    torch: str

    @property
    def words(self) -> list[str]:
        """The options with which pytest uses it."""
        return ["--runtime=host", f"--python={self.python}"]


def find(device: str, given: str | None, settings: Mapping[str, object]) -> tuple[SitePython | None, str]:
    """Return the first Python whose PyTorch computes on the device, and a line with the reason for the choice.

    ``given`` is the user's own choice, ``settings`` the table of flagperf.toml. Raise SitePythonError if the user's
    choice does not work. Without any such Python, pytest's own choice remains.
    """
    runtime = settings.get("runtime")
    if runtime not in (None, "host", "auto") and not given:
        return None, f"Python of the ranks: runtime {runtime} (flagperf.toml)"
    refused: list[str] = []
    for source, python in _candidates(given, settings):
        name = f"{python} ({source})"
        answer = _ask(python, device)
        if isinstance(answer, SitePython):
            others = f"; not {', '.join(refused)}" if refused else ""
            return answer, f"Python of the ranks: {name} with PyTorch {answer.torch}{others}"
        if python == given:
            raise SitePythonError(
                f"SITE_PYTHON={given}: {answer}; expected a Python whose PyTorch computes on {device}."
                " Pass another one, or none: make gpu"
            )
        refused.append(f"{name}: {answer}")
    return None, f"Python of the ranks: the vendor's runtime; not {', '.join(refused) or 'python3: not found on PATH'}"


def _candidates(given: str | None, settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the source and the path of each Python to ask, once."""
    active = os.environ.get("VIRTUAL_ENV")
    known = {
        "SITE_PYTHON": given,
        "flagperf.toml": settings.get("python"),
        "VIRTUAL_ENV": f"{active}/bin/python" if active else None,
        "PATH": shutil.which("python3"),
        "the base of this environment": f"{sys.base_prefix}/bin/python3",  # an active environment hides it on the PATH
    }
    asked: set[str] = set()
    for source, python in known.items():
        if python and str(python) not in asked:
            asked.add(str(python))
            yield source, str(python)


def _ask(python: str, device: str) -> SitePython | str:
    """Return the interpreter with the version of its PyTorch, or the reason why it cannot be used."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, device], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S:.0f} s"
    except OSError as error:
        return f"{error.strerror}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return SitePython(shutil.which(python) or python, done.stdout.strip())


def main() -> None:
    """Continue as a program in the Python, with the packages and variables, of a model's ranks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_python")
    for name in ("--vendor", "--model"):
        parser.add_argument(name, required=True)
    for name in ("--runtime", "--python", "--wheels"):
        parser.add_argument(name, help="as pytest's")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    catalog = Catalog.scan([REPO])
    vendor = catalog.vendor(options.vendor)
    case = Case.parse(f"{options.model}:pytorch:{next(iter(vendor.chips))}:1:1:1")
    try:
        given = {name: getattr(options, name) for name in ("runtime", "python", "wheels")}
        settings = read_settings(given, REPO)
        name = settings.runtime or vendor.toml.runtime
        runtime = runtimes()["venv" if name == "auto" else name]
        if runtime.uses_images:
            sys.exit(f"expected runtime venv or host, got {name}: this program does not run in a container")
        request = runtime_request(settings, catalog, case, vendor, "venv" if name == "auto" else name)
        interpreter = runtime.prepare(LocalHost(), request, lambda line: print(line, flush=True), pack({}))
    except (Problems, RuntimeSetupError) as error:
        sys.exit(str(error))
    path = os.pathsep.join([str(REPO), str(REPO / "suites"), *interpreter.path])
    environment = {**os.environ, **interpreter.env, "PYTHONPATH": path}
    os.execve(interpreter.python, [interpreter.python, *options.program], environment)


if __name__ == "__main__":
    main()
