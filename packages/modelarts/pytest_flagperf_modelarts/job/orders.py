"""The orders of a job: written before the job exists, with placeholders for what only its instances know."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple

SCHEMA = 1
_MARK = "@flagperf:{}@"
CODE, LOGS, PYTHON, DATA, THREADS = (_MARK.format(name) for name in ("code", "logs", "python", "data", "threads"))
_SHOWN = 3


class OrdersError(RuntimeError):
    """The orders cannot be followed."""


class InstanceOrders(NamedTuple):
    """The orders for one instance."""

    name: str  # of its host folder
    nproc: int
    start: Mapping[str, Any]  # the message that starts the ranks


class JobOrders(NamedTuple):
    """The orders of all instances; ``files`` has the checksum of each file of the code."""

    together: bool  # whether all instances run one training
    instances: list[InstanceOrders]
    files: Mapping[str, str]


def host(number: int) -> str:
    """Return the placeholder of an instance's address."""
    return _MARK.format(f"host{number}")


def read_orders(path: Path) -> JobOrders:
    try:
        body = json.loads(path.read_text("utf-8"))
        if body["schema"] != SCHEMA:
            raise OrdersError("{}: schema is {!r}; expected {}".format(path, body["schema"], SCHEMA))
        instances = [InstanceOrders(entry["name"], entry["nproc"], entry["start"]) for entry in body["instances"]]
        return JobOrders(bool(body["together"]), instances, dict(body["files"]))
    except OSError as error:
        raise OrdersError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OrdersError(f"{path}: invalid orders: {type(error).__name__}: {error}") from error


def check_code(folder: Path, files: Mapping[str, str]) -> None:
    """Raise OrdersError unless the code is that of the orders: another run may have replaced it meanwhile."""
    different = [name for name, checksum in files.items() if _checksum(folder / name) != checksum]
    if different:
        more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise OrdersError(
            "the code folder is not that of this job: another run uses the same code folder; different:"
            f" {', '.join(different[:_SHOWN])}{more}"
        )


def _checksum(path: Path) -> str:
    try:
        return checksum(path.read_bytes())
    except OSError:
        return ""


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a JSON value with the placeholders replaced in all its texts."""
    if isinstance(value, str):
        for placeholder, text in values.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, list):
        return [filled(item, values) for item in value]
    if isinstance(value, dict):
        body: dict[str, Any] = {key: filled(item, values) for key, item in value.items()}
        return body
    return value
