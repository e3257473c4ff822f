"""Load pytest-flagperf in a checkout in which it is not installed, so that ``pytest suites`` runs there.

pytest itself loads an installed plugin. docs/offline.md describes which packages a run needs.
"""

import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

# Older versions of Python and pytest, which lack some of these functions, read this file too.
is_old = sys.version_info < (3, 11)
if is_old or not entry_points(group="pytest11", name="flagperf"):
    missing = ["Python >= 3.11"] if is_old else []
    if getattr(pytest, "version_tuple", (0,)) < (9,):
        missing.append("pytest >= 9")
    missing += [name for name in ("orjson", "psutil") if find_spec(name) is None]
    if missing:
        sys.exit(
            f"pytest-flagperf needs {', '.join(missing)}; got {sys.executable}, Python {sys.version.split()[0]} with"
            f" pytest {pytest.__version__}. make setup creates an environment, . .venv/bin/activate enters it; without"
            " a package index: docs/offline.md"
        )
    sys.path.insert(0, str(Path(__file__).parent))  # with --import-mode=importlib pytest does not insert it
    pytest_plugins = ["pytest_flagperf.plugin"]
