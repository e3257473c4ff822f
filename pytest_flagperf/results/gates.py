"""What a round's figures must get past, beside what they say of themselves: nothing bent them, earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import JUDGED
from pytest_flagperf.results.comparing.statistics import finite
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.verdicts import Verdict

HISTORY = "history"


def valid(outcome: Outcome, *, strict: bool) -> Verdict:
    """Whether a round's figures can be taken at their word; marks are warnings, and under strict failures."""
    wanted = "nothing that bends the figures"
    if not outcome.marks:
        return Verdict("valid", True, "nothing", wanted, f"round {outcome.round}: nothing bent its figures")
    kinds = ", ".join(dict.fromkeys(mark.kind for mark in outcome.marks))
    what = "; ".join(dict.fromkeys(mark.sentence for mark in outcome.marks))
    sentence = f"round {outcome.round}: its figures are bent: {what}"
    return Verdict("valid", not strict, kinds, wanted, sentence)


def history(
    outcomes: Sequence[Outcome], earlier: Sequence[Sequence[Outcome]], metrics: Iterable[str] = JUDGED
) -> list[Verdict]:
    """The rounds that ended well against those of earlier runs, the newest of them last; few runs say nothing."""
    return [verdict for name in metrics for verdict in _against(name, [one for one in outcomes if one.ok], earlier)]


def _against(name: str, outcomes: Sequence[Outcome], earlier: Sequence[Sequence[Outcome]]) -> Iterator[Verdict]:
    record = next((metric for one in outcomes if (metric := one.metric(name)) is not None), None)
    if record is None:
        return  # without a value there is a failed verdict already
    runs = [finite(one.value(name) for one in rounds) for rounds in earlier]
    values = finite(one.value(name) for one in outcomes)
    found = noise.judge(runs, values, direction=record.direction, unit=record.unit)
    said = {noise.WORSE: "worse than earlier runs: ", noise.BETTER: "better than earlier runs: "}.get(found.word, "")
    sentence = f"{name}: {said}{found.sentence}"
    yield Verdict(f"{HISTORY} {name}", found.word != noise.WORSE, found.word, "not worse than noise", sentence)


def as_warnings(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The same, where they are to be read and to fail nothing."""
    return [verdict if verdict.ok else replace(verdict, ok=True, warning=True) for verdict in verdicts]
