"""A case's results in the form of ais-bench: train_result_info with its 15 keys, and the lines of its report.

An unknown time is UNKNOWN_TIME, and another unknown value is 0, as ais-bench writes them. The names of these values
are listed, so that no reader takes them for measurements.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf import stored
from pytest_flagperf.results import CaseResult, Outcome
from pytest_flagperf.results.measured.phases import INIT, training

FILE = "train_result_info.json"
"""The file in the directory of a case."""
UNKNOWN_TIME = "2020-01-30 14:16:00"
THROUGHPUT = "p_train"
"""The metric that ais-bench calls throughput: samples of all cards over the training's time without evaluations."""
_TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class AisBenchResult:
    """The result of a case: an entry of the lists for each finished round."""

    case: str
    throughputs: tuple[float, ...]
    accuracies: tuple[float, ...]
    info: dict[str, Any]
    not_measured: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines of ais-bench's report."""
        for name, values in (("throughput_list", self.throughputs), ("accuracy_list", self.accuracies)):
            if values:
                yield f"report >> {name}:{list(values)} average:{statistics.mean(values)}"
        yield f"report >> not measured: {', '.join(self.not_measured)}"

    def info_text(self) -> str:
        """Return train_result_info as ais-bench prints it."""
        return f"train_result_info: {json.dumps(self.info, indent=3, separators=(',', ' : '))}"


def result_of(case: CaseResult) -> AisBenchResult:
    """Return the result of a case from its finished rounds."""
    rounds = [outcome for outcome in case.outcomes if outcome.ok]
    throughputs = _finite(outcome.value(THROUGHPUT) for outcome in rounds)
    accuracies = _finite(outcome.value(outcome.target.name) for outcome in rounds if outcome.meant_to_converge)
    measured = {
        "accuracy": str(statistics.mean(accuracies)) if accuracies else None,
        "average_power": _mean(rounds, "host_power"),
        "dataload_end_time": None,
        "dataload_start_time": None,
        "efficientcy": None,
        "energy_consumption": _mean(rounds, "host_energy"),
        "max_power": None,
        **_times("prepare", [(phase.start, phase.end) for one in rounds for phase in one.phases if phase.name == INIT]),
        **_times("proc", [(part.start, part.end) for one in rounds if (part := training(one.phases)) is not None]),
        "resource_util_ratio": _mean(rounds, "device_utilization"),
        "throughput_ratio": str(statistics.mean(throughputs)) if throughputs else None,
        **_times("total", _totals(case.outcomes)),
    }
    missing = tuple(name for name, value in measured.items() if value is None)
    unknown: dict[str, Any] = {name: UNKNOWN_TIME if name.endswith("_time") else 0 for name in missing}
    return AisBenchResult(case.case, throughputs, accuracies, {**measured, **unknown}, missing)


def write_results(directory: Path, cases: Iterable[CaseResult]) -> list[str]:
    """Write each case's train_result_info into its folder; return the lines of ais-bench's report."""
    lines = []
    for case in cases:
        if not any(outcome.ok for outcome in case.outcomes):
            continue
        result = result_of(case)
        path = directory / case.outcomes[0].directory.parent / FILE
        stored.write(path, result.info)
        lines += [f"{result.case}: {path}", *result.lines()]
    return lines


def _finite(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None and math.isfinite(value))


def _mean(rounds: Sequence[Outcome], name: str) -> float | None:
    values = _finite(outcome.value(name) for outcome in rounds)
    return statistics.mean(values) if values else None


def _totals(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    return [(one.started_ms / 1000, one.ended_ms / 1000) for one in outcomes if one.started_ms and one.ended_ms]


def _times(name: str, spans: Sequence[tuple[float, float]]) -> dict[str, str | None]:
    """Return the end of the last and the start of the first of several spans, in the order of ais-bench."""
    return {
        f"{name}_end_time": _text(max(end for _, end in spans)) if spans else None,
        f"{name}_start_time": _text(min(start for start, _ in spans)) if spans else None,
    }


def _text(seconds: float) -> str:
    return time.strftime(_TIME, time.localtime(seconds))
