"""What a model draws before and after its training, as pictures on the page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape

from flagperf_driver.node.logs.drawings import LoggedDrawings, drawings
from pytest_flagperf.results.measured.outcome import Outcome

_IN_A_ROW = 10
_ZOOM = 4
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_WHITE = 255


def html(rounds: Sequence[Outcome]) -> str:
    """Return the first and the last drawings of each round; empty if no model draws."""
    pairs = "".join(_pairs(outcome) for outcome in rounds)
    return f'<h3>Drawings</h3><div class="charts">{pairs}</div>' if pairs else ""


def _pairs(outcome: Outcome) -> str:
    """Return for each name the first drawings above the last ones."""
    pictures: dict[str, str] = {}
    for stored in outcome.drawings:
        if drawn := drawings(vars(stored)):  # a stored outcome may be damaged
            pictures[drawn.name] = pictures.get(drawn.name, "") + _picture(outcome, drawn)
    return "".join(f"<div>{pair}</div>" for pair in pictures.values())


def _picture(outcome: Outcome, drawn: LoggedDrawings) -> str:
    rows, name = sheet(drawn), drawn.name.replace("_", " ")
    when = f"after {drawn.step:,} steps" if drawn.step else "before the training"
    text = escape(f"round {outcome.round}: {name} {when}")
    data = base64.b64encode(png(rows)).decode("ascii")
    sizes = f'width="{_ZOOM * len(rows[0])}" height="{_ZOOM * len(rows)}"'
    return (
        f'<figure><img class="drawing" alt="{text}" {sizes} src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def sheet(drawn: LoggedDrawings) -> list[bytes]:
    """Return the rows of one picture with all drawings, at most ten side by side, and white lines between them."""
    content, height, width = drawn.content, drawn.rows, drawn.columns
    each = [content[place : place + height * width] for place in range(0, len(content), height * width)]
    columns = min(len(each), _IN_A_ROW)
    blank = bytes([_WHITE]) * (height * width)
    rows: list[bytes] = []
    for first in range(0, len(each), columns):
        line = each[first : first + columns]
        line += [blank] * (columns - len(line))
        rows += [bytes([_WHITE]) * (columns * (width + 1) - 1)] if rows else []
        for row in range(height):
            parts = (one[row * width : (row + 1) * width] for one in line)
            rows.append(bytes([_WHITE]).join(parts))
    return rows


def png(rows: Sequence[bytes]) -> bytes:
    """Return rows of grey pixels as a PNG."""
    header = struct.pack(">2I5B", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return _SIGNATURE + b"".join(_chunks([(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]))


def _chunks(chunks: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for kind, content in chunks:
        yield struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
