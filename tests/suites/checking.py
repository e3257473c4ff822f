"""Functions for the checks of the text suites; import this module first, so that the suite's modules can be imported.

A file of checks is run as ``python <model>_checks.py SUITE_DIR SCRATCH_DIR``.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SUITE, SCRATCH = (Path(argument).resolve() for argument in sys.argv[1:3])
REPO = SUITE.parents[2]
sys.path[:0] = [str(REPO), str(REPO / "suites"), str(SUITE)]


def context(scale: str = "small", rank: int = 0, world_size: int = 1, synthetic: bool = False, **settings: Any) -> Any:
    """Return a context as the loop passes it to a step."""
    config: dict[str, Any] = {}
    files = [REPO / "flagperf_driver/defaults.py", SUITE / "config/_base.py"]
    for file in files + ([SUITE / "config/_small.py"] if scale == "small" else []):
        config.update({key: value for key, value in runpy.run_path(str(file)).items() if key[0] != "_"})
    return SimpleNamespace(
        config=SimpleNamespace(**{**config, **settings}), device=torch.device("cpu"), rank=rank,
        world_size=world_size, seed=settings.get("seed", 42), scale=scale, synthetic=synthetic,
        data_dir=SCRATCH, suite_dir=SUITE,
    )  # fmt: skip


def raises(error: type[Exception], call: Callable[[], object], *words: str) -> None:
    """Check that the call raises the error with these words in its message."""
    try:
        call()
    except error as problem:
        missing = [word for word in words if word not in str(problem)]
        if missing:
            raise AssertionError(f"{problem} does not contain {missing}") from problem
    else:
        raise AssertionError(f"no error; expected {error.__name__} with {words}")


def run(checks: Mapping[str, Any]) -> None:
    """Run each ``check_...`` and print one JSON line with each check's traceback, or null."""
    torch.set_num_threads(1)
    results: dict[str, str | None] = {}
    for name, check in list(checks.items()):
        if name.rpartition(".")[2].startswith("check_"):
            try:
                check()
                results[name] = None
            except Exception:
                results[name] = traceback.format_exc()
    print(json.dumps(results))


def main() -> None:
    """Run all modules in the suite's folder ``checks``; with --write, write the tiny data directory only."""
    sys.modules["checking"] = sys.modules["__main__"]
    sys.path.insert(0, str(SUITE / "checks"))
    if "--write" in sys.argv:
        reference_data = importlib.import_module("reference_data")
        reference_data.write(SCRATCH)
        print(json.dumps(reference_data.SMALLER))
        return
    checks = {
        f"{file.stem}.{name}": value
        for file in sorted(SUITE.glob("checks/*.py"))
        for name, value in vars(importlib.import_module(file.stem)).items()
        if name.startswith("check_")
    }
    run(checks)


if __name__ == "__main__":
    main()
