"""One run and its parts, independent of pytest."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf import original, stored
from pytest_flagperf.catalog import Catalog, scan
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.open_engine import open_engine
from pytest_flagperf.hooks.roots import installed_roots
from pytest_flagperf.original import TestConf
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import silent
from pytest_flagperf.selection import Absent, Selected, Selection, select
from pytest_flagperf.settings import COMMAND_LINE, Settings, read_settings
from pytest_flagperf.stored import layout, writing
from pytest_flagperf.stored.live_record import CASES, END, LiveRecord

from . import controller
from .case_lookup import CaseLookup
from .directory import RunDirectory
from .plans import Plans
from .resume import save_options, set_failed_rounds_aside, with_stored_options

if TYPE_CHECKING:
    from .records import Records
    from .rounds import Rounds
    from .scaling import ScalingRounds


class Run:
    """The settings and selected cases of a run, their plans, rounds and records."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        selection: Selection,
        directory: RunDirectory,
        engine: Engine,
        *,
        visible_devices: str | None = None,
        log_level: str = "",
    ) -> None:
        self.started_ms = time.time_ns() // 1_000_000
        self.settings = settings
        self.catalog = catalog
        self.selection = selection
        self.directory = directory
        self.engine = engine
        self.log_level = log_level
        """The level in FlagPerf's test_conf.py: debug, info, warning or error; empty without one."""
        self.case_lookup = CaseLookup(catalog, selection)
        self.plans = Plans(settings, catalog, engine, directory, visible_devices)
        self.live = silent()
        """The progress output of the rounds."""
        self.notes: list[str] = []
        self.requested: tuple[Selected | Absent, ...] = ()
        """The cases of the tests that pytest selected, also those that cannot run."""
        self.controller_before: controller.Figures = {}
        """The load and memory of the controller before the first case."""

    @classmethod
    def open(
        cls,
        root: Path,
        cwd: Path,
        command_line: Mapping[str, Any],
        directory: Path | None,
        *,
        bundled_suites: bool = False,
    ) -> Run | None:
        """Return the run of a tree; None without suites, or Problems if an option requires a run.

        ``bundled_suites`` adds the suites of the wheel to those of the tree.
        """
        settings = read_settings(with_stored_options(command_line, cwd), root, cwd)
        conf = original.read_test_conf(root / settings.test_conf) if settings.test_conf else None
        if conf is not None:
            settings = _with_conf(settings, conf)
        catalog = scan(settings, installed_roots(), bundled_suites=bundled_suites)
        if not catalog.suites:
            if settings.given("roots") or COMMAND_LINE in settings.sources.values():
                searched = ", ".join(map(str, catalog.roots))
                raise Problems([f"no suites: suites/<model>/<framework>/suite.toml not found in {searched}"])
            return None
        settings, engine, hosts = open_engine(settings, catalog, root)
        return cls(
            settings,
            catalog,
            select(settings, catalog, conf, hosts),
            _directory(settings, root, directory),
            engine,
            visible_devices=_text(conf, "ACCE_VISIBLE_DEVICE_ENV_NAME") or None,
            log_level=_text(conf, "FLAGPERF_LOG_LEVEL"),
        )

    # The modules of these parts read results and load slowly: they are imported when the first round needs them, or
    # by ``prepare`` while the hosts answer.

    @cached_property
    def records(self) -> Records:
        """The verdicts and results of this run."""
        from .records import Records

        return Records(self.directory)

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of this run."""
        from .rounds import Rounds

        return Rounds(self.plans, self.engine, self.directory, self.records, self.live)

    @cached_property
    def scaling(self) -> ScalingRounds:
        """The measured speed-ups of this run."""
        from .scaling import ScalingRounds

        return ScalingRounds(self.plans, self.rounds, self.directory)

    def prepare(self, chosen: Sequence[Selected]) -> list[str]:
        """Exclude hosts and devices that are not usable; return a line for each."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._load)
            return self.plans.prepare(chosen, self.live)

    def _load(self) -> None:
        """Import what the rounds and their reports need."""
        import psutil  # noqa: F401 - for the figures of the controller

        from pytest_flagperf.report.export import junit  # noqa: F401
        from pytest_flagperf.report.page import page  # noqa: F401
        from pytest_flagperf.report.terminal import summary  # noqa: F401

        _ = self.rounds, self.scaling

    def begin(self, chosen: Sequence[Selected]) -> list[str]:
        """Save the options so that --resume can continue this run, and set failed rounds of a resumed run aside."""
        self.controller_before = controller.before_run()
        directory = self.directory.path
        lines = set_failed_rounds_aside(directory) if self.settings.resume else []
        # The results of a resumed run are not made from its new rounds; they are written again at its end.
        (directory / layout.RESULTS).unlink(missing_ok=True)
        stored.write(directory / layout.LEFT_OUT, self.engine.left_out)
        save_options(directory, self.settings, ((str(selected.case), selected.data_dir) for selected in chosen))
        return lines

    def start_live(self, process: str, chosen: Sequence[Selected] = ()) -> None:
        """Begin the live record of this process in the run's directory, with the cases that will run."""
        self.live.start(LiveRecord(self.directory.path / layout.LIVE / layout.live_file(process)))
        if chosen:
            cases = [{"case": str(selected.case), "rounds": len(selected.rounds)} for selected in chosen]
            self.live.record.write(CASES, cases=cases)

    def end_live(self, exit_status: int | None) -> None:
        """End the live record of this process with pytest's exit status."""
        self.live.record.write(END, exit=exit_status)
        self.live.close()

    def close(self, junit: Path | None) -> None:
        """Copy the JUnit file into the run directory; remove the directory of a run without results."""
        if "records" not in vars(self) or self.records.results is None:
            self.directory.remove_if_unused()
            return
        own = self.directory.path / layout.JUNIT
        if junit is not None and junit.is_file() and junit.resolve() != own.resolve():
            with writing(own):
                shutil.copyfile(junit, own)


def _directory(settings: Settings, root: Path, given: Path | None) -> RunDirectory:
    """Return the directory that another process created, that of the run to resume, or a new one."""
    existing = given or (Path(settings.resume) if settings.resume else None)
    if existing is not None:
        return RunDirectory(existing, is_made=True)
    reports = root / Path(settings.reports).expanduser()
    return RunDirectory(reports / time.strftime("run%Y%m%d%H%M%S"))


def _with_conf(settings: Settings, conf: TestConf) -> Settings:
    """Return the settings with the values of FlagPerf's test_conf.py where the command line has none."""
    given: dict[str, Any] = {
        key: value for key, value in conf.settings.items() if settings.sources[key] != COMMAND_LINE
    }
    sources = {**settings.sources, **dict.fromkeys(given, str(conf.file))}
    return replace(settings, **given, sources=sources)


def _text(conf: TestConf | None, name: str) -> str:
    """Return a value of FlagPerf's test_conf.py; empty without one."""
    return str(conf.value(name) or "") if conf is not None else ""
