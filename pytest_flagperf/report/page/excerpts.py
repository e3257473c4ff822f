"""The ends of a round's logs, so that a page without its run directory still shows what happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pytest_flagperf.printable import printable
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.layout import rank_log

_FAILED_LOGS, _FAILED_LINES = 3, 40
_PASSED_LINES = 2
_MAX_LINE = 300
"""The maximum number of characters of a line; of a longer line, the beginning and the end are shown."""
_TAIL_BYTES = 64 * 1024


def excerpts(round_dir: Path, outcome: Outcome, shown: frozenset[str] = frozenset()) -> str:
    """Return the last lines of the logs as HTML: of a failed round the failed ranks' logs first, else of one rank.

    ``shown``: the names of rank logs whose last lines the page has already.
    """
    return "".join(
        f'<h4>{escape(name)}: last lines</h4><pre class="tail" tabindex="0"><code>{text}</code></pre>'
        for name, text in _tails(round_dir, outcome)
        if Path(name).name not in shown
    )


def _tails(round_dir: Path, outcome: Outcome) -> Iterator[tuple[str, str]]:
    failed = {rank_log(failure.rank) for failure in outcome.failures if failure.rank is not None}
    names = sorted(outcome.logs, key=lambda name: Path(name).name not in failed)
    most, lines = (1, _PASSED_LINES) if outcome.ok else (_FAILED_LOGS, _FAILED_LINES)
    for name in names[:most]:
        if text := _tail(round_dir / name, lines):
            yield name, escape(text, quote=False)  # JSON has many quotes


def _tail(path: Path, lines: int) -> str:
    """Return the last lines of a file as printable text; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
            content = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    last = content.decode("utf-8", "replace").splitlines()[-lines:]
    return "\n".join(_short(printable(line)) for line in last)


def _short(line: str) -> str:
    line = re.sub(r"\s+$", "", line)
    half = _MAX_LINE // 2
    return line if len(line) <= _MAX_LINE else f"{line[:half]} … {line[-half:]}"
