"""Where the time of a round goes, as one bar: start, compile, train, evaluate, wait for input, save, end.

Another bar shows all starts of a training: what became progress, and what was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_flagperf.results.measured import phases
from pytest_flagperf.results.measured.outcome import Outcome

from . import chart_html

START, TRAIN, EVALUATE, COMPILE, WAIT, SAVE, END = OF_TRAINING = (
    "start", "train", "evaluate", "compile", "wait for input", "save", "end",
)  # fmt: skip
MEASURE, PROGRESS = "measure", "progress"
OF_MEASUREMENT = (START, MEASURE, END)
_PHASES = (phases.INIT, phases.WARM_UP, phases.TRAIN, phases.EVALUATE, phases.MEASURE)
_LEAST = 0.001
"""The least share of the round that is shown."""


def parts_of(outcome: Outcome) -> dict[str, float]:
    """Return the seconds of each part of a round; of a round that failed, by the end of its log."""
    times = {name: sum(phase.seconds for phase in outcome.phases if phase.name == name) for name in _PHASES}
    evaluations = times[phases.EVALUATE]
    training = times[phases.WARM_UP] + times[phases.TRAIN] - evaluations
    compiling = min(outcome.value("compile_time") or 0.0, training)
    waiting = min((outcome.value("input_wait_share") or 0.0) * training, training - compiling)
    pause = outcome.metric("save_pause")
    saving = min(pause.value * (pause.samples or 0), training - compiling - waiting) if pause else 0.0
    parts = {
        START: times[phases.INIT],
        COMPILE: compiling,
        TRAIN: training - compiling - waiting - saving,
        MEASURE: times[phases.MEASURE],
        EVALUATE: evaluations,
        WAIT: waiting,
        SAVE: saving,
    }
    whole = sum(parts.values())
    parts[END] = (outcome.value("e2e_time") or whole) - whole
    return {name: seconds for name, seconds in parts.items() if seconds > _LEAST * whole}


def of_training(outcome: Outcome) -> dict[str, float]:
    """Return what a training waits for besides its steps, as shares of its time."""
    parts = parts_of(outcome)
    names = {EVALUATE: "evaluations", WAIT: "waiting for input", COMPILE: "compiling", SAVE: "saving"}
    training = sum(parts.get(name, 0.0) for name in (*names, TRAIN))
    return {text: parts.get(name, 0.0) / training for name, text in names.items()} if training else {}


def html(rounds: Mapping[str, Outcome]) -> str:
    """Return a bar for each named round, all on the same scale; empty without times."""
    named = {name: parts for name, outcome in rounds.items() if (parts := parts_of(outcome))}
    most = max((sum(parts.values()) for parts in named.values()), default=0.0)
    bars = [
        chart_html.stacked(name, parts, "s", most, OF_MEASUREMENT if MEASURE in parts else OF_TRAINING)
        for name, parts in named.items()
    ]
    for name, outcome in rounds.items():
        if lost := outcome.lost_s:
            whole = {PROGRESS: outcome.value("raw_train_time") or 0.0, **lost}
            bars.append(chart_html.stacked(f"{name}, all starts", whole, "s", sum(whole.values()), [*whole]))
    return f"<h3>Time</h3>{''.join(bars)}" if bars else ""
