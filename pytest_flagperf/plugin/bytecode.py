"""Exclude the modules of pytest-flagperf from pytest's assertion rewriting, so that Python loads their stored bytecode.

pytest rewrites every module of an installed plugin. If it cannot store the result (``PYTHONDONTWRITEBYTECODE``, a
read-only install, a new container), it compiles all modules again at each start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PACKAGES = ("pytest_flagperf", "flagperf_driver")


class _DefaultFinder(MetaPathFinder):
    """Find these packages with Python's own finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.partition(".")[0] in _PACKAGES else None


# Before the import hook of pytest.
sys.meta_path.insert(0, _DefaultFinder())
