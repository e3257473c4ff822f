"""The part of HTTP/1.1 that a server with OpenAI's API and its client need: heads, lengths and chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

LONGEST_HEAD = 1 << 16
_LAST_CHUNK = 0


class HttpError(ValueError):
    """The other end does not speak HTTP as expected; the message says what it sent."""


async def read_head(reader: asyncio.StreamReader) -> tuple[str, Mapping[str, str]] | None:
    """Return the first line and the headers, by names in lower case; None if the other end closed the connection."""
    try:
        block = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise HttpError(f"the connection was closed in the middle of a head: {error.partial[:100]!r}") from None
        return None
    except asyncio.LimitOverrunError:
        raise HttpError(f"a head has more than {LONGEST_HEAD:,} bytes") from None
    first, *lines = block.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they arrive: its chunks, its whole length, or all until the connection is closed."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            line = await reader.readline()
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                if not line:
                    raise HttpError("the connection was closed in the middle of a body") from None
                raise HttpError(f"the size of a chunk is {line[:100]!r}; expected a hexadecimal number") from None
            try:
                chunk = await reader.readexactly(size + 2)
            except asyncio.IncompleteReadError:
                raise HttpError("the connection was closed in the middle of a chunk") from None
            if size == _LAST_CHUNK:
                return
            yield chunk[:-2]
    elif "content-length" in headers:
        try:
            yield await reader.readexactly(int(headers["content-length"]))
        except asyncio.IncompleteReadError:
            raise HttpError("the connection was closed in the middle of a body") from None
    else:
        while part := await reader.read(1 << 16):
            yield part


def chunk(data: bytes) -> bytes:
    """Return data as a chunk of a body; no data end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
