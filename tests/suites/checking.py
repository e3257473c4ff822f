"""What the checks of the text suites share; imported first, it makes the suite's own modules importable.

A file of checks is run as ``python <model>_checks.py SUITE_DIR SCRATCH_DIR``.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SUITE, SCRATCH = (Path(argument) for argument in sys.argv[1:3])
REPO = SUITE.parents[2]
sys.path[:0] = [str(REPO), str(REPO / "suites"), str(SUITE)]


def context(scale: str = "small", rank: int = 0, world_size: int = 1, synthetic: bool = False, **settings: Any) -> Any:
    """What the loop would tell a step."""
    config: dict[str, Any] = {}
    files = [REPO / "flagperf_driver/defaults.py", SUITE / "config/_base.py"]
    for file in files + ([SUITE / "config/_small.py"] if scale == "small" else []):
        config.update({key: value for key, value in runpy.run_path(str(file)).items() if key[0] != "_"})
    return SimpleNamespace(
        config=SimpleNamespace(**{**config, **settings}), device=torch.device("cpu"), rank=rank,
        world_size=world_size, seed=settings.get("seed", 42), scale=scale, synthetic=synthetic,
        data_dir=SCRATCH, suite_dir=SUITE,
    )  # fmt: skip


def refused(error: type[Exception], call: Callable[[], object], *words: str) -> None:
    """The call must fail, and say these words."""
    try:
        call()
    except error as problem:
        absent = [word for word in words if word not in str(problem)]
        if absent:
            raise AssertionError(f"{problem} does not say {absent}") from problem
    else:
        raise AssertionError(f"not refused: wanted {error.__name__} saying {words}")


def run(checks: Mapping[str, Any]) -> None:
    """Run each ``check_...``; print one JSON line: each check's traceback, or null."""
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    for name, check in list(checks.items()):
        if name.startswith("check_"):
            try:
                check()
                found[name] = None
            except Exception:
                found[name] = traceback.format_exc()
    print(json.dumps(found))
