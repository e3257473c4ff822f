"""The records of a run: the verdicts of each test as soon as it ends, and the results at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pytest_flagperf.case import Case
from pytest_flagperf.results.measured.outcome import UNREADABLE
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import WriteError

from .directory import RunDirectory


class Records:
    """The verdicts and results of a run; ``results`` is set when the run has ended."""

    def __init__(self, directory: RunDirectory) -> None:
        self.results: store.StoredRun | None = None
        self.write_errors: list[WriteError] = []
        self._directory = directory
        self._unwritten: dict[tuple[Case, str], Sequence[Verdict]] = {}

    def record(self, case: Case, test: str, verdicts: Sequence[Verdict]) -> None:
        """Write the verdicts of a test to disk at once, so that they survive a killed run."""
        store.save_verdicts(self._directory.path / case.folder, test, verdicts)

    def keep(self, case: Case, test: str, verdicts: Sequence[Verdict]) -> None:
        """Keep verdicts that could not be written in memory: for the summary, and to write them again at the end."""
        self._unwritten[case, test] = verdicts

    def write_results(self, info: store.RunInfo) -> store.StoredRun:
        """Write results.json and results.csv with the rounds of all workers; errors go to ``write_errors``."""
        self._record_again()
        run = store.load_run(self._directory.path)
        self.results = replace(run, info=info, cases=tuple(map(self._with_unwritten, run.cases)))
        with self.collecting_write_errors():
            store.write_run(self._directory.path, info, self.results.cases)
        return self.results

    @contextmanager
    def collecting_write_errors(self) -> Iterator[None]:
        """Add a WriteError of the body to ``write_errors`` and continue."""
        try:
            yield
        except WriteError as error:
            self.write_errors.append(error)

    @property
    def is_incomplete(self) -> bool:
        """Whether a result could not be written, or a record could not be read at the end of the run."""
        cases = self.results.cases if self.results is not None else ()
        return bool(self.write_errors) or any(
            outcome.state == UNREADABLE for case in cases for outcome in case.outcomes
        )

    def _record_again(self) -> None:
        for (case, test), verdicts in list(self._unwritten.items()):
            with self.collecting_write_errors():
                self.record(case, test, verdicts)
                del self._unwritten[case, test]

    def _with_unwritten(self, result: CaseResult) -> CaseResult:
        """Return the result of a case with the verdicts that are only in memory."""
        unwritten = {
            test: tuple(verdicts) for (case, test), verdicts in self._unwritten.items() if str(case) == result.case
        }
        return replace(result, verdicts={**result.verdicts, **unwritten})
