"""The gates for rounds beyond their own outcome: validity, accepted baselines, the speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_flagperf.kind import Criterion
from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import Verdict, valid
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError

from .judging import stored_baseline
from .scaling import Scaling


class Gates:
    """The gates that rounds must pass; with ``strict`` a warning is a failure."""

    def __init__(self, settings: Settings, *, strict: bool) -> None:
        self._settings = settings
        self._strict = strict

    def verdicts(self, criterion: Criterion, judged: Any) -> list[Verdict]:
        """Judge what the fixture of the criterion has: by the outcomes alone, and by its gate."""
        rounds = [judged] if isinstance(judged, Outcome) else judged
        further = getattr(self, criterion.gate)(judged) if criterion.gate else ()
        return [*criterion.verdicts_on(rounds), *further]

    def valid(self, outcome: Outcome) -> list[Verdict]:
        """Judge whether a round has validity warnings."""
        return [valid(outcome, strict=self._strict)]

    def speedup(self, scaling: Scaling) -> list[Verdict]:
        """Judge whether many cards are faster than one card by the required efficiency."""
        return scaling.verdicts(strict=self._strict)

    def figures(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """Judge whether the rounds are valid and their figures as good as the accepted baseline."""
        verdicts = [verdict for outcome in outcomes for verdict in self.valid(outcome)]
        if any(outcome.ok for outcome in outcomes):
            verdicts += self._baseline(outcomes)
        return verdicts

    def _baseline(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        try:
            baseline = stored_baseline(Path(self._settings.baselines), outcomes[0].case)
        except FormatError as error:
            return [baselines.unreadable(error)]
        if baseline is None:
            return []
        return baselines.judge(outcomes, baseline, ignore_differences=self._settings.ignore_differences)
