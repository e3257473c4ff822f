"""A checker of ais-bench's results, written from its documentation of ModelArts and nothing else."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

TIMES = [f"{name}_{end}_time" for name in ("dataload", "prepare", "proc", "total") for end in ("end", "start")]
KEYS = sorted(
    [
        *TIMES, "accuracy", "average_power", "efficientcy", "energy_consumption", "max_power", "resource_util_ratio",
        "throughput_ratio",
    ]
)  # fmt: skip
"""The keys in the order in which the documentation prints them."""
_LIST = re.compile(r"report >> (throughput_list|accuracy_list):\[([^]]+)\] average:(\S+)")


def problems(info: Mapping[str, Any]) -> Iterator[str]:
    if list(info) != KEYS:
        yield f"keys are {list(info)}"
        return
    for name in TIMES:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", str(info[name])):
            yield f"{name} is {info[name]!r}"
    for name in ("accuracy", "throughput_ratio"):
        if not isinstance(info[name], str) or not float(info[name]) > 0:
            yield f"{name} is {info[name]!r}; expected a positive number as a string"
    for name in ("average_power", "efficientcy", "energy_consumption", "max_power", "resource_util_ratio"):
        if isinstance(info[name], bool) or not isinstance(info[name], (int, float)):
            yield f"{name} is {info[name]!r}; expected a number"
    if not info["total_start_time"] <= info["total_end_time"]:
        yield "the total time is negative"


def lists(text: str) -> dict[str, tuple[list[float], float]]:
    return {match[1]: ([float(x) for x in match[2].split(",")], float(match[3])) for match in _LIST.finditer(text)}
