"""Wait for an event, not for a time: a limit ends only what never comes."""

import time
from collections.abc import Callable


def until(ready: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    """Wait for it, or say what did not come."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.01)
