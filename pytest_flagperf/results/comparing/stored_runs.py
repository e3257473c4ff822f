"""Find the stored runs of a case by the names of their folders, so that few files are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pytest_flagperf.case import folder_pattern
from pytest_flagperf.results.comparing.comparable import config_differences
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import newest_first
from pytest_flagperf.results.verdicts import VerdictKind
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import OUTCOME

Rounds = tuple[Outcome, ...]
NamedRounds = tuple[str, Rounds]
"""The rounds of a case in a run, with the run's name."""


def without_copies(runs: Sequence[NamedRounds]) -> list[NamedRounds]:
    """Leave out runs of which every round is in others: copied runs would make the noise look smaller."""
    seen: set[object] = set()
    kept = set()
    for place in sorted(range(len(runs)), key=lambda place: len(runs[place][1])):
        rounds = [one.identity for one in runs[place][1]]
        if any(started_ms is None or (started_ms, *rest) not in seen for started_ms, *rest in rounds):
            kept.add(place)
        seen.update(rounds)
    return [run for place, run in enumerate(runs) if place in kept]


class StoredRuns:
    """The runs in a folder of reports, or the ``newest`` of them, except the run ``but``; each file is read once."""

    def __init__(self, reports: Path, but: str = "", newest: int | None = None) -> None:
        self._reports = reports
        self._directories = [path for path in newest_first(reports) if path.name != but][:newest]
        self._rounds = cache(lambda case_dir: tuple(_valid(case_dir)))

    def like(self, outcome: Outcome, most: int = noise.MEMORY) -> list[Rounds]:
        """Return the rounds of the runs of ``named`` that did not regress: a regression is no noise."""
        return [rounds for name, rounds in self.named(outcome, most) if not self.has_regressed(name, rounds)]

    def has_regressed(self, run: str, rounds: Rounds) -> bool:
        """Return whether rounds of a run in the folder were judged worse than an accepted baseline."""
        folders = {self._reports / run / outcome.directory.parent for outcome in rounds}
        tests = (verdicts for folder in folders for verdicts in store.load_verdicts(folder).values())
        return any(one.kind == VerdictKind.BASELINE and not one.ok for verdicts in tests for one in verdicts)

    def named(self, outcome: Outcome, most: int = noise.MEMORY) -> list[NamedRounds]:
        """Return the names and valid rounds of the newest comparable runs, the newest last; their code may differ."""
        runs: list[NamedRounds] = []
        for name, rounds in self.of_case(outcome.without_repeat):
            if not config_differences(rounds[0], outcome):
                runs = without_copies([*runs, (name, rounds)])
            if len(runs) == most:
                break
        return runs[::-1]

    def of_case(self, case: str) -> Iterator[NamedRounds]:
        """Yield the rounds of a case without its repeat, the newest run first; runs are read one by one."""
        pattern = folder_pattern(case)
        for directory in self._directories:
            rounds = [one for place in sorted(directory.glob(pattern)) for one in self._rounds(place)]
            # Underscores in a name may make another case's folder look like this one's.
            own = tuple(outcome for outcome in rounds if outcome.without_repeat == case)
            if own:
                yield directory.name, own


def _valid(case_dir: Path) -> Iterator[Outcome]:
    """Yield the successful rounds without validity warnings; unreadable rounds are skipped."""
    for path in sorted(case_dir.glob(f"round*/{OUTCOME}")):
        try:
            outcome = store.load_outcome(path.parent)
        except FormatError:
            continue
        if outcome.valid:
            yield outcome
