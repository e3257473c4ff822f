"""The plan of a case: its config, fingerprint, placement and commands."""

from .describe import HEAD, all_additions, describe, overview, too_large
from .make import (
    Plan,
    PlanError,
    PlanRequest,
    clean_plan,
    figures_of,
    is_foreign,
    is_throughput_shape,
    make_plan,
    one_card_plan,
    plan_on_fewer_hosts,
    short_plan,
)
from .ranks import PlacedHost, Placement, rank_processes

__all__ = [
    "HEAD",
    "PlacedHost",
    "Placement",
    "Plan",
    "PlanError",
    "PlanRequest",
    "all_additions",
    "clean_plan",
    "describe",
    "figures_of",
    "is_foreign",
    "is_throughput_shape",
    "make_plan",
    "one_card_plan",
    "overview",
    "plan_on_fewer_hosts",
    "rank_processes",
    "short_plan",
    "too_large",
]
