"""The failures of a case, each once: its reason, the rounds it happened in, and the last lines of the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from pytest_flagperf.kind import kind_named
from pytest_flagperf.printable import printable
from pytest_flagperf.results.measured.outcome import Outcome, failed_logs_first
from pytest_flagperf.results.verdicts import Verdict, VerdictKind
from pytest_flagperf.results.verdicts.case_result import EXPECTED, FAILED, CaseResult

from .html import state

_FAILED_LOGS, _FAILED_LINES = 3, 40
_MAX_LINE = 300
"""The maximum number of characters of a line; of a longer line, the beginning and the end are shown."""
_TAIL_BYTES = 64 * 1024
_READ_LOG = "read the last lines of that rank's log in its section"
_AGAIN = "look at the devices and hosts in its section, remove the cause, and run the case again"
_OF_FAILURE = {
    "killed": f"{_READ_LOG}; if its memory was the reason, free memory there or set a smaller batch",
    "hang": "its log ends with the stack traces: find the call that waits",
    "timeout": "look at its phases for the part that takes long",
    "init_timeout": "look at the end of its log for what it waits for",
    "agent": "check that host, and continue the run with --resume",
    "lost": "check that host and its network, and continue the run with --resume",
    **dict.fromkeys(("interrupted", "cancelled"), "continue the run with --resume"),
    "no_end": "continue the run with --resume",
    "unreadable": "restore the file, or run the case again",
}
_OF_VERDICT: Mapping[str, str] = {
    VerdictKind.VALID: _AGAIN,
    VerdictKind.BASELINE: "run it again; if the change stays, find its cause by flagperf compare, or accept it by "
    "flagperf accept",
}
"""What to do, beside the advice of criteria; a kind is left out if its sentence has the fix."""
_ROUND = re.compile(r"^round (\d+): ")


@dataclass
class _Reason:
    text: str
    kind: str = FAILED
    more: str = ""
    """What was expected, and the reason of an expected failure."""
    got: dict[str, list[int]] = field(default_factory=dict)
    """The rounds by the value that was measured."""
    last_lines: Sequence[str] = ()

    def add(self, number: int | None, got: str = "") -> None:
        rounds = self.got.setdefault(got, [])
        if number is not None and number not in rounds:
            rounds.append(number)


def failures(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> str:
    """Return the failures of the rounds, then the failed verdicts that say something else, each verdict once."""
    reasons: dict[object, _Reason] = {}
    for outcome in outcomes:
        for failure in outcome.failures:
            text, _ = _without_round(failure.sentence)
            reasons.setdefault(text, _Reason(text, last_lines=failure.last_lines)).add(outcome.round)
    broken = [reason.text for reason in reasons.values()]
    for verdict in verdicts:
        if not verdict.ok and not any(text in verdict.sentence for text in broken):
            _add(reasons, verdict)
    items = "".join(_item(reason, len(outcomes)) for reason in reasons.values())
    return f'<ul class="verdicts">{items}</ul>' if items else ""


def _add(reasons: dict[object, _Reason], verdict: Verdict) -> None:
    """Add a failed verdict to that of another round with the same name and expected value."""
    text, number = _without_round(verdict.sentence)
    expected = verdict.expected_failure
    kind, more = (EXPECTED, f"; expected failure: {expected}") if expected is not None else (FAILED, "")
    # Verdicts of the whole case with the same name may be about different things.
    key = (verdict.name, verdict.expected, kind, text if number is None else "")
    reason = reasons.setdefault(key, _Reason(text, kind, f"expected {verdict.expected}{more}"))
    repeated = verdict.got in text and verdict.expected in text and expected is None
    reason.add(number, "" if repeated and text == reason.text else f"{verdict.name}: got {verdict.got}")


def advice(case: CaseResult) -> str:
    """Return what to do about the first failure of a case; empty if nothing failed or its sentence has the fix."""
    failure = next((failure for outcome in case.outcomes for failure in outcome.failures), None)
    if failure is not None:
        return _OF_FAILURE.get(failure.kind, _READ_LOG if failure.rank is not None else "")
    bad = (verdict for verdict in case.all_verdicts if not verdict.ok and verdict.expected_failure is None)
    verdict = next(bad, None)
    if verdict is None:
        return ""
    criterion = kind_named(case.kind).criterion_of(verdict.name)
    return criterion.advice or _AGAIN if criterion else _OF_VERDICT.get(verdict.kind, "")


def logs_shown(outcomes: Sequence[Outcome]) -> set[tuple[int, int | None]]:
    """Return the rounds and ranks whose last lines are among the failures."""
    shown: dict[str, tuple[int, int | None]] = {}
    for outcome in outcomes:
        for failure in outcome.failures:
            if failure.last_lines:
                shown.setdefault(_without_round(failure.sentence)[0], (outcome.round, failure.rank))
    return set(shown.values())


def _without_round(sentence: str) -> tuple[str, int | None]:
    found = _ROUND.match(sentence)
    return (sentence[found.end() :], int(found[1])) if found else (sentence, None)


def _item(reason: _Reason, rounds: int) -> str:
    numbers = sorted({number for each in reason.got.values() for number in each})
    where = f"{_rounds(numbers)}: " if numbers and rounds > 1 else ""
    lines = escape("\n".join(reason.last_lines))
    tail = f'<pre class="tail" tabindex="0"><code>{lines}</code></pre>' if lines else ""
    return f"<li>{state(reason.kind)} {escape(where + reason.text)}{_measured(reason)}{tail}</li>"


def _measured(reason: _Reason) -> str:
    """Return the measured values, with their rounds if they differ, and the expected value."""
    values = [value for value in reason.got if value]
    if not values:
        return ""
    parts = [f"{value} ({_rounds(reason.got[value])})" if len(values) > 1 else value for value in values]
    return f" <small>{escape('; '.join([*parts, reason.more]))}</small>"


def _rounds(numbers: Sequence[int]) -> str:
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def excerpts(round_dir: Path, outcome: Outcome, shown: frozenset[str] = frozenset()) -> str:
    """Return the last lines of the logs of a failed round as HTML, the failed ranks' logs first.

    ``shown``: the names of rank logs whose last lines the page has already.
    """
    return "".join(
        f'<h4>{escape(name)}: last lines</h4><pre class="tail" tabindex="0"><code>{text}</code></pre>'
        for name, text in _tails(round_dir, outcome)
        if Path(name).name not in shown
    )


def _tails(round_dir: Path, outcome: Outcome) -> Iterator[tuple[str, str]]:
    for name in failed_logs_first(outcome)[:_FAILED_LOGS]:
        if text := _tail(round_dir / name, _FAILED_LINES):
            yield name, escape(text, quote=False)  # JSON has many quotes


def _tail(path: Path, lines: int) -> str:
    """Return the last lines of a file as printable text; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
            content = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    last = content.decode("utf-8", "replace").splitlines()[-lines:]
    return "\n".join(_short(printable(line)) for line in last)


def _short(line: str) -> str:
    line = re.sub(r"\s+$", "", line)
    half = _MAX_LINE // 2
    return line if len(line) <= _MAX_LINE else f"{line[:half]} … {line[-half:]}"
