"""What is mounted into a round's container beside what its options say.

A mount, not a bind: Docker would make the folder of a bind that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def own_mounts(read_only: Sequence[str], log_dir: str) -> list[dict[str, Any]]:
    """Return the mounts of code and data, which the ranks may only read, and of the folder of their logs."""
    return [*(_same_path(folder, read_only=True) for folder in read_only), _same_path(log_dir, read_only=False)]


def _same_path(folder: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": folder, "Target": folder, "ReadOnly": read_only}
