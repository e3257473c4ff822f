"""One request in, one answer out, in JSON lines: how the harness calls a module of this folder on a host.

Besides ``answer`` and ``error``, which end the call, a module may say what it is doing meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, Mapping

Request = Mapping[str, Any]
Answer = Dict[str, Any]


class Refusal(Exception):
    """What was asked cannot be done; the text is the sentence that the user reads."""


def serve(handle: Callable[[Request], Answer]) -> None:
    """Hand the request on stdin to ``handle`` and say what it returns, or why it could not."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    try:
        say("answer", **handle(json.loads(line)))
    except Refusal as error:
        say("error", sentence=str(error))
    except OSError as error:
        say("error", sentence=f"{error.filename or 'the host'}: {error.strerror or error}")


def say(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"type": kind, **facts}) + "\n")
    sys.stdout.flush()


def hung_up() -> bool:
    """Whether the caller is gone; to be asked when stdin is readable, and nothing more is expected on it."""
    return not os.read(sys.stdin.fileno(), 4096)
