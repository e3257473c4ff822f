"""The lab's verdict: the ranks of each round are ready within a minute."""

from collections.abc import Iterator, Sequence

from pytest_flagperf.hooks import hookimpl
from pytest_flagperf.results import Outcome, Verdict

LIMIT_S = 60.0


@hookimpl
def flagperf_verdicts(rounds: Sequence[Outcome]) -> Iterator[Verdict]:
    for outcome in rounds:
        seconds = outcome.value("init_time")
        ok = seconds is not None and seconds <= LIMIT_S
        got = "not measured" if seconds is None else f"{seconds:.3g} s"
        expected = f"at most {LIMIT_S:g} s"
        sentence = "" if ok else f"round {outcome.round}: the ranks were ready after {got}, expected {expected}"
        yield Verdict("ready", ok, got, expected, sentence)
