"""Find a Python of this site that has PyTorch and sees the device: nothing is installed where one exists."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
                f"PYTHON={given}: {answer}; expected a Python whose PyTorch computes on {device}."
                " Pass another one, or none: make gpu"
            )
        refused.append(f"{name}: {answer}")
    return None, f"Python of the ranks: the vendor's runtime; not {', '.join(refused) or 'python3: not found on PATH'}"


def _candidates(given: str | None, settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the source and the path of each Python to ask, once."""
    active = os.environ.get("VIRTUAL_ENV")
    known = {
        "PYTHON": given,
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
