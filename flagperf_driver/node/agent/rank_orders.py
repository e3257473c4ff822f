"""The ranks to start on this host: the part of the start message that describes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver import layout
from flagperf_driver.node.agent import rank_watch


class StartError(ValueError):
    """The start message is invalid."""


class RankOrder(NamedTuple):
    """One process to start."""

    rank: int
    local_rank: int
    argv: Sequence[str]
    env: Mapping[str, str]  # in addition to the agent's own environment
    cwd: str
    log: str  # the file for its output, in the log folder
    cpus: Sequence[int] = ()  # the cores that it is bound to; empty: all cores


class RankOrders(NamedTuple):
    """The ranks of the start message and the limits for them."""

    ranks: Sequence[RankOrder]
    follow: Sequence[int]  # the ranks whose logs and heartbeats are read, including those that a launcher starts
    limits: rank_watch.Timeouts
    round_s: float
    grace_s: float
    not_inherited: Sequence[str]  # prefixes of environment variables that ranks do not inherit
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
    ranks = [_rank_order(entry, log_dir) for entry in body["ranks"]]
    return RankOrders(
        ranks=ranks,
        follow=sorted(int(rank) for rank in body.get("follow") or [order.rank for order in ranks]),
        limits=rank_watch.Timeouts(_limit(body.get("init_timeout_s")), _limit(body.get("hang_timeout_s"))),
        round_s=_limit(body.get("round_timeout_s")),
        grace_s=float(body.get("grace_s", 3)),
        not_inherited=[str(name) for name in body.get("not_inherited") or ()],
        show=bool(body.get("show")),
        writable=[str(path) for path in body.get("writable") or ()],
        hidden=[str(path) for path in body.get("hidden") or ()],
    )


def _limit(seconds: object) -> float:
    """Return the limit in seconds; infinity if it is missing."""
    return math.inf if seconds is None else float(str(seconds))


def _rank_order(entry: Mapping[str, Any], log_dir: Path) -> RankOrder:
    rank = int(entry["rank"])
    return RankOrder(
        rank=rank,
        local_rank=int(entry.get("local_rank", rank)),
        argv=[str(word) for word in entry["argv"]],
        env={str(name): str(value) for name, value in entry["env"].items()},
        cwd=str(entry.get("cwd") or log_dir),
        log=str(entry.get("log") or layout.rank_log(rank)),
        cpus=[int(cpu) for cpu in entry.get("cpus") or ()],
    )
