"""Tools for this repository's own files: READMEs, targets and reference curves. Run one as ``python -m tools.readme``.

They are not part of the wheel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pytest_flagperf.commands import run_guarded

# The templates of new READMEs are in a package of our wheel.
sys.path.append(str(Path(__file__).parents[1] / "packages/scaffold"))


def run_tool(module: ModuleType, argv: Sequence[str] | None = None) -> int:
    """Run a tool as a command of flagperf runs; return its exit code."""
    return run_guarded(module.run, tool_parser(module).parse_args(argv))


def tool_parser(module: ModuleType) -> argparse.ArgumentParser:
    assert module.__spec__ is not None
    parser = argparse.ArgumentParser(prog=f"python -m {module.__spec__.name}", description=module.__doc__)
    module.add_arguments(parser)
    return parser
