"""The Python at hand, as it is: nothing is installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from typing import Any

from pytest_flagperf.cluster import Host

from . import Interpreter, Progress, RuntimeSetupError, Wanted
from .requirements import Line, union

_TIMEOUT_S = 60.0
# What a distribution is called and what is imported can differ: either will do.
_LOOK = """
import importlib.metadata as metadata, importlib.util as util, json, platform, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "there" if util.find_spec(name.replace("-", "_")) else None
found = {name: version(name) for name in sys.argv[1:]}
print(json.dumps({"found": found, "python": platform.python_version(), "executable": sys.executable}))
"""


def prepare(host: Host, wanted: Wanted, progress: Progress, code: Any = None) -> Interpreter:  # noqa: ARG001
    """``wanted.python``, else the ``python3`` on the PATH, else our own; with all that the suite needs."""
    python = wanted.python or shutil.which("python3") or host.python
    names = _names(union(wanted.requirements))
    done = host.run([python, "-c", _LOOK, *names], timeout_s=_TIMEOUT_S)
    if done.code != 0:
        raise RuntimeSetupError(f"{host.name}: {python} does not work: {_last(done.err)}")
    answer = json.loads(done.out)
    missing = [name for name, version in answer["found"].items() if version is None]
    if missing:
        raise RuntimeSetupError(
            f"{host.name}: {answer['executable']} (Python {answer['python']}) lacks {', '.join(missing)}, "
            f"which {wanted.framework} suites need; install them there, name another Python with --python, "
            "or let --runtime=venv build an environment"
        )
    details = {"python": answer["python"], **{name: str(found) for name, found in answer["found"].items()}}
    progress(f"Python {answer['python']} at {answer['executable']}")
    return Interpreter(answer["executable"], {}, f"host: {answer['executable']}", details)


def _names(lines: Iterable[Line]) -> list[str]:
    parsed = (line.requirement for line in lines)
    return [each.name for each in parsed if each and (each.marker is None or each.marker.evaluate())]


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
