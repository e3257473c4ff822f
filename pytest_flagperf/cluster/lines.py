"""What both kinds of conversation make of the lines that they hear."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress

from . import Message


class Listening(ABC):
    """One reader at a time; what is no JSON object is passed over."""

    def __init__(self) -> None:
        self._reading = threading.Lock()

    def receive(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while (line := self._line(deadline)) is not None:
                with suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
        return None

    @abstractmethod
    def _line(self, deadline: float) -> bytes | None:
        """The next line; None at the end, TimeoutError at the deadline."""
