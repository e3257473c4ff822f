"""What to do after a first run: open its page, run one model, add a vendor."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flagperf.report.terminal.summary import Closing
    from pytest_flagperf.running.run import Run


def next_steps(run: Run, end: Closing, config: pytest.Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines to show after a run without any option of ours, which no program reads."""
    if not end.cases or not run.settings.all_default or "CI" in environment or config.get_verbosity() < 0:
        return
    page = next((path for path in end.reports if path.endswith(".html")), None)
    folders = config.known_args_namespace.file_or_dir
    model = end.cases[0].case.partition(":")[0]
    yield "next:"
    if page:
        yield f"  open {page} in a browser"
    yield f"  {shlex.join([_program('pytest'), *folders, '-k', model])}  # one model"
    yield f"  {_program('flagperf')} new-vendor NAME --hw=CHIP  # a folder for another vendor"


def _program(name: str) -> str:
    """The program as a shell in the current directory finds it."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found) == own:
        return name
    return os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)
