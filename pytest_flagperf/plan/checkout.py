"""The Git state of a tree of suites and vendors."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

_GIT_S = 10.0
_TREES = ("suites", "vendors")


@lru_cache(maxsize=16)
def checkout(root: Path) -> dict[str, object]:
    """Return the commit, and whether suites or vendors have uncommitted changes; an empty dict without Git."""
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", *(name for name in _TREES if (root / name).is_dir()))
    if not commit or changes is None:
        return {}
    return {"commit": commit, "changed": bool(changes)}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
