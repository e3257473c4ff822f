"""Serve one request on stdin with one answer on stdout, in JSON lines: the controller calls host modules this way.

``answer`` and ``error`` end the call; before them a module may send ``progress`` messages.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, Mapping

Request = Mapping[str, Any]
Answer = Dict[str, Any]


class RequestError(Exception):
    """The request cannot be fulfilled; the text is a sentence for the user."""


def serve(handle: Callable[[Request], Answer]) -> None:
    """Pass the request on stdin to ``handle`` and send its answer, or the error that it raised."""
    if not (line := sys.stdin.buffer.readline()):
        return
    try:
        send("answer", **handle(json.loads(line)))
    except RequestError as error:
        send("error", sentence=str(error))
    except OSError as error:
        send("error", sentence=f"{error.filename or 'the host'}: {error.strerror or error}")


def send(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"type": kind, **facts}) + "\n")
    sys.stdout.flush()


def caller_left() -> bool:
    """Return True if the caller has closed stdin. Call this only when stdin is readable."""
    return not os.read(sys.stdin.fileno(), 4096)
