"""The packages that an interpreter of this host has, as a rank finds them: with a rank's environment and path.

It serves one request (see ``request_server``): ``{"python", "packages": [name, ...], "env": {a rank's variables},
"first": [folder, ...]}``; the folders ``first`` precede PYTHONPATH.
The answer has ``packages``, each with its version, the ``markers`` and ``executable`` of the interpreter, the ``base``
if it belongs to a virtual environment, and ``path``: the folders ``first`` and those of the PYTHONPATH with which this
module was started, which ranks also get.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Mapping

from flagperf_driver.node.request_server import Answer, Request, RequestError, serve
from flagperf_driver.node.temporary import user_packages
from flagperf_driver.rank_process import RankProcess

_TIMEOUT_S = 60.0
_SHOWN = 80
# The name of a distribution and of its module can differ: either is accepted. The first entry of the path is the
# current folder, which ranks do not have on theirs.
_INSPECT = """
import sys
del sys.path[0]
import importlib.metadata as metadata, importlib.util as util, json, os, platform
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "installed" if util.find_spec(name.replace("-", "_")) else None
packages = {name: version(name) for name in sys.argv[1:]}
markers = {
    "python_version": "%d.%d" % sys.version_info[:2], "python_full_version": platform.python_version(),
    "os_name": os.name, "sys_platform": sys.platform, "platform_machine": platform.machine(),
    "platform_system": platform.system(), "platform_release": platform.release(),
    "platform_version": platform.version(), "implementation_name": sys.implementation.name,
    "platform_python_implementation": platform.python_implementation(),
}
base = sys.base_prefix if sys.prefix != sys.base_prefix else ""
print(json.dumps({"packages": packages, "markers": markers, "executable": sys.executable, "base": base}))
"""


def caller_path(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH; a relative one is relative to the caller's folder, not to that of a rank."""
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys(str(Path.cwd() / entry) for entry in entries if entry)]


def handle(request: Request) -> Answer:
    python, path = str(request["python"]), [*map(str, request["first"]), *caller_path(os.environ)]
    own = {**request["env"], "PYTHONPATH": os.pathsep.join(path)}
    rank = RankProcess(0, (), {str(name): str(value) for name, value in own.items()}, "/")
    environment = {**rank.environment(os.environ, user_packages()), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-c", _INSPECT, *map(str, request["packages"])]
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        return {**found, "path": path}
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        problem = lines[-1] if lines else f"exit code {error.returncode}"
    except (ValueError, IndexError, TypeError):
        problem = f"expected a program of Python, got one that prints {done.stdout[:_SHOWN]!r}"
    except (OSError, subprocess.SubprocessError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    raise RequestError(f"{python} does not work: {problem}")


if __name__ == "__main__":
    serve(handle)
