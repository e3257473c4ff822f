"""What happens in a run while it runs: ``note`` brings it to the terminal, to the log of CI and to the live record.

A process runs one round at a time: what any of its threads notes belongs to the latest ``round``. An engine that runs
further rounds beside it notes nothing about them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

TICK_S = 1.0
NoteKind = Literal[
    "cases", "round", "progress", "host", "log", "round_end", "line", "phase", "activity", "phase_end", "waited",
    "test", "end", "tick",
]  # fmt: skip
Subscriber = Mapping[NoteKind, Callable[..., object]]
"""The kinds of notes that somebody takes, each with the function that takes the values."""


@dataclass(frozen=True)
class RoundProgress:
    """The progress of a round, also as the live record keeps it; None for values that are not known yet."""

    case: str
    round: int
    phase: str = "starting"
    step: int = 0
    loss: float | None = None
    metric: float | None = None
    metric_name: str = ""
    target: float | None = None
    throughput: float | None = None
    sample_unit: str = "samples"
    time_left_s: float | None = None
    elapsed_s: float = 0.0


_subscribers: tuple[Subscriber, ...] = ()


# The run has these cases; a round of one begins, in a folder of the run's directory.
@overload
def note(kind: Literal["cases"], /, *, cases: Sequence[Mapping[str, Any]]) -> None: ...
@overload
def note(kind: Literal["round"], /, *, case: str, folder: str) -> None: ...


# The round's progress; the ranks, the devices or the load of a host; a line of a rank's log; the round's end.
@overload
def note(kind: Literal["progress"], /, *, progress: RoundProgress) -> None: ...
@overload
def note(kind: Literal["host"], /, *, host: str, values: Mapping[str, Any]) -> None: ...
@overload
def note(kind: Literal["log"], /, *, rank: int, text: str) -> None: ...
@overload
def note(kind: Literal["round_end"], /, *, state: str, sentence: str = ...) -> None: ...


# A permanent line. Something begins that may take long, such as a build; a terminal keeps the line of a ``lasting``
# one, such as a wait. What is done at the moment within it, until the next activity. All this has ended.
@overload
def note(kind: Literal["line"], /, *, text: str) -> None: ...
@overload
def note(kind: Literal["phase"], /, *, text: str, lasting: bool = ...) -> None: ...
@overload
def note(kind: Literal["activity"], /, *, text: str) -> None: ...
@overload
def note(kind: Literal["phase_end"], /) -> None: ...


# A round waited for hosts or devices that others used; a test of pytest ended; the run ended.
@overload
def note(kind: Literal["waited"], /, *, seconds: float) -> None: ...
@overload
def note(kind: Literal["test"], /, *, case: str, test: str, outcome: str, sentences: Sequence[str]) -> None: ...
@overload
def note(kind: Literal["end"], /, *, exit_status: int | None) -> None: ...


def note(kind: NoteKind, /, **values: Any) -> None:
    """Bring a note to all who subscribe to its kind."""
    _bring(_subscribers, kind, **values)


def has_subscriber(kind: NoteKind) -> bool:
    """Return True if somebody subscribes to notes of this kind."""
    return any(kind in subscriber for subscriber in _subscribers)


@contextmanager
def subscribed(*subscribers: Subscriber) -> Iterator[None]:
    """Bring all notes within the block to these subscribers, and to no others; they get a ``tick`` every second."""
    global _subscribers
    before, ended = _subscribers, threading.Event()

    def tick_until_the_end() -> None:
        while not ended.wait(TICK_S):
            _bring(subscribers, "tick")

    ticking = threading.Thread(target=tick_until_the_end, name="flagperf progress", daemon=True)
    ticking.start()
    _subscribers = subscribers
    try:
        yield
    finally:
        _subscribers = before
        ended.set()
        ticking.join(TICK_S)


def _bring(subscribers: Sequence[Subscriber], kind: NoteKind, **values: Any) -> None:
    for subscriber in subscribers:
        if take := subscriber.get(kind):
            take(**values)
