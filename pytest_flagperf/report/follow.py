"""The ranks' logs as they grow, line by line, for a person who follows them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_EVERY_S = 0.2
_RANK = re.compile(r"rank(\d+)\.out\.log")


class Follower:
    """While its body runs, a thread tells every new whole line; at the end it tells the rest."""

    def __init__(self, directory: Path, tell: Callable[[int, str], None]) -> None:
        self._directory, self._tell = directory, tell
        self._told: dict[Path, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=5.0)

    def _follow(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for path in sorted(self._directory.glob("*_noderank*/rank*.out.log")):
            match = _RANK.fullmatch(path.name)
            if match:
                self._tell_new(path, int(match[1]))

    def _tell_new(self, path: Path, rank: int) -> None:
        with path.open("rb") as log:
            log.seek(self._told.get(path, 0))
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._told[path] = self._told.get(path, 0) + len(whole)
        for line in whole.decode("utf-8", errors="replace").splitlines():
            self._tell(rank, line)
