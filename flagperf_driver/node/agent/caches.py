"""The host's page cache, emptied so that a round reads its data from the disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")
_ALL = "3"  # pages, and the names and places of files
_SUDO = ("sudo", "-n", "/sbin/sysctl", f"vm.drop_caches={_ALL}")
_PATIENCE_S = 40.0


def clear() -> None:
    """RuntimeError with the host's words where it refuses."""
    subprocess.run(["sync"], check=False, timeout=_PATIENCE_S)
    try:
        _DROP.write_text(_ALL)
    except OSError as refused:
        try:
            done = subprocess.run(_SUDO, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeError(f"{_DROP}: {refused.strerror}; {_SUDO[0]}: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise RuntimeError(
                f"{_DROP}: {refused.strerror}; {' '.join(_SUDO)}: {said[-1] if said else 'no'}"
            ) from None
