"""What rounds must get past beside what they say of themselves: validity, accepted baselines, the speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import Verdict, valid
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError

from .judging import stored_baseline
from .scaling import Scaling


class Gates:
    """What rounds must get past; ``strict``: what is otherwise a warning fails."""

    def __init__(self, settings: Settings, *, strict: bool) -> None:
        self._settings = settings
        self._strict = strict

    def valid(self, outcome: Outcome) -> list[Verdict]:
        """The round has no validity warning."""
        return [valid(outcome, strict=self._strict)]

    def speedup(self, scaling: Scaling) -> list[Verdict]:
        """Many cards are faster than one by what was promised, where the machine was there for them alone."""
        return scaling.verdicts(strict=self._strict)

    def throughput(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """The rounds are valid, and as good as what was accepted."""
        found = [verdict for outcome in outcomes for verdict in self.valid(outcome)]
        if any(outcome.ok for outcome in outcomes):
            found += self._baseline(outcomes)
        return found

    def _baseline(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        try:
            baseline = stored_baseline(Path(self._settings.baselines), outcomes[0].case)
        except FormatError as error:
            return [baselines.unreadable(error)]
        if baseline is None:
            return []
        found = baselines.judge(outcomes, baseline, allow_unlike=self._settings.unlike)
        if self._settings.accept_baseline:
            # The old baseline fails no run that is accepted as the new one.
            return [one if one.ok else replace(one, ok=True, warning=True) for one in found]
        return found
