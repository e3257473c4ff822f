"""Write the target of a suite as text and as JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flagperf_driver.target import Target
from pytest_flagperf.stored import files

from .units import quantity


def to_json(target: Target) -> dict[str, Any]:
    """Return what an outcome and a reference store of a target: the fields by which two are compared."""
    return {item.name: files.to_json_types(getattr(target, item.name)) for item in fields(target) if item.compare}


def texts(target: Target) -> list[str]:
    """Return each target as text: ``map_bbox >= 0.380``."""
    values = {name: value for name, value in target.values.items() if value is not None}
    return [f"{name} {target.sign} {quantity(value, target.unit)}" for name, value in values.items()]


def text(target: Target) -> str:
    """Return all targets as text: ``map_bbox >= 0.380 and map_segm >= 0.340``."""
    return " and ".join(texts(target))
