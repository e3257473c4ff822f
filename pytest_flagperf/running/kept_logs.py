"""Fetch the logs of a stored run that its hosts summed up and kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from pytest_flagperf.catalog import scan
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine
from pytest_flagperf.engines.open_engine import open_engine
from pytest_flagperf.hooks.roots import installed_roots
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored.round_dir import planned_rounds

from .resume import with_stored_options


def fetch(run_dir: Path, names: Collection[str], cwd: Path) -> Iterator[tuple[bool, str]]:
    """Fetch the logs from the hosts of these names, or from all hosts, with the options of the run.

    Yield for each host whether its logs are those that it summed up, and a sentence.
    """
    settings = read_settings(with_stored_options({"resume": str(run_dir.absolute())}, cwd), cwd, cwd)
    engine = open_engine(settings, scan(settings, installed_roots(), cwd), cwd)
    try:
        if not isinstance(engine, AgentsEngine):
            raise Problems([f"--fetch-logs: the hosts of --engine={settings.engine} keep no logs"])
        for one in planned_rounds(run_dir):
            yield from engine.late_logs.fetch_kept(one.path, names)
    finally:
        engine.close()
