"""Clear the host's page cache, so that a round reads its data from the disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")
_ALL = "3"  # pages, directory entries and inodes
_SUDO = ("sudo", "-n", "/sbin/sysctl", f"vm.drop_caches={_ALL}")
_TIMEOUT_S = 40.0


def clear() -> None:
    """Clear the page cache; raise RuntimeError with the host's reason if it refuses."""
    subprocess.run(["sync"], check=False, timeout=_TIMEOUT_S)
    try:
        _DROP.write_text(_ALL)
    except OSError as not_writable:
        try:
            done = subprocess.run(_SUDO, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeError(f"{_DROP}: {not_writable.strerror}; {_SUDO[0]}: {error}") from error
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            raise RuntimeError(f"{_DROP}: {not_writable.strerror}; {' '.join(_SUDO)}: {reason}") from None
