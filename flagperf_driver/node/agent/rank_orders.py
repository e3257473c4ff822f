"""The ranks to start on this host: the part of the start message that describes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver.node.agent import rank_watch
from flagperf_driver.rank_process import RankProcess


class StartError(ValueError):
    """The start message is invalid."""


class RankOrders(NamedTuple):
    """The ranks of the start message and the limits for them."""

    ranks: Sequence[RankProcess]
    limits: rank_watch.Timeouts
    round_s: float
    grace_s: float
    show: bool  # send every line of the ranks' logs to the controller
    writable: Sequence[str]  # folders that ranks may change besides the round's own
    hidden: Sequence[str]  # folders that ranks may not read: earlier rounds and runs


def read_orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    """Check the start message; raise StartError with the problem."""
    if not body.get("ranks"):
        raise StartError("'ranks' is {}".format("empty" if "ranks" in body else "missing"))
    try:
        return _orders(body, log_dir)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartError(f"{type(error).__name__}: {error}") from error


def _orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    return RankOrders(
        ranks=[RankProcess.from_json(entry, str(log_dir)) for entry in body["ranks"]],
        limits=rank_watch.Timeouts(_limit(body.get("init_timeout_s")), _limit(body.get("hang_timeout_s"))),
        round_s=_limit(body.get("round_timeout_s")),
        grace_s=float(body.get("grace_s", 3)),
        show=bool(body.get("show")),
        writable=[str(path) for path in body.get("writable") or ()],
        hidden=[str(path) for path in body.get("hidden") or ()],
    )


def _limit(seconds: object) -> float:
    """Return the limit in seconds; infinity if it is missing."""
    return math.inf if seconds is None else float(str(seconds))
