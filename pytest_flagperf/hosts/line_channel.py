"""What both kinds of conversation make of the lines that they hear."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from . import Message
from .replies import parse_line


class LineChannel(ABC):
    """One reader at a time; a line that is not JSON is passed over."""

    def __init__(self, speaker: str) -> None:
        self._reading = threading.Lock()
        self._speaker = speaker

    def receive(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while (line := self._line(deadline)) is not None:
                message = parse_line(self._speaker, line)
                if message is not None:
                    return message
        return None

    @abstractmethod
    def _line(self, deadline: float) -> bytes | None:
        """The next line; None at the end, TimeoutError at the deadline."""
