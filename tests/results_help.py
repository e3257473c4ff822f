"""Recorded and made-up outcomes for the tests of results and reports."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import MetricValue, Outcome
from pytest_flagperf.stored import digests, files

REPLAYS = Path(__file__).resolve().parent / "replays"
NAMES = sorted(path.parent.name for path in REPLAYS.glob("*/plan.json"))


@cache
def recorded(name: str) -> Outcome:
    return measure(REPLAYS / name)


def expected(name: str) -> dict[str, list[str]]:
    body: dict[str, list[str]] = json.loads((REPLAYS / name / "expected.json").read_text(encoding="utf-8"))
    return body


def with_metric(outcome: Outcome, name: str, value: float | None) -> Outcome:
    """The outcome with another value of one metric; None takes it away."""
    kept = [metric for metric in outcome.metrics if metric.name != name]
    old = outcome.metric(name)
    if value is not None:
        kept.append(replace(old, value=value) if old else MetricValue(name, value, "", "higher", "made up"))
    return replace(outcome, metrics=tuple(kept))


def edit_json(path: Path, **changes: Any) -> None:
    """Write a stored file with other values, as a run that measured them would have written it."""
    body = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    (digests.write if digests.DIGEST in body else files.write)(path, body)
