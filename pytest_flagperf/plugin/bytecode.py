"""Importing this module makes Python load ours from the bytecode that was made when they were installed.

pytest rewrites the assertions of every module of an installed plugin. Where it may not store what it made of them
(``PYTHONDONTWRITEBYTECODE``, a read-only install, a fresh container), it compiles all of them again at each start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_OURS = ("pytest_flagperf", "flagperf_driver")


class _Ours(MetaPathFinder):
    """Finds our modules as Python does by itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.partition(".")[0] in _OURS else None


# Before pytest's import hook.
sys.meta_path.insert(0, _Ours())
