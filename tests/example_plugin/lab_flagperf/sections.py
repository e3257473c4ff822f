"""The lab's section of the page: the price of each case."""

from pytest_flagperf.hooks import Section, Table, hookimpl
from pytest_flagperf.results import CaseResult, StoredRun

EUR_PER_CARD_HOUR = 2.0


@hookimpl
def flagperf_sections(run: StoredRun) -> list[Section]:
    rows = [(case.case, round(card_hours(case) * EUR_PER_CARD_HOUR, 4)) for case in run.cases]
    price = f"{EUR_PER_CARD_HOUR:g} EUR per card and hour"
    return [Section("Price", [f"The time of all rounds at {price}.", Table(["case", "EUR"], rows)])]


def card_hours(case: CaseResult) -> float:
    return sum(outcome.cards * (outcome.value("e2e_time") or 0.0) for outcome in case.outcomes) / 3600
