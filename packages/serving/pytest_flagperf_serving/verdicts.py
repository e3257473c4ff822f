"""Verdicts on serving: the answers are right, all requests are answered, and the client's figures can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.perflog import number
from pytest_flagperf.results import Outcome, Verdict
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.verdicts.verdict import finished

from .suite import LEFT_OUT, LENGTH, LIMITS, OVER, RATE, REFERENCE, REQUEST_RATE

LEAST_RIGHT = 0.99
"""Of the tokens of greedy answers, and of the log perplexity; a share that must be as without the engine."""
MOST_OFF_LENGTH = 0.1
"""By which share the mean length of answers may differ from the stored one: a model that answers less is faster."""
MOST_FASTER = 3.0
"""A prompt that the server has seen before may be answered so many times faster; a stored answer is far above."""
LEAST_OF_SMALLER = 0.5
"""The rate at a concurrency, as a share of the best rate at a smaller one."""
MOST_ERROR_S = 1e-3
"""Of the client's times in the median, against an engine with known delays."""
MOST_OF_CLIENT = 0.5
"""Of the client's greatest rate; above it a point is marked."""
_ERRORS = {"first_token_error_s": "a first token", "gap_error_s": "a token after it"}


def accurate(outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether the served model answers as the model itself; random weights are not judged."""
    for outcome in outcomes:
        yield from finished(outcome)
        if not outcome.ended_well:
            continue
        if outcome.synthetic:
            yield Verdict("accurate", True, "not judged: random weights", "trained weights", judged=False)
            continue
        scored = next((point for point in outcome.points if "score" in point.figures), None)
        if scored:
            yield from _scores(outcome, scored)
            if scored.facts.get("timed", True):
                yield _as_good_under_load(outcome)
            else:
                got = "not judged: an answer is sampled, and takes longer than a point"
                yield Verdict("under_load", True, got, "greedy answers", judged=False)
            continue
        yield _agrees(outcome, "accurate right_tokens", "right_tokens", "tokens as chosen without the engine")
        yield _as_trained(outcome)
        yield _agrees(
            outcome, "under_load", "right_under_load", "tokens as chosen without the engine, among timed ones"
        )


def served(outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether the server worked for each request, and whether the client measured it."""
    for outcome in outcomes:
        yield from finished(outcome)
        if outcome.ended_well:
            yield _answered(outcome)
            yield from _computed(outcome)
            yield from _scales(outcome)
            yield from _client(outcome)
            yield from _rates(outcome)


def _as_trained(outcome: Outcome) -> Verdict:
    """Judge whether the evaluation by the engine is that of the training, of the same run or in the round."""
    by = next((point.facts["by"] for point in outcome.points if point.facts.get("by")), "the training in the round")
    return _agrees(outcome, "as_trained", "perplexity_agreement", f"agreement with the log perplexity of {by}")


def _agrees(outcome: Outcome, name: str, figure: str, about: str) -> Verdict:
    value = outcome.value(figure)
    got, least = compared(value, LEAST_RIGHT, "share")
    ok = value is not None and value >= LEAST_RIGHT
    expected = f"at least {least} {about}"
    invalid = "the figures of this round are invalid"
    return Verdict(name, ok, got, expected, "" if ok else f"{_round(outcome)}: {got}, expected {expected}; {invalid}")


def _scores(outcome: Outcome, point: MeasuredPoint) -> Iterator[Verdict]:
    """Judge the scores of the answers to a set, and their length, by the stored ones; a drawn part has an interval."""
    facts = point.facts
    amount = f"{int(number(facts['samples'])):,} of {int(number(facts['of'])):,} answers"
    for key in (key for key in facts if key.endswith(REFERENCE)):
        name = key.removesuffix(REFERENCE)
        value, stored, wide = (number(facts.get(one)) for one in (name, key, f"{name}_interval"))
        got, most = f"{value:.4g} ({amount})", 1 + MOST_OFF_LENGTH
        if name == LENGTH:
            verdict = partial(Verdict, "length")
            expected = f"{1 - MOST_OFF_LENGTH:.0%} to {most:.0%} of the stored length of an answer, {stored:.4g}"
            ok = value + wide >= stored * (1 - MOST_OFF_LENGTH) and value - wide <= stored * most
        else:
            verdict = partial(Verdict, f"accurate {name}")
            expected = f"at least {LEAST_RIGHT:.0%} of the stored {stored:.4g}, {stored * LEAST_RIGHT:.4g}"
            ok = value + wide >= stored * LEAST_RIGHT
        if wide:
            expected += f", within the interval of {wide:.2g} of the answers drawn"
        sentence = f"{_round(outcome)}: {name} is {got}, expected {expected}; the figures of this round are invalid"
        yield verdict(ok, got, expected, "" if ok else sentence)


def _as_good_under_load(outcome: Outcome) -> Verdict:
    """Judge the worst point, by the upper end of its interval."""
    points = [point for point in outcome.points if "score_under_load" in point.figures]
    expected = f"at least {LEAST_RIGHT:.0%} of the score of the same questions without load"

    def highest(point: MeasuredPoint) -> float:
        return point.figures["score_under_load"] + number(point.facts.get("under_load_interval"))

    worst = min(points, key=highest, default=None)
    if worst is None:
        got = "no point has enough of these answers; a longer point_most_s gives more"
    else:
        share, wide = worst.figures["score_under_load"], number(worst.facts.get("under_load_interval"))
        got = f"{share:.1%} at {worst.name}, with an interval of {wide:.1%}"
    ok = worst is not None and highest(worst) >= LEAST_RIGHT
    sentence = f"{_round(outcome)}: {got}, expected {expected}; the figures of this round are invalid"
    return Verdict("under_load", ok, got, expected, "" if ok else sentence)


def _answered(outcome: Outcome) -> Verdict:
    # A server may refuse requests at a rate that is too high for it; such a rate is beyond the limits.
    judged = [point for point in outcome.points if REQUEST_RATE not in point.values]
    failed = [(point, int(number(point.facts.get("failed")))) for point in judged if "failed" in point.facts]
    bad = [(point, amount) for point, amount in failed if amount]
    expected = "every request answered with as many tokens as requested"
    if not bad:
        return Verdict("answered", True, "every request answered", expected)
    total, first = sum(amount for _, amount in bad), bad[0][0]
    got = f"{count(total, 'request')} failed"
    why = f"the first at {first.name}: {first.facts.get('first_problem')}"
    return Verdict("answered", False, got, expected, f"{_round(outcome)}: {got}, {why}; expected {expected}")


def _computed(outcome: Outcome) -> Iterator[Verdict]:
    value = outcome.value("repeated_speed")
    if value is None:  # random weights: no prompt is repeated
        return
    got, most = compared(value, MOST_FASTER, "x")
    expected = f"tokens of prompts that the server has seen before at most {most} as fast as others"
    ok = value <= MOST_FASTER
    sentence = "" if ok else f"{_round(outcome)}: {got} as fast, expected {expected}: the server keeps answers"
    yield Verdict("computed", ok, got, expected, sentence)


def _scales(outcome: Outcome) -> Iterator[Verdict]:
    expected = f"at each concurrency at least {quantity(LEAST_OF_SMALLER, 'share')} of the best rate at a smaller one"
    verdict, best = partial(Verdict, "scales"), 0.0
    for point in _loaded(outcome):
        rate = point.figures.get("output_rate", math.nan)
        if not rate >= LEAST_OF_SMALLER * best:
            got = f"{quantity(rate, RATE)} at {point.name} after {quantity(best, RATE)}"
            sentence = f"{_round(outcome)}: {got}; expected {expected}"
            if outcome.busy:
                reason = f"{sentence}; not judged: other processes used the cores"
                yield verdict(True, "not judged", expected, reason, warning=True, judged=False)
            else:
                yield verdict(False, got, expected, sentence)
            return
        best = max(best, rate)
    got = count(len(_loaded(outcome)), "concurrency").replace("ys", "ies")
    left_out = [text for point in outcome.points for text in map(str, point.facts.get(LEFT_OUT, []))]
    yield verdict(True, f"{got}; {', '.join(left_out)} would not fit into memory" if left_out else got, expected)


def _client(outcome: Outcome) -> Iterator[Verdict]:
    """Judge the client's test of itself, and mark points at which it may be the bottleneck."""
    start = next((point for point in outcome.points if "gap_error_s" in point.facts), None)
    most = quantity(MOST_ERROR_S, "s")
    expected = f"known delays measured within {most} in the median, and rates below half of the client's"
    verdict = partial(Verdict, "client")
    if start is None:
        yield verdict(
            False, "not tested", expected, f"{_round(outcome)}: the client was not tested; expected {expected}"
        )
        return
    errors = {name: number(start.facts.get(name)) for name in _ERRORS}
    name = max(errors, key=lambda one: abs(errors[one]))
    got = f"{quantity(errors[name], 's')} too long for {_ERRORS[name]}"
    if not abs(errors[name]) <= MOST_ERROR_S:
        sentence = f"{_round(outcome)}: the client measures {got}, expected {expected}"
        if outcome.busy:
            reason = f"{sentence}; not judged: other processes used the cores"
            yield verdict(True, "not judged", expected, reason, warning=True, judged=False)
        else:
            yield verdict(False, got, expected, f"{sentence}: its times are not those of the server")
        return
    close = marked(outcome)
    if close:
        limit = start.figures.get("client_rate", math.nan) * MOST_OF_CLIENT
        sentence = (
            f"{_round(outcome)}: {', '.join(close)}: more than {quantity(limit, RATE)}, half of what the client"
            " reads; the server may be faster"
        )
        yield verdict(True, f"marked: {', '.join(close)}", expected, sentence, warning=True)
    else:
        yield verdict(True, got, expected)


def marked(outcome: Outcome) -> list[str]:
    """Return the names of the points at which the client may be the bottleneck."""
    return [point.name for point in outcome.points if point.figures.get("client_load", 0.0) > MOST_OF_CLIENT]


def _rates(outcome: Outcome) -> Iterator[Verdict]:
    """Say how sure the highest rate within each pair of limits is; a run of an older version tried none."""
    tried = [point for point in outcome.points if REQUEST_RATE in point.values]
    for name in LIMITS if tried else ():
        verdict = partial(Verdict, f"rates {name}")
        expected = f"a rate whose 99th percentiles are within {name}_ttft_s and {name}_tpot_s, and one beyond"
        point = next((one for one in tried if f"highest_rate_{name}" in one.figures), None)
        if point is None:
            sentence = f"{_round(outcome)}: no rate is within {name}_ttft_s and {name}_tpot_s; the lowest tried is"
            lowest = min(tried, key=lambda one: number(one.values[REQUEST_RATE]))
            yield verdict(True, "no rate", expected, f"{sentence} {lowest.name}", warning=True)
            continue
        beyond, sure = point.facts.get(f"{name}_beyond"), quantity(number(point.facts.get(f"{name}_sure")), "share")
        above = f"{beyond:g} requests/s are beyond" if beyond else "no rate is beyond"
        count = f"{int(number(point.facts.get('requests'))):,} requests"
        got = f"{point.name} ({count}: with 95 % confidence {sure} of all are within); {above}"
        yield verdict(True, got, expected)


def _loaded(outcome: Outcome) -> list[MeasuredPoint]:
    """Return the points with a number of requests at once, the smallest number first."""
    points = [point for point in outcome.points if OVER in point.values]
    return sorted(points, key=lambda point: number(point.values[OVER]))


def _round(outcome: Outcome) -> str:
    return f"round {outcome.round}"
