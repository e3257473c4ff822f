"""Messages from the lines of a connection, for local and SSH connections."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from . import Message
from .replies import parse_line


class LineChannel(ABC):
    """Reads one JSON object from each line, by one reader at a time; other lines are skipped."""

    def __init__(self, host: str) -> None:
        self._reading = threading.Lock()
        self._host_name = host

    def receive(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while (line := self._line(deadline)) is not None:
                message = parse_line(self._host_name, line)
                if message is not None:
                    return message
        return None

    @abstractmethod
    def _line(self, deadline: float) -> bytes | None:
        """Return the next line; None at the end, TimeoutError at the deadline."""
