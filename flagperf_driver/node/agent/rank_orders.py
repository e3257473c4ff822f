"""Which ranks to start on this host and how: the ranks' part of the start message."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver import layout
from flagperf_driver.node.agent import watch


class StartError(ValueError):
    """A start message that cannot be followed."""


class RankOrder(NamedTuple):
    """One process to start."""

    rank: int
    local_rank: int
    argv: Sequence[str]
    env: Mapping[str, str]  # beside what this process has in its own
    cwd: str
    log: str  # its output's file in the log directory
    cpus: Sequence[int] = ()  # the cores it is bound to; empty: any


class RankOrders(NamedTuple):
    """The start message, as far as it is about ranks."""

    ranks: Sequence[RankOrder]
    follow: Sequence[int]  # the ranks whose logs and heartbeats are read: a launcher's, too
    limits: watch.Timeouts
    round_s: float
    grace_s: float
    not_inherited: Sequence[str]  # how names begin that are kept from the ranks
    show: bool  # every line of the ranks' logs, to somebody who wants to see them


def read_orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    """The start message, checked; StartError names everything that is wrong."""
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
        limits=watch.Timeouts(_limit(body.get("init_timeout_s")), _limit(body.get("hang_timeout_s"))),
        round_s=_limit(body.get("round_timeout_s")),
        grace_s=float(body.get("grace_s", 3)),
        not_inherited=[str(name) for name in body.get("not_inherited") or ()],
        show=bool(body.get("show")),
    )


def _limit(seconds: object) -> float:
    """The limit in seconds; without one the time is unlimited."""
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
