"""The marks of rounds: what a reader must know before their figures."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.measured.outcome import Outcome, counted

_REPEATED = ("step ", "hook ", "extension ", "package ", "command ")
"""The kinds of a vendor's code without which a training is repeated."""
CHIP_NOT_VERIFIED, VENDOR_REPLACED, NOT_VALID = "chip not verified", "vendor replaced", "figures not valid"


def of_rounds(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the marks of rounds: short phrases, each with its sentence, which is that of the first round with it."""
    marks = {phrase: sentence for outcome in reversed(outcomes) for phrase, sentence in _of_round(outcome).items()}
    first = next(iter(counted(outcomes)), None)
    if first is not None and not first.valid:
        marks[NOT_VALID] = first.validity_warnings[0].sentence
    return marks


def unverified_chip(outcomes: Sequence[Outcome]) -> str:
    """Return "chip not verified" with the reason; empty if the devices of every round reported the chip."""
    reason = of_rounds(outcomes).get(CHIP_NOT_VERIFIED)
    return f"{CHIP_NOT_VERIFIED}: {reason}" if reason else ""


def unknown_factor(outcomes: Sequence[Outcome]) -> str:
    """Return why the figures of rounds with a vendor's code cannot be accepted or published; empty if they can."""
    for outcome in outcomes:
        code = [name for name in outcome.vendor_code if name.startswith(_REPEATED)]
        known = outcome.replay is not None or outcome.value("vendor_factor") is not None
        if outcome.ok and code and not known and kind_of(outcome).converges:
            return (
                f"round {outcome.round}: no clean process has repeated a part of it without the vendor's "
                f"{' and '.join(code)}: run it again with --replay"
            )
    return ""


def _of_round(outcome: Outcome) -> dict[str, str]:
    replaced = f"the folder of {outcome.vendor} replaces the vendor of {outcome.replaced_vendor}"
    marks = {CHIP_NOT_VERIFIED: outcome.unverified_chip, VENDOR_REPLACED: replaced if outcome.replaced_vendor else ""}
    return {phrase: sentence for phrase, sentence in marks.items() if sentence}
