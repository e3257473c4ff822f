"""One run and its parts, independent of pytest."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf import original, stored
from pytest_flagperf.catalog import Catalog, Suite, scan
from pytest_flagperf.config import Value, keys_of
from pytest_flagperf.engines import Engine, Finding, is_local
from pytest_flagperf.engines.open_engine import open_engine
from pytest_flagperf.hooks.roots import installed_roots
from pytest_flagperf.kind import kind_of
from pytest_flagperf.original import TestConf
from pytest_flagperf.plan import HEAD, Plan, PlanRequest, make_plan, overview, too_large
from pytest_flagperf.problems import Problems, near, some
from pytest_flagperf.progress import Subscriber, note, subscribed
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.selection import Absent, Selected, Selection, runnable, select
from pytest_flagperf.settings import COMMAND_LINE, ENGINES, Settings, read_settings
from pytest_flagperf.stored import FormatError, layout, writing
from pytest_flagperf.stored.live_record import LiveRecord
from pytest_flagperf.stored.plan import RANK, split_faults

from . import controller
from .auto_runtime import AUTO, AutoRuntime, with_chosen
from .case_lookup import CaseLookup
from .directory import RunDirectory, relative
from .resume import remarks, save_options, set_failed_rounds_aside, with_stored_options

if TYPE_CHECKING:  # the modules that read results load slowly, and a run checks its hosts before it needs them
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.tables.published import Published

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
        self._visible_devices = visible_devices
        self._plans: dict[Selected, Plan] = {}
        self._keys_of = cache(keys_of)
        self.output: tuple[Subscriber, ...] = ()
        """What writes the progress of the run, beside the live record."""
        self._progress = ExitStack()
        self.waited_s = 0.0
        """How long rounds have waited for hosts or devices that others used."""
        self.notes = [*catalog.notes_on_folders({selected.vendor.name for selected in selection.cases})]
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
        catalog = scan(settings, installed_roots(), cwd, bundled_suites=bundled_suites)
        if not catalog.suites:
            if settings.given("roots") or COMMAND_LINE in settings.sources.values():
                searched = ", ".join(map(str, catalog.roots))
                raise Problems([f"no suites: suites/<model>/<framework>/suite.toml not found in {searched}"])
            return None
        if settings.expected:
            from .judging import check_expected

            check_expected(settings, catalog)
        _check_prices(settings, catalog)
        engine = open_engine(settings, catalog, root)
        return cls(
            settings,
            catalog,
            select(settings, catalog, conf, engine.host_count),
            _directory(settings, root, directory),
            engine,
            visible_devices=_text(conf, "ACCE_VISIBLE_DEVICE_ENV_NAME") or None,
            log_level=_text(conf, "FLAGPERF_LOG_LEVEL"),
        )

    # The modules of these parts read results and load slowly: they are imported when the first round needs them, or
    # by the plugin while the hosts answer.

    @cached_property
    def records(self) -> Records:
        """The verdicts and results of this run."""
        from .records import Records

        return Records(self.directory)

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of this run."""
        from .restarts import Restarts
        from .rounds import Rounds

        settings = self.settings
        restarts = Restarts(settings.restarts, settings.restart_wait, settings.fewest_hosts)
        return Rounds(self.plan, self.engine, self.directory, self.records, restarts, self._sources.get)

    @cached_property
    def scaling(self) -> ScalingRounds:
        """The measured speed-ups of this run."""
        from .scaling import ScalingRounds

        return ScalingRounds(self.plan, self.rounds, self.directory)

    # -- before the first case starts ------------------------------------------------------------------------

    def plan(self, selected: Selected, *, preflight: bool = False) -> Plan:
        """Return the plan of a case; Problems if its config is invalid.

        ``preflight``: of a short measurement before the run, with the suite's settings for it instead of --set.
        """
        if preflight:
            values = selected.suite.scales[selected.scale].preflight
            return self._new_plan(selected, values, f"preflight of {selected.suite.name}")
        if selected not in self._plans:
            self._plans[selected] = self._with_weights(selected, self._own_plan(selected))
        return self._plans[selected]

    def _own_plan(self, selected: Selected) -> Plan:
        settings = self._settings_for(selected.suite) if self.settings.set else ()
        return self._new_plan(selected, settings, self.settings.sources["set"])

    def _with_weights(self, selected: Selected, plan: Plan) -> Plan:
        """Return the plan with the folder of the weights that a case of the run trains and another one reads."""
        if (source := self._sources.get(selected)) is not None:
            folder = self.plan(source).config["checkpoint_dir"]
            return plan.with_values("this run", weights_dir=folder, weights_of_run=str(source.case))
        if selected in self._sources.values() and not plan.config["checkpoint_dir"]:
            if not self.settings.starts_nothing:
                self.directory.reserve()  # its name may change until then
            return plan.with_values("this run", checkpoint_dir=str(self.directory.path.resolve() / layout.WEIGHTS))
        return plan

    @cached_property
    def _sources(self) -> Mapping[Selected, Selected]:
        """The trainings of this run by the cases that read their weights; only of this machine."""
        chosen = runnable(self.requested) if is_local(self.engine) else []
        plans = ((one, self._own_plan(one)) for one in chosen if one.suite.case_key)
        return {one: source for one, plan in plans if (source := kind_of(plan).source(plan, chosen)) is not None}

    @cached_property
    def _suites(self) -> set[Suite]:
        return {one.suite for one in runnable(self.requested)}

    def _settings_for(self, suite: Suite) -> Sequence[str]:
        """Return --set without the keys that only suites of other kinds have, if the run has such a suite."""
        others = {key for one in self._suites if one.kind != suite.kind for key in self._keys_of(one)}
        others -= self._keys_of(suite)
        return [item for item in self.settings.set if item.partition("=")[0] not in others]

    def _new_plan(self, selected: Selected, values: Sequence[str], source: str) -> Plan:
        settings = self.settings
        plan = make_plan(
            self.catalog,
            PlanRequest(
                selected.case,
                vendor=selected.vendor.name,
                scale=selected.scale,
                settings=values,
                settings_source=source,
                runtime=self._runtime(selected),
                synthetic=settings.synthetic,
                throughput_only=settings.throughput_only if settings.given("throughput_only") else None,
                data_dir=Value(selected.data_dir, selected.data_source, 0, "case") if selected.data_dir else None,
                # In a cluster the preflight checks the data on the hosts; hosts can be checked without data.
                check_data=is_local(self.engine)
                and not settings.plan
                and not (settings.preflight == "check" and not selected.data_dir),
            ),
        )
        goal = selected.suite.goal if settings.restarts or settings.drill else None
        return replace(
            plan,
            visible_devices=self._visible_devices or plan.visible_devices,
            price=settings.price,
            drill=split_faults(settings.drill),
            min_goodput=settings.min_goodput or (goal.min_goodput if goal else None),
            replay=self._replay_of(plan),
        )

    def _runtime(self, selected: Selected) -> str:
        """Return the runtime that provides the Python of a case's ranks."""
        name = runtime_of(self.settings, selected)
        return self._auto_runtime.choose(selected) if name == AUTO else name

    @cached_property
    def _auto_runtime(self) -> AutoRuntime:
        return AutoRuntime(self.settings, self.catalog, self.engine)

    def chosen_runtimes(self) -> list[str]:
        """Return sentences about the runtimes that were chosen for the planned cases."""
        return list(self._auto_runtime.reasons)

    def check(self, chosen: Sequence[Selected]) -> None:
        """Raise Problems with all problems of all cases, each problem once."""
        problems: dict[str, list[str]] = {}
        for selected in chosen:
            try:
                self._check_data(selected)
                check_baseline(self.settings, str(selected.case))
                self._check_hosts(selected)
                self.engine.check(self.plan(selected))
                self._check_restarts(selected)
                self._check_drill(selected)
                if self.plan(selected).saves_states and (problem := self._no_place_of_states(self.plan(selected))):
                    raise Problems([f"{self.settings.as_written('replay')}: {problem}"])
            except Problems as error:
                for problem in error.problems:
                    problems.setdefault(problem.removeprefix(f"case {selected.case}: "), []).append(str(selected.case))
        if problems:
            raise Problems(f"{problem} (case {some(cases, 1)})" for problem, cases in problems.items())

    def _check_restarts(self, selected: Selected) -> None:
        """Raise Problems if a training that would be started again saves no checkpoints."""
        if not self.settings.restarts:
            return
        from .restarts import continues

        plan = self.plan(selected)
        if kind_of(plan).converges and not plan.throughput_only and not continues(plan):
            raise Problems(
                [
                    f"{self.settings.as_written('restarts')}: a training continues from its last checkpoint; pass"
                    " --set=checkpoint_dir=DIR, and --set=checkpoint_steps=N or --set=failure_interval_s=SECONDS"
                ]
            )

    def _replay_of(self, plan: Plan) -> dict[str, str]:
        """Return whether a training is repeated: with --replay, and with a vendor's code if its states have a place."""
        from .replay import runs_vendor_code

        if self.settings.replay and kind_of(plan).converges:
            return {"states": ""}
        if not runs_vendor_code(plan):
            return {}
        problem = self._no_place_of_states(plan)
        return {"missing": problem} if problem else {"states": ""}

    def _no_place_of_states(self, plan: Plan) -> str:
        """Return why a clean process could not read the states of a training; empty if it can."""
        from .replay import place_of_states

        if self.settings.engine not in ENGINES:
            return f"the engine {self.settings.engine} asks a training for no states"
        place = place_of_states(plan, self.engine, self.directory.path / "case" / "round1")
        return "" if place else "other hosts and containers need --set=checkpoint_dir=DIR for the states"

    def _check_drill(self, selected: Selected) -> None:
        """Raise Problems if no fault could strike a training that --drill asks for."""
        plan = self.plan(selected)
        if not plan.drill or not kind_of(plan).converges:
            return
        written, problems = self.settings.as_written("drill"), []
        if self.settings.engine not in ENGINES:
            problems.append(f"{written}: the engine {self.settings.engine} strikes no faults")
        elif is_local(self.engine) and {*plan.drill} - {RANK}:
            problems.append(f"{written}: only rank can strike on this machine; host and link need --cluster")
        if plan.throughput_only:
            problems.append(f"{written}: the case measures only throughput; expected a training to its target")
        if problems:
            raise Problems(problems)

    def _check_hosts(self, selected: Selected) -> None:
        host_count = self.engine.host_count
        if not self.settings.plan and host_count is not None and selected.case.nnodes > host_count:
            names = ", ".join(host.name for host in self.engine.hosts[:host_count])
            available = f"{names} (this machine)" if is_local(self.engine) else names
            of_cluster = self.settings.engine in ENGINES
            more = "add hosts with --cluster or in [cluster] of flagperf.toml, or " if of_cluster else ""
            raise Problems(
                [
                    f"case {selected.case}: needs {selected.case.nnodes} hosts, {host_count} available: {available};"
                    f" {more}pass --nodes=1xP to run on one; --plan works without the hosts"
                ]
            )

    def without_data(self, chosen: Sequence[Selected]) -> int:
        """Return how many of the cases read training data, but have none."""
        plans = [self.plan(selected) for selected in chosen if selected.suite.needs_data(selected.scale)]
        return sum(plan.data_dir is None and not plan.synthetic for plan in plans)

    def _check_data(self, selected: Selected) -> None:
        if self.without_data([selected]) and not self.settings.starts_nothing:
            raise Problems(
                [
                    f"case {selected.case}: no training data: pass --data-dir=DIR or --case CASE=DIR (the expected"
                    f" files are in {relative(selected.suite.path / 'README.md')}), or pass --synthetic to measure only"
                    " throughput"
                ]
            )

    def preflight(self, chosen: Sequence[Selected]) -> list[Finding]:
        """Return the findings of the preflight on every host."""
        return self.engine.inspect([*map(self.plan, chosen)])

    def prepare(self, chosen: Sequence[Selected]) -> list[str]:
        """Exclude hosts and devices that are not usable; return a line for each, and for each too large case."""
        hosts = self.engine.host_count
        where = "" if hosts is None else f" on {count(hosts, 'host')}"
        note("phase", text=f"preflight: {count(len(chosen), 'case')}{where}")
        try:
            plans = [*map(self.plan, chosen)]
            return [*too_large(plans), *self.engine.prepare(plans)]
        finally:
            note("phase_end")

    def begin(self, chosen: Sequence[Selected]) -> list[str]:
        """Save the options so that --resume can continue this run, and set failed rounds of a resumed run aside."""
        self.controller_before = controller.before_run()
        directory = self.directory.path
        lines: list[str] = []
        if self.settings.resume:
            from pytest_flagperf.results.tables import store

            self.started_ms = store.load_run(directory).started_ms or self.started_ms
            lines += set_failed_rounds_aside(directory)
            lines += remarks(self.settings, directory, [*map(self.plan, chosen)])
        # The results of a resumed run are not made from its new rounds; they are written again at its end.
        for name in (layout.RESULTS, layout.SUMS):
            (directory / name).unlink(missing_ok=True)
        stored.write(directory / layout.LEFT_OUT, self.engine.leave_out())
        by_choice = {self.plan(one).runtime for one in chosen if runtime_of(self.settings, one) == AUTO}
        settings = with_chosen(self.settings, by_choice)
        save_options(directory, settings, ((str(selected.case), selected.data_dir) for selected in chosen))
        return lines

    def start_progress(self, process: str, chosen: Sequence[Selected] = ()) -> None:
        """Write and record from now on what happens in this process, and record the cases that will run."""
        record = LiveRecord(self.directory.path / layout.LIVE / layout.live_file(process))
        self._progress.callback(record.close)
        self._progress.enter_context(subscribed(record.subscriber, *self.output, {"waited": self._wait}))
        if chosen:
            note("cases", cases=[{"case": str(one.case), "rounds": len(one.rounds)} for one in chosen])

    def end_progress(self, exit_status: int | None) -> None:
        """Record pytest's exit status as the last note of this process."""
        note("end", exit_status=exit_status)
        self._progress.close()

    def _wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def close(self, junit: Path | None) -> None:
        """Copy the JUnit file into the run directory; remove the directory of a run without results."""
        if "records" not in vars(self) or self.records.results is None:
            self.directory.remove_if_unused()
            return
        own = self.directory.path / layout.JUNIT
        if junit is not None and junit.is_file() and junit.resolve() != own.resolve():
            with writing(own):
                shutil.copyfile(junit, own)

    # -- what --plan prints ----------------------------------------------------------------------------------

    def describe(self, selected: Selected) -> str:
        """Return the plan of a case as text."""
        from .forecast import duration, estimate

        plan = self.plan(selected)
        converges, more = kind_of(plan).outlook(plan, self._stored_runs, self._published)
        return self.engine.describe(plan, converges, [*duration(plan, estimate(plan, self._stored_runs)), *more])

    def overview(self, chosen: Sequence[Selected]) -> tuple[list[tuple[str, ...]], str]:
        """Return a table with a row for each case, below its head: what it measures, and how long a round takes.

        The sentence says how long all rounds take.
        """
        from .forecast import duration, estimate, total_duration

        plans = [self.plan(selected) for selected in chosen]
        estimates = [estimate(plan, self._stored_runs) for plan in plans]
        # The source of an estimate is only in the full plan.
        durations = [re.split(" per round|:", next(duration(*pair)))[0] for pair in zip(plans, estimates, strict=True)]
        rows = [HEAD, *(overview(plan, text) for plan, text in zip(plans, durations, strict=True))]
        return rows, total_duration(plans, estimates)

    @cached_property
    def _stored_runs(self) -> StoredRuns:
        from pytest_flagperf.results.comparing.stored_runs import StoredRuns

        return StoredRuns(self.directory.path.parent, self.directory.path.name)

    @cached_property
    def _published(self) -> list[Published]:
        from .forecast import published

        return list(published(root / "reports" / "published" for root in self.catalog.roots))


def _check_prices(settings: Settings, catalog: Catalog) -> None:
    """Raise Problems for each price of a chip that no vendor has."""
    chips = {name for vendor in catalog.vendors.values() for name in vendor.chips}
    unknown = sorted(settings.price.per_hour.keys() - chips if settings.price else ())
    file = settings.expected_in
    problems = [f"{file}: price.per_hour.{name}: no vendor has this chip{near(name, chips)}" for name in unknown]
    if problems:
        raise Problems(problems)


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


def check_baseline(settings: Settings, case: str) -> None:
    """Raise Problems before the run if the baseline of a case, or the folder of baselines, cannot be read."""
    folder = Path(settings.baselines)
    if folder.exists() and not folder.is_dir():
        raise Problems([f"{settings.as_written('baselines')}: is a file; expected the folder of the baselines"])
    if settings.given("baselines") and not folder.is_dir():
        advice = "create it, and fill it with flagperf accept"
        raise Problems([f"{settings.as_written('baselines')}: folder not found; {advice}"])
    if not (folder / layout.baseline_file(case)).exists():
        return
    from .judging import stored_baseline

    try:
        stored_baseline(folder, case)
    except FormatError as error:
        raise Problems(f"{line}; fix or remove it" for line in str(error).splitlines()) from error


def runtime_of(settings: Settings, selected: Selected) -> str:
    """Return the runtime that the options or the vendor set; auto if it is chosen when the case is planned."""
    return settings.runtime or (AUTO if selected.vendor.toml.runtime == "venv" else selected.vendor.toml.runtime)
