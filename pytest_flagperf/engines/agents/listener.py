"""Read the channels of all agents in one thread: with 1,000 hosts, a thread for each keeps a core busy."""

from __future__ import annotations

import os
import queue
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOOK_S = 0.05  # seconds between two looks at a source whose descriptor does not show what arrives
_TICK_S = 0.5


@dataclass(frozen=True, eq=False)
class Source:
    """A descriptor, or -1, and the function that reads it when it is readable.

    ``read`` does not wait, and reads a part of the data. It returns True if the descriptor shows when more arrives,
    None if more may arrive and the descriptor does not show it, and False after the last data.
    """

    descriptor: int
    read: Callable[[], bool | None]


class Listener:
    """Calls the functions of all sources in one thread, and ``tick`` now and then."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._new: queue.SimpleQueue[Source] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._reading = 0  # sources that have not ended
        self._all_ended = threading.Condition(self._lock)
        self._closed = False
        self._thread: threading.Thread | None = None
        self._woken, self._wake = -1, -1

    def add(self, source: Source) -> None:
        """Read a source from now on, until it has ended."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._woken, self._wake = os.pipe()
                self._thread = threading.Thread(target=self._run, name="messages of agents", daemon=True)
                self._thread.start()
            self._reading += 1
            self._new.put(source)
            os.write(self._wake, b"x")

    def close(self, timeout_s: float) -> None:
        """Read until all sources have ended, at most for the time; read none of them afterwards."""
        with self._lock:
            self._all_ended.wait_for(lambda: self._reading == 0, timeout_s)
            self._closed = True
            if self._thread is None:
                return
            os.write(self._wake, b"x")
        self._thread.join()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        looks: list[Source] = []  # whose descriptors do not show what arrives
        waiting: set[Source] = set()
        ticked_at = look_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closed:
                ready = [key.data for key, _ in selector.select(_LOOK_S if looks else _TICK_S) if key.data]
                while not self._new.empty():
                    source = self._new.get()
                    os.read(self._woken, 1)
                    ready.append(source)  # some of its messages may have been read
                now = time.monotonic()
                if now >= look_at:
                    ready, looks, look_at = [*ready, *looks], [], now + _LOOK_S
                for source in ready:
                    more = source.read()
                    if more and source not in waiting:
                        selector.register(source.descriptor, selectors.EVENT_READ, source)
                        waiting.add(source)
                    elif not more and source in waiting:
                        selector.unregister(source.descriptor)
                        waiting.remove(source)
                    if more is None:
                        looks.append(source)
                    elif not more:
                        self._end()
                if now - ticked_at >= _TICK_S:
                    ticked_at = now
                    self._tick()

    def _end(self) -> None:
        with self._lock:
            self._reading -= 1
            self._all_ended.notify_all()
