"""What a round ran on, as its hosts said when it ran: the part of the fingerprint that no plan can know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def facts(round_dir: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Each fact a text or a number, by a name that people read; what no host said is not there."""
    return {}
