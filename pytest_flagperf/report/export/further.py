"""The formats that installed plugins add to ``flagperf export``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.hooks import Exporter, Plugin
from pytest_flagperf.hooks.plugins import guard, named
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.results.tables.store import StoredRun

_OWN = ("csv", "parquet")


def find_exporter(name: str) -> tuple[Plugin, Exporter]:
    """Return the exporter of a format with its plugin; Problems if no plugin has the format, or several have."""
    exporters = named("flagperf_exporters", Exporter, _OWN)
    if name in _OWN:
        raise Problems([f"--format={name}: pass --{name}"])
    if name not in exporters:
        choices = f"choose from {', '.join(exporters)}" if exporters else "no installed plugin has a format"
        raise Problems([f"--format={name}: unknown format{near(name, exporters) or f'; {choices}'}"])
    return exporters[name]


def write(found: tuple[Plugin, Exporter], runs: Sequence[StoredRun], directory: Path) -> list[Path]:
    """Write the files of a format into a directory, all or none; return their paths."""
    plugin, exporter = found
    temporary = Path(tempfile.mkdtemp(dir=directory, prefix=f".{exporter.name}."))
    try:
        guard(plugin, f"format {exporter.name}", lambda: exporter.write(runs, temporary))
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        if not files:
            raise Problems([f"{plugin.label}: format {exporter.name} wrote no file"])
        targets = [directory / path.relative_to(temporary) for path in files]
        for file, target in zip(files, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
        return targets
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
