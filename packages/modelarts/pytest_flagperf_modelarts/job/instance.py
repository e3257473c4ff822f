"""The instance of a job on which this process runs: its number, and the addresses of all instances."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping, NamedTuple

_INDEX = ("VC_TASK_INDEX", "BATCH_TASK_INDEX", "DLS_TASK_INDEX")
_HOSTS = ("VC_WORKER_HOSTS", "BATCH_CUSTOM0_HOSTS")
_TABLE = "RANK_TABLE_FILE"


class InstanceError(RuntimeError):
    """The variables of the cloud do not describe this instance."""


class Instance(NamedTuple):
    """An instance: its number, and the address of each instance."""

    number: int
    hosts: list[str]


def this_instance(count: int, together: bool, environment: Mapping[str, str] = os.environ) -> Instance:
    """Return this instance of a job with ``count`` instances; if they train together, with all addresses."""
    text = next((environment[name] for name in _INDEX if environment.get(name)), "0" if count == 1 else "")
    if not text.isdigit() or int(text) >= count:
        raise InstanceError(f"the instance's number is {text!r} (from {', '.join(_INDEX)}); expected 0 to {count - 1}")
    if count == 1 or not together:
        return Instance(int(text), ["127.0.0.1"])
    hosts = _hosts(environment)
    if len(hosts) != count:
        raise InstanceError(
            f"{len(hosts)} addresses of instances (from {', '.join(_HOSTS)} or {_TABLE}); expected {count}"
        )
    return Instance(int(text), hosts)


def _hosts(environment: Mapping[str, str]) -> list[str]:
    for name in _HOSTS:
        if environment.get(name):
            return [text.strip().partition(":")[0] for text in environment[name].split(",") if text.strip()]
    path = environment.get(_TABLE)
    if not path:
        return []
    try:
        table: Mapping[str, Any] = json.loads(Path(path).read_text())
        return [str(server.get("container_ip") or server["server_id"]) for server in table["server_list"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InstanceError(f"{path}: expected a rank table: {type(error).__name__}: {error}") from error
