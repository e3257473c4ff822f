"""The formats that installed plugins add to ``flagperf export``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from pytest_flagperf.hooks import Exporter, Plugin
from pytest_flagperf.hooks.plugins import guard, named
from pytest_flagperf.packages import advice
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.results.tables.store import StoredRun


def find_exporter(name: str, own: Collection[str]) -> tuple[Plugin, Exporter]:
    """Return the exporter of a format with its plugin; Problems if no plugin has the format, or several have.

    ``own`` are the formats of pytest-flagperf.
    """
    exporters = named("flagperf_exporters", Exporter, own)
    if name not in exporters:
        choices = [*own, *exporters]
        hint = near(name, choices) or f"; choose from {', '.join(choices)}"
        problem = advice(name) or f"unknown format{hint}"
        raise Problems([f"--format={name}: {problem}"])
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
        for folder in (path for path in temporary.iterdir() if path.is_dir()):
            if (existing := directory / folder.name).exists():
                raise Problems([f"{existing}: already exists; choose another folder with --to, or remove it first"])
        targets = [directory / path.relative_to(temporary) for path in files]
        for file, target in zip(files, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
        return targets
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
