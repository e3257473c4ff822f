"""The amounts of a build with uv, from its output: packages and bytes."""

from __future__ import annotations

import re

_RESOLVED = re.compile(r"Resolved (\d+) packages?\b")
_DOWNLOADING = re.compile(r"Downloading (\S+) \(([\d.]+)(B|KiB|MiB|GiB)\)")
_DOWNLOADED = re.compile(r"Downloaded (\S+)")
_STEPS = re.compile(r"(Prepared|Installed) (\d+) packages?\b")
_SIZES = {"B": 1 / 2**20, "KiB": 1 / 2**10, "MiB": 1.0, "GiB": 2.0**10}


class UvAmounts:
    """Adds the amounts so far to each line of uv; uv lists only large packages while it downloads them."""

    def __init__(self) -> None:
        self._packages = ""
        self._sizes: dict[str, float] = {}
        self._done: set[str] = set()

    def line(self, text: str) -> str:
        """Return a line with the amounts, such as ``13 packages, downloaded 2 of 7 large ones, 8 of 84 MiB: ...``."""
        amounts = self._take(text)
        return f"{amounts}: {text}" if amounts else text

    def _take(self, text: str) -> str:
        if match := _RESOLVED.match(text):
            self._packages, self._sizes, self._done = match[1], {}, set()
        elif match := _DOWNLOADING.match(text):
            self._sizes[match[1]] = float(match[2]) * _SIZES[match[3]]
        elif match := _DOWNLOADED.match(text):
            self._done.add(match[1])
        elif match := _STEPS.match(text):
            return f"{match[1].lower()} {match[2]} of {self._packages or match[2]} packages"
        else:
            return ""
        if not self._sizes:
            return ""
        known = [size for name, size in self._sizes.items() if name in self._done]
        return (
            f"{self._packages or 'some'} packages, downloaded {len(known)} of {len(self._sizes)} large ones,"
            f" {sum(known):,.0f} of {sum(self._sizes.values()):,.0f} MiB"
        )
