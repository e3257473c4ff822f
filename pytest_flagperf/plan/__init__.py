"""The plan of a case: what exactly will run where, and how that is found out."""

from .describe import describe
from .make import PlanError, make_plan, one_card_plan, short_plan
from .model import Plan, PlannedHost

__all__ = ["Plan", "PlanError", "PlannedHost", "describe", "make_plan", "one_card_plan", "short_plan"]
