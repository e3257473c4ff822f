"""One run: what was asked, and each round run once for whoever asks first. Knows nothing of pytest."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_flagperf import original, stored
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor, scan
from pytest_flagperf.config import Value
from pytest_flagperf.engines.agents.engine import Venue, is_owed
from pytest_flagperf.engines.agents.preflight import Finding
from pytest_flagperf.expected import Source
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.conf import ClusterConf, read_cluster, split_hosts
from pytest_flagperf.original import TestConf
from pytest_flagperf.plan import Plan, describe, make_plan, one_card_plan, short_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import silent
from pytest_flagperf.report.terminal.summary import Closing, closing
from pytest_flagperf.results import store
from pytest_flagperf.results.comparing import statistics
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured.outcome import UNREADABLE, Outcome
from pytest_flagperf.results.published import Published
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import OneCard, Verdict
from pytest_flagperf.runtime import Interpreter, runtimes
from pytest_flagperf.selection import Absent, Selected, Selection, case_in, hints, keywords, lane, select
from pytest_flagperf.settings import COMMAND_LINE, Settings, holds_some, read_settings
from pytest_flagperf.stored import FormatError, WriteError, make_folder, writing

from . import controller, judging
from .forecast import convergence, duration, published
from .judging import Gates, OneCards, Scaling
from .resume import FILE as ASKED
from .resume import move_aside, recalled, remember, set_aside

TURNS = 3
"""So often, at most, a speed-up that was missed is measured again: the medians of all times count."""
# What the one that began a parallel run found out about the hosts.
_LEFT_OUT = "left_out.json"


class Run:
    """Its directory appears with the first thing written into it."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        selection: Selection,
        directory: Path,
        visible_devices: str | None = None,
        *,
        directory_is_made: bool = False,
        cluster: ClusterConf | None = None,
        log_level: str = "",
    ) -> None:
        self.settings = settings
        self.log_level = log_level
        """What the original's file has: debug, info, warning or error."""
        self.venue = Venue(settings, catalog, cluster)
        self.visible_devices = visible_devices
        self.catalog = catalog
        self.selection = selection
        self.directory = directory
        self.watch = silent()
        self.results: store.Run | None = None
        self.notes: list[str] = []
        self._reserved = directory_is_made
        self._begun: tuple[Selected, ...] = ()
        self.started_ms = _now_ms()
        self._before: controller.Figures = {}
        self._by_folder: dict[Path, Sequence[Selected]] = {}
        self._plans: dict[Selected, Plan] = {}
        self._outcomes: dict[tuple[Selected, int], Outcome] = {}
        self._not_run: dict[tuple[Selected, int], WriteError] = {}
        self._unwritten: dict[tuple[str, str], Sequence[Verdict]] = {}
        self.refused: list[WriteError] = []
        """What could not be written at the run's end."""
        self._one_cards = OneCards(directory.parent)

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
        """Return the run of a tree; None without suites, unless an option asks for a run.

        ``bundled_suites`` adds the suites of the wheel to those of the tree.
        """
        settings = read_settings(recalled(command_line, cwd), root, cwd)
        conf = original.read(root / settings.test_conf) if settings.test_conf else None
        if conf is not None:
            settings = _with_conf(settings, conf)
        catalog = scan(settings, bundled_suites=bundled_suites)
        if not catalog.suites:
            if settings.given("roots") or COMMAND_LINE in settings.sources.values():
                raise Problems([f"no suites: none of {_list(catalog.roots)} has suites/<model>/<framework>/suite.toml"])
            return None
        cluster = _cluster(settings, root)
        selection = select(settings, catalog, conf, len(cluster.addresses()) if cluster else 1)
        reports = root / Path(settings.reports).expanduser()
        visible = str(conf.value("ACCE_VISIBLE_DEVICE_ENV_NAME") or "") if conf is not None else ""
        return cls(
            settings,
            catalog,
            selection,
            directory or (Path(settings.resume) if settings.resume else reports / f"run{_stamp()}"),
            visible or None,
            directory_is_made=directory is not None or bool(settings.resume),
            cluster=cluster,
            log_level=str(conf.value("FLAGPERF_LOG_LEVEL") or "") if conf is not None else "",
        )

    def reserve(self) -> None:
        """Make the run's directory, its alone: of several runs that begin in the same second each has its own."""
        if self._reserved:
            return
        wanted = self.directory
        try:
            wanted.parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                self.directory = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
                with suppress(FileExistsError):
                    self.directory.mkdir()
                    self._reserved = True
                    return
        except OSError as error:
            raise Problems(
                [f"{wanted}: no run directory can be made: {error.strerror}; name another with --reports"]
            ) from error

    # -- what was asked ------------------------------------------------------------------------------------

    def cases_of(self, folder: Path) -> Sequence[Selected]:
        """What a test in a folder is about: below a model's folder that model's cases, elsewhere all."""
        if folder not in self._by_folder:
            self._by_folder[folder] = self._find_cases(folder.resolve())
        return self._by_folder[folder]

    def _find_cases(self, folder: Path) -> Sequence[Selected]:
        models = [each for each in (folder, *folder.parents) if each.parent in self._suites_folders]
        if not models:
            return self.selection.cases
        return [one for model in models for one in self._of_models.get(model, ())]

    @cached_property
    def _suites_folders(self) -> set[Path]:
        return {(root / "suites").resolve() for root in self.catalog.roots}

    @cached_property
    def _of_models(self) -> dict[Path, list[Selected]]:
        """The cases by the folder of their model; a folder without cases is there too."""
        folders = {suite.path: suite.path.parent.resolve() for suite in self.catalog.suites.values()}
        found: dict[Path, list[Selected]] = {folder: [] for folder in folders.values()}
        for one in self.selection.cases:
            found[folders[one.suite.path]].append(one)
        return found

    def absent_of(self, place: Path) -> Sequence[Absent]:
        """Return the cases without a suite that tests in a place are about: none below a model's own folder."""
        return () if self._suites_folders.intersection(place.resolve().parents) else self.selection.absent

    def absent_in(self, nodeids: Iterable[str]) -> list[Absent]:
        """Return the cases without a suite that node ids carry."""
        absent = {str(one.case): one for one in self.selection.absent}
        if not absent:
            return []
        found = dict.fromkeys(case for nodeid in nodeids if (case := case_in(nodeid, absent)) is not None)
        return [absent[case] for case in found]

    def no_suite(self, folder: Path) -> str | None:
        """Why a benchmark class in a folder has no suite; None if a suite's folder contains it."""
        places = [folder.resolve(), *folder.resolve().parents]
        if not self._of_models.keys().isdisjoint(places):
            return None
        roots = [place.parent.parent for place in places if place.parent.name == "suites"]
        root = next((root for root in roots if holds_some(root)), None)
        fix = f"add --roots={root}" if root else "move it to suites/<model>/, above <framework>/suite.toml"
        return f"no suite contains this class; suites were looked for in {_list(self.catalog.roots)}; {fix}"

    @property
    def keywords(self) -> Collection[str]:
        """All words by which -k selects."""
        return keywords(self.selection.cases)

    def hints(self, expression: str) -> list[str]:
        """What could have been meant by a -k expression that selected nothing."""
        return hints(expression, self.selection.cases, self.catalog)

    def selected(self, cases: Sequence[Selected], absent: Sequence[Absent] = ()) -> list[str]:
        """Which cases were selected, and which of them cannot run and why."""
        if not cases and not absent:
            return []
        ready = [one for one in cases if not one.unsupported]
        elsewhere = [one for one in ready if one.case.nnodes > len(self.hosts)]
        able = len(ready) - len(elsewhere)
        lines = [f"flagperf: {_title(cases, able, len(absent))}; reports: {_relative(self.directory)}"]
        lines += [
            f"  throughput only: {one.case} (--no-throughput-only trains it to its target)"
            for one in ready
            if one.throughput_only and not self._all_throughput
        ]
        if self._all_throughput:
            why = "synthetic data" if self.settings.synthetic else "--throughput-only"
            lines.append(f"  throughput only: every case ({why}); no convergence is shown")
        unsupported: list[Selected | Absent] = [*(one for one in cases if one.unsupported), *absent]
        lines += [f"  cannot run: {one.case}: {one.unsupported}" for one in unsupported]
        lines += [
            f"  cannot run here: {one.case}: needs {one.case.nnodes} hosts, {len(self.hosts)} available"
            for one in elsewhere
        ]
        lines += [
            f"  note: {one.case}: the version picks a container's image; without containers (--runtime=docker) what the"
            " environment holds is run, and recorded"
            for one in ready
            if one.case.framework_version and self.runtime(one) != "docker"
        ]
        notes = [note for one in ready for note in self.venue.notes(one.case, one.vendor, self.runtime(one))]
        lines += [f"  note: {note}" for note in dict.fromkeys(notes)]
        lines += judging.those_with_baselines(self.settings, [str(one.case) for one in ready])
        if self.settings.resume:
            lines.append(f"  going on with {_relative(self.directory)}")
        lines += self.venue.header()
        return lines + [f"  note: {note}" for note in self.selection.notes]

    def chosen(self, nodeids: Iterable[str]) -> list[Selected]:
        """The cases that node ids carry, in the run's order."""
        by_name = {str(one.case): one for one in self.selection.cases}
        named = {case for nodeid in nodeids if (case := case_in(nodeid, by_name)) is not None}
        return [one for one in self.selection.cases if str(one.case) in named]

    def lane(self, nodeid: str) -> str:
        """What of a node id must stay on one worker."""
        return lane(nodeid, self._case_names)

    @cached_property
    def _case_names(self) -> frozenset[str]:
        return frozenset(str(one.case) for one in self.selection.cases)

    @property
    def _all_throughput(self) -> bool:
        return self.settings.throughput_only or self.settings.synthetic

    # -- plans -----------------------------------------------------------------------------------------------

    def plan(self, one: Selected) -> Plan:
        """What exactly runs for a case; every problem of its config is an error here."""
        if one not in self._plans:
            plan = make_plan(
                self.catalog,
                one.case,
                vendor=one.vendor.name,
                scale=one.scale,
                settings=self.settings.set,
                settings_source=self.settings.sources["set"],
                runtime=self.runtime(one),
                launcher=self.settings.launcher,
                synthetic=self.settings.synthetic,
                throughput_only=self.settings.throughput_only if self.settings.given("throughput_only") else None,
                data_dir=Value(one.data_dir, one.data_source, 0, "case") if one.data_dir else None,
                hosts=self.hosts,
                # On other machines the data are looked for there, by the look at every host.
                check_data=not self.settings.plan and not self.venue.is_cluster,
            )
            self._plans[one] = replace(plan, visible_devices=self.visible_devices or plan.visible_devices)
        return self._plans[one]

    def runtime(self, one: Selected) -> str:
        """Where the Python of a case's ranks comes from."""
        return self.settings.runtime or one.vendor.runtime

    def check(self, chosen: Sequence[Selected]) -> None:
        """All problems of all cases at once, each once, before the first one starts."""
        problems: dict[str, list[str]] = {}
        for one in chosen:
            try:
                self._check_data(one, self.plan(one))
                judging.check_baseline(self.settings, str(one.case))
                self._check_place(one)
                self.venue.check_extension(self.plan(one), one.vendor)
                if self.runtime(one) == "docker":
                    self.venue.check_container(self.plan(one), one.vendor)
            except Problems as error:
                for problem in error.problems:
                    problems.setdefault(problem.removeprefix(f"case {one.case}: "), []).append(str(one.case))
        if problems:
            raise Problems(f"{problem} ({_cases(cases)})" for problem, cases in problems.items())

    def _check_place(self, one: Selected) -> None:
        runtime = self.runtime(one)
        if runtime not in runtimes():
            raise Problems([f"--runtime={runtime}: there is none of this name; there are {', '.join(runtimes())}"])
        if not self.settings.plan and one.case.nnodes > len(self.hosts):
            there = ", ".join(host.name for host in self.hosts)
            more = "name more" if self.venue.is_cluster else "this machine; name others"
            raise Problems(
                [
                    f"case {one.case}: {one.case.nnodes} hosts are wanted and there is {len(self.hosts)}: {there},"
                    f" {more} with --cluster or in [cluster] of flagperf.toml; --nodes=1xP runs on one, --plan shows"
                    " the rest"
                ]
            )

    def _check_data(self, one: Selected, plan: Plan) -> None:
        if plan.data_dir is None and not plan.synthetic and one.scale == REFERENCE and not self.settings.plan:
            raise Problems(
                [
                    f"case {one.case}: no data: give --data-dir=DIR or --case CASE=DIR (what it must hold is in"
                    f" {_relative(one.suite.path / 'README.md')}), or measure throughput alone with --synthetic"
                ]
            )

    def preflight(self, chosen: Sequence[Selected]) -> list[Finding]:
        """What is well and what is in the way on every host."""
        return self.venue.inspect([(self.plan(one), one.vendor) for one in chosen])

    def prepare(self, chosen: Sequence[Selected]) -> list[str]:
        """Leave out hosts and devices that are not fit; what to tell."""
        return self.venue.prepare([(self.plan(one), one.vendor) for one in chosen]) if chosen else []

    def describe(self, one: Selected) -> str:
        plan = self.plan(one)
        image = self.venue.image(plan, one.vendor) if plan.runtime == "docker" else None
        lease = self.settings.lease or one.vendor.toml.lease
        known = convergence(plan, self._stored_runs, self._published)
        return describe(plan, one.vendor, lease, image, known, duration(plan, self._stored_runs))

    @cached_property
    def _published(self) -> list[Published]:
        return list(published(root / "reports" / "published" for root in self.catalog.roots))

    # -- places ----------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.venue.hosts

    def interpreter(self, one: Selected) -> Interpreter:
        """The Python of the case's framework, ready on the first hosts that it may run on."""
        plan = self.plan(one)
        hosts = self.venue.fleet.usable[: plan.case.nnodes]
        return self.venue.interpreters(plan, one.vendor, hosts, self.watch)[hosts[0].name]

    # -- rounds ----------------------------------------------------------------------------------------------

    def outcome(self, one: Selected, number: int) -> Outcome:
        """One round's outcome; WriteError, for every test that asks for it, if the round could not be recorded."""
        key = one, number
        if key in self._not_run:
            raise self._not_run[key]
        if key not in self._outcomes:
            try:
                self._outcomes[key] = self._outcome(one, number)
            except WriteError as error:
                self._not_run[key] = error
                raise
        return self._outcomes[key]

    def _outcome(self, one: Selected, number: int) -> Outcome:
        plan = self.plan(one)
        self.reserve()
        directory = self.directory / one.case.folder / f"round{number}"
        with _alone(directory.parent):
            # A user may spread tests of one case over workers: the round is another's then.
            done = (directory / "outcome.json").is_file()
            return store.read_round(directory) if done else self._round(plan, one.vendor, number, directory)

    def round_directory(self, outcome: Outcome) -> Path:
        return self.directory / outcome.case.replace(":", "_") / f"round{outcome.round}"

    def _round(self, plan: Plan, vendor: Vendor, number: int, directory: Path) -> Outcome:
        try:
            if not self._gone_on(directory):
                self._leave_out()
                self.venue.run(plan, vendor, number, directory, self.watch)
        except BaseException:
            if (directory / "plan.json").is_file():
                with suppress(WriteError):
                    store.save_outcome(directory, store.measured(directory))
            raise
        outcome = store.measured(directory)
        store.save_outcome(directory, outcome)
        return outcome

    def _leave_out(self) -> None:
        """Use no host or device that the controller of a parallel run left out; a broken record leaves out none."""
        with suppress(FormatError):
            self.venue.leave_out(stored.read(self.directory / _LEFT_OUT))

    def _gone_on(self, directory: Path) -> bool:
        """Whether the round was running already, left by a controller that died, and could be taken to its end."""
        if not (directory / "plan.json").is_file():
            return False
        if _is_readable(directory / "round.json") or self.venue.go_on(directory, self.watch):
            return True
        self.venue.salvage(directory, self.watch)
        move_aside(directory)
        return False

    # -- judging ---------------------------------------------------------------------------------------------

    def scaling(self, one: Selected, outcomes: Sequence[Outcome]) -> Scaling:
        """The rounds of a case, and what one card does."""
        plan = self.plan(one)
        alone = one_card_plan(plan)
        key = str(alone.fingerprint["key"])

        def measured() -> Outcome:
            self.watch.note(f"{one.case}: measuring one card for the speed-up")
            return self._round(alone, one.vendor, 1, self.directory / one.case.folder / "one_card")

        one_card = self._one_cards.of(key, outcomes[0].machine, self._outcomes.values(), measured)
        found = Scaling(outcomes, one_card, one.case.shape.cards, plan.min_efficiency, plan.scaling)
        for turn in range(1, TURNS + 1):
            if not found.is_open:
                break
            self.watch.note(
                f"{one.case}: the speed-up was missed; measuring it again ({turn} of at most {TURNS} times)"
            )
            found = replace(found, one_card=self._take_turn(one, found.one_card, turn))
        store.save_one_card(self.directory / one.case.folder, found.one_card)
        return found

    def _take_turn(self, one: Selected, one_card: OneCard, turn: int) -> OneCard:
        """A short round of one card and then one of all, so that both see the same of the machine."""
        plan = self.plan(one)
        values = []
        for name, each in (("one_card", one_card_plan(plan)), ("all_cards", short_plan(plan))):
            outcome = self._round(each, one.vendor, turn, self.directory / one.case.folder / f"turn{turn}_{name}")
            judging.check_short_round(outcome)
            values += [] if outcome.busy else statistics.finite([outcome.value("p_core")])
        return one_card.with_turn(*values) if len(values) == 2 else one_card

    def gates(self, *, strict: bool) -> Gates:
        """What rounds must get past beside what they say of themselves."""
        return Gates(self.settings, strict=strict)

    @cached_property
    def _stored_runs(self) -> StoredRuns:
        return StoredRuns(self.directory.parent, self.directory.name)

    def expected(self, one: Selected) -> list[Source]:
        """The failures of a case that are known beforehand."""
        return judging.expected_of(self.settings, one.vendor, str(one.case))

    # -- the end ---------------------------------------------------------------------------------------------

    def samples(self, outcome: Outcome) -> Mapping[str, Samples]:
        return monitors.read(self.round_directory(outcome))

    def record(self, case: str, test: str, verdicts: Sequence[Verdict]) -> None:
        """Keep what was judged, also if the run is killed next."""
        store.save_verdicts(self.directory / _folder(case), test, verdicts)

    def keep(self, case: str, test: str, verdicts: Sequence[Verdict]) -> None:
        """Keep in memory what could not be recorded: for the closing table, and for the disk when it has room again."""
        self._unwritten[case, test] = verdicts

    def finish(self, command: Sequence[str], exit_status: int, had_workers: bool = False) -> None:
        """Write results.json and results.csv, of all workers' rounds; ``refused`` gets the errors.

        ``command`` is stored as it is.
        """
        if not self.directory.is_dir() or not any(self.directory.glob("*/round*/plan.json")):
            return
        if had_workers:
            self._end_what_workers_left()
        self._fetch_missing()
        info = store.RunInfo(
            command=tuple(command),
            versions=_versions(),
            started_ms=self.started_ms,
            ended_ms=_now_ms(),
            exit_status=exit_status,
            selected=tuple(str(one.case) for one in self.selection.cases if not one.unsupported),
            unsupported=tuple(f"{one.case}: {one.unsupported}" for one in self.selection.unsupported),
            controller={**self._before, **controller.own_cost()},
        )
        self._record_again()
        read = store.load_run(self.directory)
        self.results = replace(read, info=info, cases=tuple(map(self._with_unwritten, read.cases)))
        with self._noting_refusals():
            store.write_run(self.directory, info, self.results.cases)
        expected = dict.fromkeys(source for one in self.selection.cases for source in self.expected(one))
        self.notes += judging.never_judged(expected, self.results.cases)
        if self.settings.accept_baseline:
            with self._noting_refusals():
                self.notes += judging.told_of(*judging.accept(self.results, Path(self.settings.baselines)))

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        """Go on after the body if it cannot write: what can be written still is."""
        try:
            yield
        except WriteError as error:
            self.refused.append(error)

    @property
    def is_incomplete(self) -> bool:
        """Whether a result could not be written, or a record could not be read at the run's end."""
        cases = self.results.cases if self.results is not None else ()
        return bool(self.refused) or any(one.state == UNREADABLE for case in cases for one in case.outcomes)

    def _record_again(self) -> None:
        for (case, test), verdicts in list(self._unwritten.items()):
            with self._noting_refusals():
                store.save_verdicts(self.directory / _folder(case), test, verdicts)
                del self._unwritten[case, test]

    def _with_unwritten(self, result: store.CaseResult) -> store.CaseResult:
        """A case with the verdicts that are in memory only."""
        own = {test: tuple(verdicts) for (case, test), verdicts in self._unwritten.items() if case == result.case}
        return replace(result, verdicts={**result.verdicts, **own})

    def _end_what_workers_left(self) -> None:
        """The ranks of a worker that was killed would go on for their lease, for nobody."""
        for directory in sorted(path.parent for path in self.directory.glob("*/*/plan.json")):
            if directory.name.startswith("failed") or (directory / "round.json").is_file():
                continue
            with self._noting_refusals():
                if not self.venue.go_on(directory, self.watch, "the worker of pytest-xdist that ran this round died"):
                    self.venue.salvage(directory, self.watch)
            self._measure_again(directory)

    def _measure_again(self, directory: Path) -> None:
        with self._noting_refusals():
            store.save_outcome(directory, store.measured(directory))

    def _fetch_missing(self) -> None:
        """Logs that a host could not hand out at its round's end may be had now."""
        lacking = [path.parent for path in sorted(self.directory.glob("*/*/round.json")) if is_owed(path.parent)]
        if lacking:
            self.notes += self.venue.fetch_missing(lacking)
            for directory in lacking:
                self._measure_again(directory)

    def closing(self, nodeids: Iterable[str]) -> Closing:
        """What is told at the end, of what was begun and of the tests that were reported."""
        results = self.results or store.Run(self.directory, None, ())
        left = {case.case for case in results.cases}
        nodeids = [*nodeids]
        asked = [*self._begun, *(one for one in self.chosen(nodeids) if one.unsupported)]
        why = {one: str(error) for (one, _), error in self._not_run.items()}
        not_run = [
            f"{one.case}: {one.unsupported or why.get(one) or 'it was not begun'}"
            for one in asked
            if str(one.case) not in left
        ]
        not_run += [f"{one.case}: {one.unsupported}" for one in self.absent_in(nodeids)]
        names = ("report.html", "junit.xml", "results.json", "results.csv")
        reports = [str(_relative(self.directory / name)) for name in names if (self.directory / name).is_file()]
        end = closing(
            results, not_run, [*self.notes, *_refusals(self.refused, self.directory)], reports if self.results else ()
        )
        if end.interrupted:
            end = replace(end, notes=(*end.notes, f"--resume={_relative(self.directory)} goes on with this run"))
        return end

    def remember(self, chosen: Sequence[Selected]) -> list[str]:
        """Keep what was asked, so that another run can go on with this one; make room for what is to run again."""
        self._begun = tuple(chosen)
        self._before = controller.before_run()
        told = set_aside(self.directory) if self.settings.resume else []
        stored.write(self.directory / _LEFT_OUT, self.venue.left_out)
        remember(self.directory, self.settings, ((str(one.case), one.data_dir) for one in chosen))
        return told

    def close(self, junit: Path | None) -> None:
        """Leave a copy of JUnit's file in the run directory; take away the directory of a run that ran nothing."""
        if self.results is None:
            if self._reserved:
                _remove_if_empty_handed(self.directory)
            return
        own = self.directory / "junit.xml"
        if junit is not None and junit.is_file() and junit.resolve() != own.resolve():
            with writing(own):
                shutil.copyfile(junit, own)


def _cluster(settings: Settings, root: Path) -> ClusterConf | None:
    """The hosts that were asked for; None: this machine."""
    conf = None
    if settings.cluster_conf and not settings.commanded("cluster"):
        conf = original.read_cluster_conf(root / settings.cluster_conf)
    elif settings.cluster_table is not None:
        conf = read_cluster(settings.cluster_table.table, settings.cluster_table.file)
    if settings.cluster is not None:
        if not split_hosts(settings.cluster):
            raise Problems([f"{settings.told('cluster')}: no host; expected at least one, as in --cluster=gpu1,gpu2"])
        conf = replace(conf or ClusterConf(), hosts=split_hosts(settings.cluster), source=settings.told("cluster"))
    if conf is not None:
        conf.addresses()  # names that are none are told with everything else that is wrong
    return conf


def _with_conf(settings: Settings, conf: TestConf) -> Settings:
    """What the original's file says, where the command line says nothing."""
    given: dict[str, Any] = {
        key: value for key, value in conf.settings.items() if settings.sources[key] != COMMAND_LINE
    }
    sources = {**settings.sources, **dict.fromkeys(given, str(conf.file))}
    return replace(settings, **given, sources=sources)


def _stamp() -> str:
    return time.strftime("%Y%m%d%H%M%S")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Among the workers of a run, the only one in a folder; the lock is free when its holder is gone."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_readable(file: Path) -> bool:
    try:
        stored.read(file)
    except FormatError:
        return False
    return True


def _refusals(errors: Iterable[WriteError], directory: Path) -> list[str]:
    """A sentence for each reason, with the names of all files of the run's directory; others by their folders."""
    names: dict[tuple[Path, str], list[str]] = {}
    for error in errors:
        path = Path(error.filename)
        folder = directory if path.is_relative_to(directory) else path.parent
        names.setdefault((folder, str(error.strerror)), []).append(str(path.relative_to(folder)))
    return [f"cannot write {', '.join(dict.fromkeys(its))} in {folder}: {why}" for (folder, why), its in names.items()]


def _folder(case: str) -> str:
    return case.replace(":", "_")


def _remove_if_empty_handed(directory: Path) -> None:
    """A directory that holds nothing but the reports that were switched on by themselves."""
    small = {"report.html", "junit.xml", ASKED, _LEFT_OUT}
    if directory.is_dir() and {path.name for path in directory.iterdir()} <= small:
        shutil.rmtree(directory, ignore_errors=True)


def _cases(cases: Sequence[str]) -> str:
    """Whose problem it is: the first of them, and how many more."""
    return f"case {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")


def _title(cases: Sequence[Selected], able: int, absent: int) -> str:
    kinds = {f"{one.vendor.name} {one.case.hardware} at {one.scale} scale" for one in cases}
    number = len(cases) + absent
    can_run = "" if able == number else f", {able} can run"
    of_what = f": {', '.join(sorted(kinds))}" if kinds else ""
    return f"{count(number, 'case')} selected{can_run}{of_what}"


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _list(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], **{name: version(name) for name in ("pytest-flagperf", "pytest")}}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
