"""Recorded and made-up outcomes for the tests of results and reports."""

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import MetricValue, Outcome
from pytest_flagperf.stored import digests, files, layout
from tests.helpers import recording
from tests.replays import make

REPLAYS = make.BY_NAME
NAMES = sorted(REPLAYS)


@cache
def _replays() -> Path:
    """The folder of this process's replays, which the session removes at its end."""
    return Path(tempfile.mkdtemp(prefix="replays-"))


@cache
def replay_dir(name: str) -> Path:
    return recording.write(REPLAYS[name], _replays() / name)


@cache
def recorded(name: str) -> Outcome:
    return measure(replay_dir(name))


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
    if path.name == layout.RESULTS:
        digests.write_results(path.parent, files.dumps(body))
    else:
        files.write(path, body)
