"""What a run records: the verdicts of each test at once, and its results at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pytest_flagperf.case import Case
from pytest_flagperf.results import store
from pytest_flagperf.results.measured.outcome import UNREADABLE
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.stored import WriteError

from .directory import RunDirectory


class Records:
    """``results`` are those of the whole run, once it has ended; ``refused``: what could not be written then."""

    def __init__(self, directory: RunDirectory) -> None:
        self.results: store.Run | None = None
        self.refused: list[WriteError] = []
        self._directory = directory
        self._unwritten: dict[tuple[Case, str], Sequence[Verdict]] = {}

    def record(self, case: Case, test: str, verdicts: Sequence[Verdict]) -> None:
        """Keep what was judged, also if the run is killed next."""
        store.save_verdicts(self._directory.path / case.folder, test, verdicts)

    def keep(self, case: Case, test: str, verdicts: Sequence[Verdict]) -> None:
        """Keep in memory what could not be recorded: for the closing table, and for the disk when it has room again."""
        self._unwritten[case, test] = verdicts

    def write_results(self, info: store.RunInfo) -> store.Run:
        """Write results.json and results.csv, of all workers' rounds; ``refused`` gets the errors."""
        self._record_again()
        read = store.load_run(self._directory.path)
        self.results = replace(read, info=info, cases=tuple(map(self._with_unwritten, read.cases)))
        with self.noting_refusals():
            store.write_run(self._directory.path, info, self.results.cases)
        return self.results

    @contextmanager
    def noting_refusals(self) -> Iterator[None]:
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
            with self.noting_refusals():
                self.record(case, test, verdicts)
                del self._unwritten[case, test]

    def _with_unwritten(self, result: store.CaseResult) -> store.CaseResult:
        """A case with the verdicts that are in memory only."""
        own = {test: tuple(verdicts) for (case, test), verdicts in self._unwritten.items() if str(case) == result.case}
        return replace(result, verdicts={**result.verdicts, **own})
