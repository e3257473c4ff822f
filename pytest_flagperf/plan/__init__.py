"""The plan of a case: what exactly will run where, and how that is found out."""

from .describe import describe
from .make import PlanError, is_throughput_shape, make_plan, one_card_plan, short_plan
from .model import Plan, PlannedHost

__all__ = [
    "Plan",
    "PlanError",
    "PlannedHost",
    "describe",
    "is_throughput_shape",
    "make_plan",
    "one_card_plan",
    "short_plan",
]
