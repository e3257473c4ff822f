"""A logged step, and the figures that some trainings add to it: each is declared only here, for both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import NamedTuple


class StepFigure(NamedTuple):
    """A figure that ``step_figures`` of a trainer returns; that of the last step is a figure of the round.

    ``low`` and ``high`` bound its possible values, ``direction`` is the better one. ``meaning`` describes the figure of
    the round, ``how`` its measurement. A key ``max_NAME`` of a config is its limit.
    """

    unit: str
    low: float
    high: float
    direction: str | None
    meaning: str
    how: str
    chart: str = ""
    """The title of its chart over the steps, if it is a field of Step, and the name of the axis."""
    axis: str = ""


_EXPERTS = "tokens of all ranks between the last two log points, in the most uneven layer"


@dataclass(frozen=True)
class Step:
    """A logged step; ``time`` is in seconds since TRAIN_START. Figures that a training does not have are None."""

    step: int
    samples: int
    time: float
    loss: float
    throughput: float
    learning_rate: float
    expert_load: float | None = field(
        default=None,
        metadata=StepFigure(
            unit="x",
            low=1,
            high=math.inf,
            direction="lower",
            meaning="the most tokens of an expert over the mean of its layer, in the most uneven layer, at the end",
            how=_EXPERTS,
            chart="Largest load of an expert",
            axis="tokens / mean",
        )._asdict(),
    )


CHARTED = {one.name: StepFigure(**one.metadata) for one in fields(Step) if one.metadata}
"""The figures that are kept for each step, by name."""
STEP_FIGURES = {
    **CHARTED,
    "expert_entropy": StepFigure(
        unit="share",
        low=0,
        high=1,
        direction="higher",
        meaning="how evenly the most uneven layer's experts share the tokens at the end; 1: all equal",
        how=_EXPERTS,
    ),
}
"""All figures, by name."""
