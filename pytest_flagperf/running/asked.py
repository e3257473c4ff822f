"""What was asked for: the cases of a folder, and those that node ids name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.selection import Absent, Selected, Selection, case_in
from pytest_flagperf.settings import holds_some


class Asked:
    """The cases of a run by the tests that are about them."""

    def __init__(self, catalog: Catalog, selection: Selection) -> None:
        self._catalog = catalog
        self._selection = selection
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
