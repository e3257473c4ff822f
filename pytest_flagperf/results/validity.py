"""Whether a round's figures may be taken at their word: what happened that bends them, each a mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mark:
    """``kind`` is one word for machines, ``sentence`` stands alone."""

    kind: str
    sentence: str


def marks(round_dir: Path, plan: Mapping[str, Any]) -> tuple[Mark, ...]:
    """What bends the figures of a round."""
    return ()
