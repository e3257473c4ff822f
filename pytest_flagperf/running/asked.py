"""What was asked for: the cases of a folder and of node ids, and the lines of the header about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines.agents.engine import Venue
from pytest_flagperf.results.units import count
from pytest_flagperf.selection import Absent, Selected, Selection, case_in
from pytest_flagperf.settings import Settings, holds_some

from . import judging
from .directory import RunDirectory, relative
from .plans import runtime_of


class Asked:
    """The cases of a run as tests, node ids and the header name them."""

    def __init__(
        self, settings: Settings, catalog: Catalog, selection: Selection, engine: Venue, directory: RunDirectory
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._selection = selection
        self._engine = engine
        self._directory = directory
        self._by_folder: dict[Path, Sequence[Selected]] = {}

    # -- cases of a folder -----------------------------------------------------------------------------------

    def cases_of(self, folder: Path) -> Sequence[Selected]:
        """What a test in a folder is about: below a model's folder that model's cases, elsewhere all."""
        if folder not in self._by_folder:
            self._by_folder[folder] = self._find_cases(folder.resolve())
        return self._by_folder[folder]

    def _find_cases(self, folder: Path) -> Sequence[Selected]:
        models = [each for each in (folder, *folder.parents) if each.parent in self._suites_folders]
        if not models:
            return self._selection.cases
        return [one for model in models for one in self._of_models.get(model, ())]

    @cached_property
    def _suites_folders(self) -> set[Path]:
        return {(root / "suites").resolve() for root in self._catalog.roots}

    @cached_property
    def _of_models(self) -> dict[Path, list[Selected]]:
        """The cases by the folder of their model; a folder without cases is there too."""
        folders = {suite.path: suite.path.parent.resolve() for suite in self._catalog.suites.values()}
        found: dict[Path, list[Selected]] = {folder: [] for folder in folders.values()}
        for one in self._selection.cases:
            found[folders[one.suite.path]].append(one)
        return found

    def absent_of(self, place: Path) -> Sequence[Absent]:
        """Return the cases without a suite that tests in a place are about: none below a model's own folder."""
        return () if self._suites_folders.intersection(place.resolve().parents) else self._selection.absent

    def no_suite(self, folder: Path) -> str | None:
        """Why a benchmark class in a folder has no suite; None if a suite's folder contains it."""
        places = [folder.resolve(), *folder.resolve().parents]
        if not self._of_models.keys().isdisjoint(places):
            return None
        roots = [place.parent.parent for place in places if place.parent.name == "suites"]
        root = next((root for root in roots if holds_some(root)), None)
        fix = f"add --roots={root}" if root else "move it to suites/<model>/, above <framework>/suite.toml"
        looked = ", ".join(map(str, self._catalog.roots))
        return f"no suite contains this class; suites were looked for in {looked}; {fix}"

    # -- cases in node ids -----------------------------------------------------------------------------------

    def chosen(self, nodeids: Iterable[str]) -> list[Selected]:
        """The cases that node ids carry, in the run's order."""
        by_name = {str(one.case): one for one in self._selection.cases}
        named = {case for nodeid in nodeids if (case := case_in(nodeid, by_name)) is not None}
        return [one for one in self._selection.cases if str(one.case) in named]

    def absent_in(self, nodeids: Iterable[str]) -> list[Absent]:
        """Return the cases without a suite that node ids carry."""
        absent = {str(one.case): one for one in self._selection.absent}
        if not absent:
            return []
        found = dict.fromkeys(case for nodeid in nodeids if (case := case_in(nodeid, absent)) is not None)
        return [absent[case] for case in found]

    # -- the header ------------------------------------------------------------------------------------------

    def header(self, cases: Sequence[Selected], absent: Sequence[Absent] = ()) -> list[str]:
        """Which cases were selected, and which of them cannot run and why."""
        if not cases and not absent:
            return []
        hosts = len(self._engine.hosts)
        ready = [one for one in cases if not one.unsupported]
        elsewhere = [one for one in ready if one.case.nnodes > hosts]
        title = _title(cases, len(ready) - len(elsewhere), len(absent))
        lines = [f"flagperf: {title}; reports: {relative(self._directory.path)}"]
        lines += self._throughput_only(ready)
        unsupported: list[Selected | Absent] = [*(one for one in cases if one.unsupported), *absent]
        lines += [f"  cannot run: {one.case}: {one.unsupported}" for one in unsupported]
        lines += [
            f"  cannot run here: {one.case}: needs {one.case.nnodes} hosts, {hosts} available" for one in elsewhere
        ]
        lines += self._notes(ready)
        lines += judging.those_with_baselines(self._settings, [str(one.case) for one in ready])
        if self._settings.resume:
            lines.append(f"  going on with {relative(self._directory.path)}")
        lines += self._engine.header()
        return lines + [f"  note: {note}" for note in self._selection.notes]

    def _throughput_only(self, ready: Sequence[Selected]) -> list[str]:
        if self._settings.synthetic or self._settings.throughput_only:
            why = "synthetic data" if self._settings.synthetic else "--throughput-only"
            return [f"  throughput only: every case ({why}); no convergence is shown"]
        return [
            f"  throughput only: {one.case} (--no-throughput-only trains it to its target)"
            for one in ready
            if one.throughput_only
        ]

    def _notes(self, ready: Sequence[Selected]) -> list[str]:
        lines = [
            f"  note: {one.case}: the version picks a container's image; without containers (--runtime=docker) what the"
            " environment holds is run, and recorded"
            for one in ready
            if one.case.framework_version and runtime_of(self._settings, one) != "docker"
        ]
        notes = [
            note for one in ready for note in self._engine.notes(one.case, one.vendor, runtime_of(self._settings, one))
        ]
        return lines + [f"  note: {note}" for note in dict.fromkeys(notes)]


def _title(cases: Sequence[Selected], able: int, absent: int) -> str:
    kinds = {f"{one.vendor.name} {one.case.hardware} at {one.scale} scale" for one in cases}
    number = len(cases) + absent
    can_run = "" if able == number else f", {able} can run"
    of_what = f": {', '.join(sorted(kinds))}" if kinds else ""
    return f"{count(number, 'case')} selected{can_run}{of_what}"
