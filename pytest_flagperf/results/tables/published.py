"""Published results: copies of runs' results.json below one folder, without the runs' logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_flagperf.case import variant_of
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import RESULTS

from ..measured.marks import unknown_factor, unverified_chip
from ..measured.outcome import Outcome
from .store import load_results

_YEAR_3000_MS = 32_503_680_000_000


@dataclass(frozen=True)
class Published:
    """One case of a published run."""

    file: Path
    case: CaseResult

    @property
    def first(self) -> Outcome:
        return self.case.first

    @property
    def converged(self) -> bool:
        """Whether a round was trained to the target and passed all of its verdicts."""
        rounds = (verdicts for test, verdicts in self.case.verdicts.items() if test.startswith("test_converges"))
        return self.first.meant_to_converge and any(all(verdict.ok for verdict in verdicts) for verdicts in rounds)

    @property
    def failed(self) -> list[str]:
        """The names of the verdicts that failed, also of those that were expected to fail."""
        return list(dict.fromkeys(verdict.name for verdict in self.case.all_verdicts if not verdict.ok))


def load(folder: Path) -> tuple[Published, ...]:
    """Return the newest result of each case, scale and kind of data; raise FormatError with all damaged files."""
    newest: dict[tuple[object, ...], Published] = {}
    problems: list[str] = []
    for file in sorted(folder.rglob(RESULTS)):
        try:
            for result in _results(file):
                one = result.first
                case = one.model, one.framework, one.vendor, one.hardware, one.nnodes, one.nproc
                key = *case, variant_of(one.case), one.scale, one.synthetic
                if key not in newest or _age(newest[key]) <= _age(result):
                    newest[key] = result
        except FormatError as error:
            problems.append(str(error))
    if problems:
        raise FormatError("\n".join(problems))
    return tuple(newest.values())


def _results(file: Path) -> Iterator[Published]:
    for case in load_results(file):
        ended_ms, deviations = case.outcomes[0].ended_ms, case.outcomes[0].fingerprint.get("deviations", {})
        if ended_ms is not None and not 0 <= ended_ms < _YEAR_3000_MS:
            raise FormatError(f"{file}: {case.case}: ended_ms is {ended_ms}; expected milliseconds since 1970")
        if not isinstance(deviations, dict) or not all(isinstance(pair, list) and pair for pair in deviations.values()):
            raise FormatError(f"{file}: {case.case}: fingerprint.deviations must map keys to [value, reference]")
        if reason := unknown_factor(case.outcomes):
            raise FormatError(f"{file}: {case.case}: {reason}; or remove the case")
        if reason := unverified_chip(case.outcomes):
            problem = f"{file}: {case.case}: {reason}"
            raise FormatError(f"{problem}; publish only figures of a chip that its devices reported; remove the case")
        yield Published(file, case)


def _age(result: Published) -> int:
    return result.first.started_ms or 0
