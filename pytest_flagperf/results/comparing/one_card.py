"""Find the stored throughput of one card, with which the speed-up of many cards is computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.results.figures import statistics
from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import newest_first
from pytest_flagperf.results.verdicts import OneCard
from pytest_flagperf.stored import FormatError, layout

STORED = "stored in"
"""How the origin of a figure of another run begins."""


def find_one_card(reports_dir: Path, key: str | None, ran_on: Mapping[str, Any] | None = None) -> OneCard | None:
    """Return the newest successful round of one card with this key, on a comparable machine, without warnings."""
    if not key:
        return None
    for run_dir in newest_first(reports_dir):
        for path in sorted(run_dir.glob(f"*/*/{layout.OUTCOME}")):
            one_card = _one_card(path, key, ran_on or {})
            if one_card is not None:
                return one_card
    return None


def _one_card(path: Path, key: str, ran_on: Mapping[str, Any]) -> OneCard | None:
    try:
        outcome = store.load_outcome(path.parent)
    except FormatError:
        return None
    values = statistics.finite([outcome.value("p_core")])
    keys = (outcome.fingerprint.get("key"), outcome.fingerprint.get("one_card_key"))
    if machine.differences(outcome.machine, ran_on):
        return None
    # A slow round of one card would make every speed-up look better.
    if not (outcome.valid and outcome.cards == 1 and key in keys and values and values[0] > 0):
        return None
    where = path.parent
    return OneCard(
        values[0], f"{STORED} {where.parent.parent.name}/{where.parent.name}/{where.name}", outcome.rate_unit
    )
