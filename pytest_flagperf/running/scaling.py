"""Measure the speed-up of a case: many cards against one card, repeated in turns if it is below the requirement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.plan import Plan, one_card_plan, short_plan, too_large
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.comparing.one_card import find_one_card
from pytest_flagperf.results.figures import statistics
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import OneCard, Verdict, speedup
from pytest_flagperf.results.verdicts.speedup import EFFICIENCY
from pytest_flagperf.selection import Selected
from pytest_flagperf.stored import layout

from .directory import RunDirectory
from .rounds import Rounds

TURNS = 3
"""How often a missed speed-up is measured again at most; the medians of all measurements count."""


class NoSpeedup(Exception):
    """No round of the case finished, or its model does not fit into the memory of one card."""


@dataclass(frozen=True)
class Scaling:
    """The rounds of a case, the throughput of one card, and the required efficiency."""

    outcomes: Sequence[Outcome]
    one_card: OneCard
    cards: int
    min_efficiency: float
    kind: str

    @property
    def is_missed(self) -> bool:
        """Whether the speed-up was measured and is below the requirement."""
        verdicts = self.verdicts()
        measured = any(verdict.name == EFFICIENCY for verdict in verdicts)
        return measured and not all(verdict.ok for verdict in verdicts)

    def verdicts(self, *, strict: bool = False) -> list[Verdict]:
        """Judge whether many cards are faster than one card by the required efficiency."""
        return speedup(self.outcomes, self.one_card, self.cards, self.min_efficiency, self.kind, strict=strict)


class ScalingRounds:
    """The additional rounds that the measurement of a speed-up needs."""

    def __init__(self, plan_of: Callable[[Selected], Plan], rounds: Rounds, directory: RunDirectory) -> None:
        self._plan_of = plan_of
        self._rounds = rounds
        self._directory = directory
        self._one_cards = OneCards(directory.path.parent)

    def measure(self, selected: Selected, outcomes: Sequence[Outcome]) -> Scaling:
        """Return the scaling of a case; one card is measured if no run has measured it."""
        if not any(outcome.ended_well for outcome in outcomes):
            raise NoSpeedup(f"no speed-up: no round of {selected.case} finished")
        plan, folder = self._plan_of(selected), self._folder(selected)
        one_card_round = one_card_plan(plan)
        key = str(one_card_round.fingerprint["key"])

        def measured() -> Outcome:
            for sentence in too_large([one_card_round]):
                raise NoSpeedup(f"no speed-up: {sentence}")
            note("line", text=f"{selected.case}: measuring one card for the speed-up")
            return self._rounds.run(one_card_round, 1, folder / layout.ONE_CARD)

        one_card = self._one_cards.of(key, outcomes[0].machine, self._rounds.measured.values(), measured)
        scaling = Scaling(outcomes, one_card, selected.case.shape.cards, plan.min_efficiency, plan.scaling)
        for turn in range(1, TURNS + 1):
            if not scaling.is_missed:
                break
            note(
                "line",
                text=f"{selected.case}: speed-up below the requirement; measuring it again ({turn} of at most {TURNS})",
            )
            scaling = replace(scaling, one_card=self._take_turn(selected, scaling.one_card, turn))
        store.save_one_card(folder, scaling.one_card)
        return scaling

    def _take_turn(self, selected: Selected, one_card: OneCard, turn: int) -> OneCard:
        """Measure one card and then all cards in short rounds, so that both run under the same conditions."""
        plan = self._plan_of(selected)
        values = []
        for name, turn_plan in ((layout.ONE_CARD, one_card_plan(plan)), (layout.ALL_CARDS, short_plan(plan))):
            folder = self._folder(selected) / layout.turn_folder(turn, name)
            outcome = self._rounds.run(turn_plan, turn, folder)
            _check_short_round(outcome)
            values += [] if outcome.busy else statistics.finite([outcome.value("p_core")])
        return one_card.with_turn(*values) if len(values) == 2 else one_card

    def _folder(self, selected: Selected) -> Path:
        return self._directory.path / selected.case.folder


class OneCards:
    """The throughput of one card by fingerprint: of this run, else of a stored run, else measured now."""

    def __init__(self, reports: Path) -> None:
        self._reports = reports
        self._known: dict[str, OneCard] = {}

    def of(
        self, key: str, on_machine: Mapping[str, Any], rounds: Iterable[Outcome], measure: Callable[[], Outcome]
    ) -> OneCard:
        """Return the throughput of one card on the machine that the many cards ran on."""
        if key not in self._known:
            same = [
                outcome
                for outcome in rounds
                if outcome.ok and not outcome.starts and outcome.fingerprint.get("key") == key
            ]
            same = [outcome for outcome in same if not machine.differences(outcome.machine, on_machine)]
            known = (
                _of_this_run([outcome for outcome in same if outcome.valid])
                or find_one_card(self._reports, key, on_machine)
                or _of_this_run(same)
            )
            self._known[key] = known or _measured(measure())
        return self._known[key]


def _of_this_run(rounds: Sequence[Outcome]) -> OneCard | None:
    values = [value for outcome in rounds if (value := outcome.value("p_core")) is not None]
    return OneCard.of(values, "this run", rounds[0].rate_unit, rounds[0].busy) if values else None


def _measured(outcome: Outcome) -> OneCard:
    _check_short_round(outcome)
    return OneCard(outcome.value("p_core"), "a short round of this run", outcome.rate_unit, busy=outcome.busy)


def _check_short_round(outcome: Outcome) -> None:
    """Raise Problems if a short round failed."""
    if outcome.failures:
        raise Problems(
            f"the short round of {count(outcome.cards, 'card')} for the speed-up: {failure.sentence}"
            for failure in outcome.failures
        )
