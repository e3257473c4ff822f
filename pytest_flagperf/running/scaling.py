"""The speed-up of a case: its own rounds, what one card does, and turns of both where it was missed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.plan import one_card_plan, short_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import store
from pytest_flagperf.results.comparing import statistics
from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import Kind, OneCard, Verdict, speedup
from pytest_flagperf.selection import Selected
from pytest_flagperf.stored import layout

from .directory import RunDirectory
from .plans import Plans
from .rounds import Rounds

TURNS = 3
"""So often, at most, a speed-up that was missed is measured again: the medians of all times count."""


@dataclass(frozen=True)
class Scaling:
    """What the speed-up of a case is judged by."""

    outcomes: Sequence[Outcome]
    one_card: OneCard
    cards: int
    min_efficiency: float
    kind: str

    @property
    def is_open(self) -> bool:
        """Whether it was measured and missed: more rounds could show something else."""
        found = self.verdicts()
        return any(one.kind is Kind.EFFICIENCY for one in found) and not all(one.ok for one in found)

    def verdicts(self, *, strict: bool = False) -> list[Verdict]:
        """Whether many cards are faster than one, by what was promised."""
        return speedup(self.outcomes, self.one_card, self.cards, self.min_efficiency, self.kind, strict=strict)


class ScalingRounds:
    """Runs the rounds that a speed-up needs beside those of its case."""

    def __init__(self, plans: Plans, rounds: Rounds, directory: RunDirectory) -> None:
        self._plans = plans
        self._rounds = rounds
        self._directory = directory
        self._one_cards = OneCards(directory.path.parent)

    def measure(self, one: Selected, outcomes: Sequence[Outcome]) -> Scaling:
        """Return the rounds of a case and what one card does, which is measured where no run knows it."""
        plan, folder = self._plans.plan(one), self._folder(one)
        alone = one_card_plan(plan)
        key = str(alone.fingerprint["key"])

        def measured() -> Outcome:
            self._rounds.watch.note(f"{one.case}: measuring one card for the speed-up")
            return self._rounds.run(alone, one.vendor, 1, folder / layout.ONE_CARD)

        one_card = self._one_cards.of(key, outcomes[0].machine, self._rounds.measured.values(), measured)
        found = Scaling(outcomes, one_card, one.case.shape.cards, plan.min_efficiency, plan.scaling)
        for turn in range(1, TURNS + 1):
            if not found.is_open:
                break
            self._rounds.watch.note(
                f"{one.case}: the speed-up was missed; measuring it again ({turn} of at most {TURNS} times)"
            )
            found = replace(found, one_card=self._take_turn(one, found.one_card, turn))
        store.save_one_card(folder, found.one_card)
        return found

    def _take_turn(self, one: Selected, one_card: OneCard, turn: int) -> OneCard:
        """A short round of one card and then one of all, so that both see the same of the machine."""
        plan = self._plans.plan(one)
        values = []
        for name, each in ((layout.ONE_CARD, one_card_plan(plan)), (layout.ALL_CARDS, short_plan(plan))):
            outcome = self._rounds.run(each, one.vendor, turn, self._folder(one) / layout.turn_folder(turn, name))
            _check_short_round(outcome)
            values += [] if outcome.busy else statistics.finite([outcome.value("p_core")])
        return one_card.with_turn(*values) if len(values) == 2 else one_card

    def _folder(self, one: Selected) -> Path:
        return self._directory.path / one.case.folder


class OneCards:
    """What one card does, by the key of its fingerprint: of this run, else of a stored one, else measured now."""

    def __init__(self, reports: Path) -> None:
        self._reports = reports
        self._known: dict[str, OneCard] = {}

    def of(
        self, key: str, ran_on: Mapping[str, Any], rounds: Iterable[Outcome], measure: Callable[[], Outcome]
    ) -> OneCard:
        """On a machine like the one that the many cards ran on."""
        if key not in self._known:
            mine = [one for one in rounds if one.ok and one.fingerprint.get("key") == key]
            mine = [one for one in mine if not machine.differences(one.machine, ran_on)]
            stored = (
                _of_this_run([one for one in mine if not one.busy])
                or store.find_one_card(self._reports, key, ran_on)
                or _of_this_run(mine)
            )
            self._known[key] = stored or _measured(measure())
        return self._known[key]


def _of_this_run(rounds: Sequence[Outcome]) -> OneCard | None:
    values = [value for one in rounds if (value := one.value("p_core")) is not None]
    return OneCard.of(values, "this run", rounds[0].rate_unit, rounds[0].busy) if values else None


def _measured(outcome: Outcome) -> OneCard:
    _check_short_round(outcome)
    return OneCard(outcome.value("p_core"), "a short round of this run", outcome.rate_unit, busy=outcome.busy)


def _check_short_round(outcome: Outcome) -> None:
    """Problems where a round that a speed-up needs did not end well."""
    if outcome.failures:
        raise Problems(
            f"the short round of {count(outcome.cards, 'card')} for the speed-up: {failure.sentence}"
            for failure in outcome.failures
        )
