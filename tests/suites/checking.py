"""Runs files of checks in a framework's environment, and offers them functions.

    python -m tests.suites.checking check SCRATCH_DIR '{"SUITE_DIR": [["FILE"]]}'
    python -m tests.suites.checking write DATA_DIR '{"SUITE_DIR": []}'

``check`` runs every function ``check_...`` of the files and prints by suite, file and check the traceback, or null.
A check that raises ``unittest.SkipTest`` is skipped, and its reason is printed.
``write`` writes the suites' tiny data to a folder.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.suites import children, reference

SUITE: Path
"""The suite's folder."""
SCRATCH: Path
"""A folder for files that the checks write."""


def context(scale: str = "small", rank: int = 0, world_size: int = 1, synthetic: bool = False, **settings: Any) -> Any:
    """Return a context as the loop passes it to a step; ``settings`` are config keys."""
    from flagperf_driver import options
    from flagperf_driver.driver import Config

    framework: Any = importlib.import_module(f"flagperf_driver.{SUITE.name}")
    names = ["_base.py", *([] if scale == "reference" else [f"_{scale}.py"])]
    measures = tomllib.loads((SUITE / "suite.toml").read_text()).get("kind") == "measurement"
    values = options.values(SUITE.name, *(SUITE / "config" / name for name in names), measures=measures)
    return framework.Context(
        config=Config({**values, **settings}), rank=rank, world_size=world_size,
        seed=settings.get("seed", 42), scale=scale, synthetic=synthetic, data_dir=SCRATCH, suite_dir=SUITE,
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


def check(suite: Path, files: list[str]) -> dict[str, dict[str, str | dict[str, str] | None]]:
    """Run the checks; return by file and check the traceback, or the reason in a dict if the check was skipped."""
    _prepare(suite, Path(sys.argv[2], suite.parent.name))
    return {file: _results(_checks(Path(file))) for file in files}


def write(suite: Path) -> dict[str, Any]:
    """Write the suite's tiny data; return the config that trains on them, and a file that a test may cut."""
    _prepare(suite, Path(sys.argv[2]))
    module = _loaded(suite / "tests" / "reference.py")
    module["write"](SCRATCH)
    return {"smaller": module["SMALLER"], "cut": module["CUT"]}


def _prepare(suite: Path, scratch: Path) -> None:
    global SUITE, SCRATCH
    SUITE, SCRATCH = suite, scratch.resolve()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    sys.modules["checking"] = sys.modules[__name__]  # what the checks import
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)


def _checks(file: Path) -> dict[str, Callable[[], None]]:
    """Return by name the checks of a file, and those that all references share."""
    module = _loaded(file)
    shared = reference.checks(module, SUITE, SCRATCH) if file.name == "reference.py" else {}
    return {**{name: check for name, check in module.items() if name.startswith("check_")}, **shared}


def _loaded(file: Path) -> Mapping[str, Any]:
    specification = importlib.util.spec_from_file_location(f"checks_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return vars(module)


def _results(checks: Mapping[str, Callable[[], None]]) -> dict[str, str | dict[str, str] | None]:
    results: dict[str, str | dict[str, str] | None] = {}
    for name, check in checks.items():
        try:
            check()
            results[name] = None
        except unittest.SkipTest as reason:
            results[name] = {"skipped": str(reason)}
        except Exception:
            results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    commands: dict[str, Callable[..., Any]] = {"check": check, "write": write}
    children.print_results(commands[sys.argv[1]], sys.argv[3])
