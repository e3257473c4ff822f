"""The format ``mlperf`` of ``flagperf export``: result files as MLPerf's tools read them, and rules to check them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_flagperf.hooks import Exporter, hookimpl

if TYPE_CHECKING:
    from pytest_flagperf.results import StoredRun

FORMAT = "mlperf"


@hookimpl
def flagperf_exporters() -> list[Exporter]:
    return [Exporter(FORMAT, write)]


def write(runs: Sequence[StoredRun], folder: Path) -> None:
    """Write a submission's folders below ``mlperf/``; warn about each round that is left out."""
    # Imported only for this format: other commands import each plugin too.
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.results.tables.frames import RunWarning

    from .submission import export, suites_folder

    exported = export(runs, folder / FORMAT, suites=suites_folder())
    if not exported.cases:
        raise Problems(exported.left_out)
    for sentence in exported.left_out:
        warnings.warn(f"left out: {sentence}", RunWarning, stacklevel=2)
