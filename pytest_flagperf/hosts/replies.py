"""The messages that hosts may send: a table of all messages, their reader, and the check of each on arrival."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT
from flagperf_driver.node.sampling import health
from pytest_flagperf.typed import Check, Either, Rule

from . import Channel, InvalidReply, Message

LONGEST_LINE = 1 << 25  # bytes; 4 MiB of a rank's output may become six times as long in JSON
_SHOWN = 60


Shape = Mapping[str, Any]
"""The keys of an object with their kinds, as ``typed`` describes them."""
ANYTHING, TEXT, TRUTH, NULL, WHOLE = Any, str, bool, None, int
PATH = Annotated[str, Rule("an absolute path", lambda text: text.startswith("/") and "\0" not in text)]
VERSION = Annotated[str, Rule("a version", lambda text: re.match(r"\d{1,4}\.\d{1,4}", text) is not None)]
COUNT = Annotated[int, Rule("a whole number from 0 to 2^63", lambda number: number >= 0)]
NUMBER = Annotated[float, Rule("a finite number", math.isfinite)]


def Maybe(kind: Any) -> Any:  # noqa: N802 - it makes a kind
    """Return the kind of a value that may be null."""
    return Either((kind, None))


def Each(kind: Any) -> Any:  # noqa: N802 - it makes a kind
    """Return the kind of an object with any keys, whose values all have one kind."""
    return types.GenericAlias(Mapping, (str, kind))


def _one_of(*texts: str) -> Any:
    return Annotated[str, Rule(f"one of {', '.join(texts)}", texts.__contains__)]


_DISK: Shape = {"what": _one_of("cache", "scratch", "results", "docker"), "path": TEXT}
_PROCESS: Shape = {
    "pid": WHOLE,
    "own": TRUTH,
    "name?": Maybe(TEXT),
    "user?": Maybe(TEXT),
    "memory?": Maybe(NUMBER),
}
_DEVICE: Shape = {
    "index": COUNT,
    "error": Maybe(TEXT),
    "near": [COUNT],
    "throttle": [TEXT],
    "processes": [_PROCESS],
    **dict.fromkeys(health.TEXTS, Maybe(TEXT)),
    **dict.fromkeys(health.NUMBERS, Maybe(NUMBER)),
    **dict.fromkeys(health.FLAGS, Maybe(TRUTH)),
}

_CHECKED: Shape = {"parts": COUNT, "files": COUNT, "bytes": COUNT}

REPLIES: Shape = {
    # A module that answers one request: flagperf_driver/node/request_server.py. The caller checks its answer.
    "progress": {"line": TEXT},
    "answer": {},
    "error": {"sentence": TEXT, "limit?": TRUTH},
    # The agent.
    "hello": {"log_dir": PATH, "code_root": PATH, "cpus": [COUNT], "port": COUNT},
    "pong": {"clock_ms": NUMBER},
    "leased": {"devices": [COUNT]},
    "busy": {"holders": [TEXT]},
    "released": {},
    "attached": {"started": TRUTH},
    "end": {},
    "chunk": {"offset": COUNT, "data": TEXT, "size": COUNT, "sha256": TEXT, "files": COUNT},
    "perflog": {"rank": COUNT, "event": TEXT, "value": Each(ANYTHING), "time_ms": WHOLE},
    "lines": {"rank": COUNT, "lines": [TEXT]},
    "exit": {
        "rank": COUNT,
        "code": Maybe(WHOLE),
        "signal": Maybe(TEXT),
        "cause": Maybe(TEXT),
        "finished?": TRUTH,
        "last_lines": [TEXT],
    },
    "beat": {
        "slow": Each(NUMBER),
        "ranks?": Each({"step": COUNT, "phase": COUNT, "idle_s": NUMBER}),
    },
    "samples": {"host": Each(NUMBER), "devices": Each(Each(NUMBER))},
    "warning": {"sentence": TEXT},
    "fault": {"kind": TEXT, "rank": Maybe(COUNT), "sentence": TEXT},
    "over": {"ended_well?": [COUNT]},
    # The check of a host before a run.
    "checking": {"data_dir": TEXT, "done": _CHECKED, "total": _CHECKED},
    "connected": {"failed": Each(TEXT)},
    "facts": {
        "python": VERSION,
        "executable": TEXT,
        "cores": COUNT,
        "memory": {"total": COUNT, "free": COUNT},
        "load": {
            "cores": COUNT,
            "others": NUMBER,
            "stolen": NUMBER,
            "load1": TEXT,
            "busiest": [{"name": TEXT, "pid": COUNT, "cores": NUMBER}],
        },
        "disks": [Either(({**_DISK, "error": TEXT}, {**_DISK, "error": NULL, "free": COUNT, "device": COUNT}))],
        "docker": Maybe(
            Either(({"error": TEXT}, {"error": NULL, "version": TEXT, "root": Maybe(TEXT), "image": Maybe(TRUTH)}))
        ),
        "apptainer": Maybe(Either(({"error": TEXT}, {"error": NULL, "version": TEXT, "image": TRUTH}))),
        "devices": Maybe(
            {"driver": Maybe(TEXT), "devices": [_DEVICE], "error": Maybe(TEXT), "fallback_reason?": Maybe(TEXT)}
        ),
        "data": [{"data_dir": TEXT, "problems": [TEXT]}],
        "caches": Maybe(TRUTH),
        "port": Maybe(COUNT),
        "leftovers": [TEXT],
        "listening": Maybe({"port": COUNT, "token": TEXT}),
    },
}


_NUMBERED: Mapping[str, Shape] = {kind: {**shape, "seq?": COUNT} for kind, shape in REPLIES.items()}


class CheckedChannel:
    """A connection to this project's code on a host: each message that arrives is checked by the table."""

    def __init__(self, host: str, channel: Channel) -> None:
        self._host = host
        self._channel = channel

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def receive(self, timeout_s: float) -> Message | None:
        message = self._channel.receive(timeout_s)
        if message is not None:
            check_reply(self._host, message)
        return message

    def on_arrival(self, call: Callable[[], None]) -> bool:
        return self._channel.on_arrival(call)

    def close(self, timeout_s: float = 5.0) -> int | None:
        return self._channel.close(timeout_s)

    def error_output(self) -> str:
        return self._channel.error_output()


def check_reply(host: str, message: Message) -> None:
    """Raise InvalidReply unless the message is in the table."""
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in REPLIES:
        raise InvalidReply(host, f"type is {_short(kind)}; expected one of {', '.join(REPLIES)}")
    check(host, message, _NUMBERED[kind], kind)


def check(host: str, value: object, shape: Shape, name: str) -> None:
    """Raise InvalidReply unless the value, which the message calls ``name``, has the shape."""
    for _, problem in _CHECK.problems(value, shape, (name,)):
        raise InvalidReply(host, problem)


def parse_object(host: str, text: str | bytes, shape: Shape, name: str) -> dict[str, Any]:
    """Return the JSON object that a program on the host printed; InvalidReply unless it has the shape."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidReply(host, f"{name} is {_short(text)}; expected a JSON object") from None
    check(host, value, shape, name)
    checked: dict[str, Any] = value
    return checked


def parse_line(host: str, line: bytes) -> Message | None:
    """Return the message of a line; None for a line that a library printed between messages."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        if line.lstrip().startswith(b"{"):
            raise InvalidReply(host, f"the line {_short(line)}; expected a whole JSON object") from None
        return None
    if not isinstance(message, dict):
        raise InvalidReply(host, f"the line {_short(line)}; expected a JSON object")
    return message


def check_length(host: str, size: int) -> None:
    """Raise InvalidReply if a line is longer than any message."""
    if size > LONGEST_LINE:
        raise InvalidReply(host, f"a line of more than {LONGEST_LINE >> 20} MiB; expected a shorter message")


def _short(value: object) -> str:
    """Return the beginning of a value without control characters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_INT:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, bytes):
        value = value[: _SHOWN + 1].decode("utf-8", "replace")
    text = ascii(value[: _SHOWN + 1] if isinstance(value, str) else _outline(value))
    text = text if isinstance(value, str) else text.strip("'")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _outline(value: object) -> str:
    """Describe any value but a string in few words: a list or an object may be large, or deep."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    return json.dumps(value)


_CHECK = Check(lambda _, value: _short(value))
