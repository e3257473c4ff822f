"""A suite.toml with ``kind = "serving"``, and the figures of every serving suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pytest_flagperf.catalog.suite import DataItem, Goal, MetricTable, SuiteFigure

OVER = "concurrency"
"""The value of a point: how many requests the server has at once."""
REQUEST_RATE = "rate"
"""The value of a point: how many requests arrive in a second, whatever became of those before."""
START = "start"
"""The first point: the server is ready, and the client has tested itself."""
RATE = "tokens/s"
LOGGED = frozenset(
    {
        "client_rate",
        "perplexity_agreement",
        "right_tokens",
        "right_under_load",
        "score_under_load",
        "server_memory",
        "time_to_ready",
    }
)
"""The figures that a rank logs; the others follow from the stored requests and from samples."""
OF_CLIENT = frozenset({"client_load", "client_rate", "repeated_speed"})
"""The figures that tell nothing of how fast the server is: a faster one leaves the client less room."""
LIMITS = ("server", "interactive")
"""The names of the limits of times, as the config has them: server_ttft_s and server_tpot_s."""
TOKEN_LIMIT = "token_limit_s"  # noqa: S105 - a token of an answer
"""The end of the name of a fact of each concurrency: the limit of the time of a token."""
LENGTH = "length"
"""The name of a fact of answers to a set: their mean length."""
REFERENCE = "_reference"
"""The end of the name of a fact: the stored value of a score, or of the length."""
_JOULES = "J/token"
ESTIMATE, LEFT_OUT = "memory_estimate", "left_out"
"""The config key with the estimate of a device's memory, and its part with the concurrencies that do not fit."""
WEIGHTS_OF = "weights_of"
"""The config key that names the training of the served model."""
_VARIATION = 0.5
_PERCENTILES = {"p50": "median", "p90": "90th percentile", "p99": "99th percentile"}


def _times() -> Iterator[tuple[str, SuiteFigure]]:
    meanings = {
        "ttft": "time from sending a request to the first token of its answer",
        "tpot": "mean time of a token of an answer after the first one",
        "itl": "time between two tokens of an answer",
    }
    for name, meaning in meanings.items():
        for percentile, word in _PERCENTILES.items():
            about = f"{meaning}, {word} over the requests, at the highest concurrency"
            # The tail of a short measurement varies more than its middle.
            variation = 1.0 if percentile == "p99" else 0.75
            yield f"{name}_{percentile}", SuiteFigure("s", "lower", about, over=OVER, pick="last", variation=variation)


def _within() -> Iterator[tuple[str, SuiteFigure]]:
    for name in LIMITS:
        about = f"highest rate of requests whose 99th percentiles are within {name}_ttft_s and {name}_tpot_s"
        yield f"highest_rate_{name}", SuiteFigure("requests/s", "higher", about, optional=True, variation=1.0)
    for name in LIMITS:
        about = f"share of requests within {name}_ttft_s and {name}_tpot_s, at the highest concurrency"
        yield (
            f"within_{name}",
            SuiteFigure("share", "higher", about, over=OVER, pick="last", optional=True, variation=1.0),
        )


FIGURES: Mapping[str, SuiteFigure] = {
    "output_rate": SuiteFigure(
        RATE, "higher", "output tokens per second of all users: the best concurrency", over=OVER,
        variation=_VARIATION,
    ),
    "device_rate": SuiteFigure(
        RATE, "higher", "output tokens per second and device: the best concurrency", over=OVER,
        variation=_VARIATION,
    ),
    "total_rate": SuiteFigure(
        RATE, "higher", "tokens of prompts and answers per second and device: the best concurrency", over=OVER,
        variation=_VARIATION,
    ),
    "user_rate": SuiteFigure(
        RATE, "higher", "tokens per second that a user sees after the first one, median: the best concurrency",
        over=OVER, variation=_VARIATION,
    ),
    **dict(_times()),
    **dict(_within()),
    "device_energy_per_token": SuiteFigure(
        _JOULES, "lower", "energy of all devices for an output token: the best concurrency", over=OVER, optional=True,
        variation=_VARIATION,
    ),
    "host_energy_per_token": SuiteFigure(
        _JOULES, "lower", "as device_energy_per_token, of the host's processors", over=OVER, optional=True,
        variation=_VARIATION,
    ),
    "time_to_ready": SuiteFigure(
        "s", "lower", "from the start of the server until it answers", variation=1.0, optional=True
    ),
    "server_memory": SuiteFigure(
        "bytes", "lower", "largest memory of the server's processes on the host", over=OVER, pick="worst",
        variation=_VARIATION, optional=True,
    ),
    "right_tokens": SuiteFigure(
        "share", "higher", "tokens of greedy answers that the model without the engine chooses, too", optional=True,
    ),
    "right_under_load": SuiteFigure(
        "share", "higher", "as right_tokens, of answers among the timed ones: the worst concurrency", over=OVER,
        pick="worst", optional=True,
    ),
    "perplexity_agreement": SuiteFigure(
        "share", "higher", "1 less the relative difference of the log perplexity of held-out text by the engine from"
        " the trainer's own", optional=True,
    ),
    "score": SuiteFigure(
        "share", "higher", "score of the answers to the set, as a share of the stored reference: the lowest score",
        optional=True,
    ),
    "answer_length": SuiteFigure(
        "share", "higher", "length of the answers to the set, as a share of the stored reference", optional=True,
    ),
    "score_under_load": SuiteFigure(
        "share", "higher", "score of answers among the timed ones, as a share of that of the same questions without"
        " load: the worst concurrency", over=OVER, pick="worst", optional=True,
    ),
    "repeated_speed": SuiteFigure(
        "x", "lower", "how much faster tokens of prompts come that the server has seen before: the worst concurrency",
        over=OVER, pick="worst", optional=True, variation=1.0,
    ),
    "client_rate": SuiteFigure(
        RATE, "higher", "output tokens per second at which the client is the bottleneck", variation=1.0
    ),
    "client_load": SuiteFigure(
        "share", "lower", "output tokens per second as a share of client_rate: the highest", over=OVER, pick="worst",
        variation=1.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ServingScale:
    flops_per_sample: float | None = None
    """FLOPs of training a token; a third of it is the forward pass of a token."""
    data: tuple[DataItem, ...] = ()
    """What the data directory must have: the published weights, and the set that judges them."""


@dataclass(frozen=True)
class ServingTable:
    """A suite.toml with ``kind = "serving"``."""

    kind: str
    """serving."""
    scales: Mapping[str, ServingScale]
    """One table for each scale: reference and small."""
    common: tuple[str, ...] = ()
    """The folders of suites/common that the suite uses."""
    figures: ClassVar[Mapping[str, SuiteFigure]] = FIGURES
    memory: ClassVar[None] = None
    sample_unit: ClassVar[str] = ""
    goal: ClassVar[Goal | None] = None
    parallel: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    least_ranks: ClassVar[int] = 1
    case_key: ClassVar[str] = WEIGHTS_OF

    @property
    def metric(self) -> MetricTable:
        name, figure = next(iter(self.figures.items()))
        return MetricTable(name, figure.direction, figure.unit, ())

    def problems(self, file: Path) -> Iterator[str]:  # noqa: ARG002 - nothing is wrong that the types allow
        yield from ()
