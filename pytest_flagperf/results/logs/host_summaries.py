"""Read the summaries that hosts made of their own files, and compare them with files that are here."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flagperf_driver.layout import rank_log
from flagperf_driver.node.folder import SUMMARY
from flagperf_driver.node.logs.summary import WHOLE_ROUND, HostSummary, LongFile, Request, digest_of, summarize, to_json
from pytest_flagperf.printable import printable_in
from pytest_flagperf.stored import FormatError, files, type_check

_SHOWN = 60
_SHARE = 1e-9
"""Two versions of Python may round the last bits of a mean in different ways."""


def read(folder: Path, ranks: range | None = None) -> HostSummary | None:
    """Return the summary in a host's folder; None without one.

    FormatError if it is not one of exactly these ranks, has no figures of the whole round, or does not list the ranks'
    logs, so that nothing could be compared.
    """
    path = folder / SUMMARY
    if not path.is_file():
        return None
    summary = type_check.typed(HostSummary, files.read_printable(path, loads=files.fast_loads), str(path))
    found = [log.rank for log in summary.ranks]
    if ranks is not None and found != list(ranks):
        raise FormatError(f"{path}: it has the ranks {found!r:.{_SHOWN}}; expected {list(ranks)}")
    if not any((window.start, window.end) == WHOLE_ROUND for window in summary.windows):
        raise FormatError(f"{path}: its windows lack the one of the whole round")
    unlisted = next(
        (log.rank for log in summary.ranks if log.present and rank_log(log.rank) not in summary.files), None
    )
    if unlisted is not None:
        raise FormatError(f"{path}: its files lack {rank_log(unlisted)}, which it sums up")
    return summary


def has_long_files(folder: Path, summary: HostSummary) -> bool:
    """Return True if files that the summary stands for are here too."""
    return not summary.files.keys().isdisjoint(os.listdir(folder))  # noqa: PTH208 - ten times as fast with many hosts


def difference(folder: Path, request: Request) -> str | None:
    """Sum up the files in a host's folder, and return the first difference of the host's own summary from it."""
    own = printable_in(json.loads(json.dumps(summarize(folder, request))))
    # Without figures that only an older version sums up.
    theirs = to_json(type_check.typed(HostSummary, files.read_printable(folder / SUMMARY), SUMMARY))
    return _difference(theirs, own)


def unlike(folder: Path, listed: Mapping[str, LongFile]) -> str | None:
    """Return the first listed file that is not as the host's summary says; None if all are."""
    own = {name: summarized for name, summarized in listed.items() if name == Path(name).name}
    for name, expected in own.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if digest_of(folder / name) != expected:
            return f"{name} is not the file that was summed up"
    return None


def _difference(theirs: Any, own: Any, at: str = "") -> str | None:
    pairs: list[tuple[str, Any, Any]]
    if isinstance(theirs, dict) and isinstance(own, dict):
        pairs = [(f"{at}.{key}", theirs.get(key), own.get(key)) for key in sorted({*theirs, *own})]
    elif isinstance(theirs, list) and isinstance(own, list) and len(theirs) == len(own):
        pairs = [(f"{at}[{number}]", *both) for number, both in enumerate(zip(theirs, own, strict=True))]
    elif theirs == own or _are_close(theirs, own):
        return None
    else:
        return f"{at.lstrip('.')} is {theirs!r:.{_SHOWN}}; by the files {own!r:.{_SHOWN}}"
    return next((found for where, a, b in pairs if (found := _difference(a, b, where)) is not None), None)


def _are_close(theirs: Any, own: Any) -> bool:
    return isinstance(theirs, float) and isinstance(own, float) and math.isclose(theirs, own, rel_tol=_SHARE)
