"""Write the targets of a suite as text."""

from __future__ import annotations

from flagperf_driver.node.logs.metric import Target

from .units import quantity


def texts(target: Target) -> list[str]:
    """Return each target as text: ``map_bbox >= 0.380``."""
    return [f"{name} {target.sign} {quantity(value, target.unit)}" for name, value in target.values.items()]


def text(target: Target) -> str:
    """Return all targets as text: ``map_bbox >= 0.380 and map_segm >= 0.340``."""
    return " and ".join(texts(target))
