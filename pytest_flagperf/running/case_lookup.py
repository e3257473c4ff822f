"""Find the cases that a test or a node id belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.selection import Absent, Selected, Selection, case_in
from pytest_flagperf.settings import holds_some


class CaseLookup:
    """The selected cases, by the folder of a test and by node id."""

    def __init__(self, catalog: Catalog, selection: Selection) -> None:
        self._catalog = catalog
        self._selection = selection
        self._by_folder: dict[Path, Sequence[Selected]] = {}

    # -- by folder -------------------------------------------------------------------------------------------

    def cases_of(self, folder: Path) -> Sequence[Selected]:
        """Return the cases for a test in a folder: below a model's folder the cases of that model, elsewhere all."""
        if folder not in self._by_folder:
            self._by_folder[folder] = self._find_cases(folder.resolve())
        return self._by_folder[folder]

    def _find_cases(self, folder: Path) -> Sequence[Selected]:
        models = [parent for parent in (folder, *folder.parents) if parent.parent in self._suites_folders]
        if not models:
            return self._selection.cases
        return [selected for model in models for selected in self._by_model.get(model, ())]

    @cached_property
    def _suites_folders(self) -> set[Path]:
        return {(root / "suites").resolve() for root in self._catalog.roots}

    @cached_property
    def _by_model(self) -> dict[Path, list[Selected]]:
        """The cases by the folder of their model; a folder without cases has an empty list."""
        folders = {suite.path: folder for folder, suites in self._suites.items() for suite in suites}
        cases: dict[Path, list[Selected]] = {folder: [] for folder in folders.values()}
        for selected in self._selection.cases:
            cases[folders[selected.suite.path]].append(selected)
        return cases

    @cached_property
    def _suites(self) -> dict[Path, list[Suite]]:
        """All suites by the folder of their model."""
        suites: dict[Path, list[Suite]] = {}
        for suite in self._catalog.suites.values():
            suites.setdefault(suite.path.parent.resolve(), []).append(suite)
        return suites

    def absent_of(self, path: Path) -> Sequence[Absent]:
        """Return the cases without a suite; none for a path below the folder of a model."""
        return () if self._suites_folders.intersection(path.resolve().parents) else self._selection.absent

    def wrong_suite(self, folder: Path, kind: str) -> str | None:
        """Return why a benchmark class in a folder has no suite of its kind; None if it has one."""
        folders = [folder.resolve(), *folder.resolve().parents]
        suites = [suite for one in folders for suite in self._suites.get(one, ())]
        if suites:
            if kind in {suite.kind for suite in suites}:
                return None
            return f"is for suites of kind {kind!r}; {suites[0].name} is a {suites[0].kind} (suite.toml)"
        roots = [parent.parent.parent for parent in folders if parent.parent.name == "suites"]
        root = next((root for root in roots if holds_some(root)), None)
        fix = f"add --roots={root}" if root else "move it to suites/<model>/, above <framework>/suite.toml"
        searched = ", ".join(map(str, self._catalog.roots))
        return f"no suite contains this class; searched for suites in {searched}; {fix}"

    # -- by node id ------------------------------------------------------------------------------------------

    def selected_in(self, nodeids: Iterable[str]) -> list[Selected]:
        """Return the cases that node ids contain, in the order of the run."""
        by_name = {str(selected.case): selected for selected in self._selection.cases}
        names = {case for nodeid in nodeids if (case := case_in(nodeid, by_name)) is not None}
        return [selected for selected in self._selection.cases if str(selected.case) in names]

    def absent_in(self, nodeids: Iterable[str]) -> list[Absent]:
        """Return the cases without a suite that node ids contain."""
        by_name = {str(absent.case): absent for absent in self._selection.absent}
        if not by_name:
            return []
        names = dict.fromkeys(case for nodeid in nodeids if (case := case_in(nodeid, by_name)) is not None)
        return [by_name[name] for name in names]
