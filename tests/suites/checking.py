"""Runs files of checks in a framework's environment, and offers them functions.

``python checking.py SUITE_DIR SCRATCH_DIR FILE...`` runs every function ``check_...`` of the files and prints one JSON
line: by file, the traceback of each check, or null. With ``--write`` instead of files it writes the suite's tiny data.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SUITE, SCRATCH = (Path(argument).resolve() for argument in sys.argv[1:3])
"""The suite's folder, and a folder for files that the checks write."""
REPO = Path(__file__).resolve().parents[2]


def context(scale: str = "small", rank: int = 0, world_size: int = 1, synthetic: bool = False, **settings: Any) -> Any:
    """Return a context as the loop passes it to a step; ``settings`` are config keys."""
    import torch

    from flagperf_driver import options
    from flagperf_driver.driver import Config
    from flagperf_driver.pytorch import Context

    names = ["_base.py", *([] if scale == "reference" else [f"_{scale}.py"])]
    values = options.values(SUITE.name, *(SUITE / "config" / name for name in names))
    return Context(
        config=Config({**values, **settings}), device=torch.device("cpu"), rank=rank, world_size=world_size,
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


def main(files: list[str]) -> None:
    sys.modules["checking"] = sys.modules[__name__]  # what the checks import
    sys.path[:0] = [str(REPO), str(SUITE.parents[1]), str(SUITE)]
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    if files[:1] == ["--write"]:
        _write_data(SUITE / "checks" / "reference_data.py")
    else:
        print(json.dumps({file: _results(_loaded(Path(file))) for file in files}))


def _write_data(file: Path) -> None:
    """Write the suite's tiny data directory; print the config that trains on it, and a file that a test may cut."""
    checks = _loaded(file)
    checks["write"](SCRATCH)
    print(json.dumps({"smaller": checks["SMALLER"], "cut": checks["CUT"]}))


def _loaded(file: Path) -> Mapping[str, Any]:
    specification = importlib.util.spec_from_file_location(f"checks_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return vars(module)


def _results(names: Mapping[str, Any]) -> dict[str, str | None]:
    results: dict[str, str | None] = {}
    for name, check in list(names.items()):
        if name.startswith("check_"):
            try:
                check()
                results[name] = None
            except Exception:
                results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    main(sys.argv[3:])
