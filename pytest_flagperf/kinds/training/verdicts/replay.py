"""Verdicts on a replay: the training's segments agree with the repeated ones, and are equal to them bit by bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.replay import FigureDifference, RepeatedSegment, Replay
from pytest_flagperf.results.verdicts.verdict import Verdict

TWINS = 4.0
"""Allowed difference, relative to that of a twin: the same segment, repeated with rounding errors of one unit in the
last place in each layer's result."""
ALWAYS = {"fp32": 1e-4, "tf32": 1e-3, "fp16": 1e-3}
"""Always allowed, by the config's precision, in others LOW: the rounding of a few operations."""
LOW = 1e-2
MOST, LIKE_A_TWIN = 0.4, 1.5
"""Steps that leave out work change at least 0.5 on the toy. More than MOST is allowed only where rounding alone changes
about as much: in bf16 small convolutions in another memory layout change 0.48 in 30 steps, their twin 0.53."""
INITIAL = 2.0**-7
"""Of the initial weights: a vendor may lower their precision."""
METRIC = 0.02


def replayed(outcome: Outcome) -> Iterator[Verdict]:
    """Judge the replay of a round; nothing without one."""
    replay = outcome.replay
    if replay is None:
        return
    expected = "as a clean process repeats it"
    if problem := replay.problem or "; ".join(_problems(replay)):
        got = "not repeated" if replay.problem else "differs"
        sentence = f"round {outcome.round}: {problem}; expected the training {expected}, within what rounding changes"
        yield Verdict("repeated", False, got, expected, sentence)
    else:
        yield Verdict("repeated", True, f"{replay.steps} differ by {_most(replay):.1e}", expected)
    if not (outcome.vendor_code or replay.problem):
        yield _repeatable(outcome, replay)


def _problems(replay: Replay) -> Iterator[str]:
    if not replay.initial <= INITIAL:
        yield (
            f"the initial weights differ by {replay.initial:.1e} from those that the suite makes from the seed, at most"
            f" {INITIAL:.1e} is allowed"
        )
    rounding = ALWAYS.get(replay.precision, LOW)
    for segment in replay.segments:
        steps = f"in the steps {segment}"
        of_weights = (
            f"{steps} the weights changed otherwise than in the clean process, with {segment.length:.3g} times its"
            f" length and a direction of {segment.direction:.3g} (1: equal), most in {segment.weights.where}"
        )
        yield from _beyond(of_weights, segment.weights, rounding)
        yield from _beyond(f"{steps} the logged loss of {segment.losses.where} is another", segment.losses, rounding)
    yield from _beyond(f"the final weights have another {replay.metrics.where}", replay.metrics, METRIC)


def _beyond(text: str, found: FigureDifference, always: float) -> Iterator[str]:
    allowed = _allowed(found, always)
    if not found.difference <= allowed:
        yield f"{text}: the difference is {found.difference:.1e}, at most {allowed:.1e} is allowed"


def _allowed(found: FigureDifference, always: float) -> float:
    """Return the largest allowed difference; a twin that is not finite allows nothing more."""
    twin = found.twin if math.isfinite(found.twin) else 0.0
    return max(always, min(TWINS * twin, max(MOST, LIKE_A_TWIN * twin)))


def _repeatable(outcome: Outcome, replay: Replay) -> Verdict:
    expected = "equal bit by bit"
    differing = [segment for segment in replay.segments if segment.first_unequal or segment.first_loss]
    if not differing:
        return Verdict("repeatable", True, expected, expected)
    most, first = f"{_most(replay):.1e}", _first(differing[0])
    sentence = (
        f"round {outcome.round}: {replay.steps} differ by {most} from a second computation, first in {first}:"
        " operations are not deterministic, or memory or a device is damaged"
    )
    return Verdict("repeatable", True, f"differs by {most}", expected, sentence, warning=True)


def _first(segment: RepeatedSegment) -> str:
    loss = segment.first_loss and f"the loss of {segment.first_loss}"
    return " and ".join(filter(None, (segment.first_unequal, loss)))


def _most(replay: Replay) -> float:
    return max(segment.weights.difference for segment in replay.segments)
