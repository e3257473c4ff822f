"""The mounts of a round's container besides those of its options.

Mounts, not binds: Docker would create the missing folder of a bind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def own_mounts(read_only: Sequence[str], log_dir: str) -> list[dict[str, Any]]:
    """Return the mounts of code and data, read-only, and of the log folder."""
    return [*(_same_path(folder, read_only=True) for folder in read_only), _same_path(log_dir, read_only=False)]


def _same_path(folder: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": folder, "Target": folder, "ReadOnly": read_only}
