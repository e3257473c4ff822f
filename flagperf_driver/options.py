"""The config keys with their defaults.

``defaults.py`` has those of trainings in every framework, ``<framework>/defaults.py`` those of trainings in one, and
``measuring/defaults.py`` those of measurements.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def files(framework: str, folder: Path = FOLDER, *, measures: bool = False) -> list[Path]:
    """Return the files with the keys of a framework's suites, or of those that measure: common keys first."""
    if measures:
        return [folder / "measuring" / "defaults.py"]
    own = folder / framework / "defaults.py"
    return [folder / "defaults.py", *([own] if own.is_file() else [])]


def values(framework: str, *more: Path, measures: bool = False) -> dict[str, Any]:
    """Return the default values of a framework's options, and of further config files, without the framework itself."""
    named: dict[str, Any] = {}
    for file in (*files(framework, measures=measures), *more):
        named.update(runpy.run_path(str(file)))
    return {key: value for key, value in named.items() if key[0].islower() and key != "annotations"}
