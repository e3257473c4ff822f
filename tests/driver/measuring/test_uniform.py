"""Slow ranks: a rank that was slowed on purpose is named, and no rank of an even machine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.logs.points import Turn
from pytest_flagperf.kinds.measurement.uniform import SLOW, WAITS, slow_ranks

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded_ranks.json").read_text())
"""20 measurements of even ranks with a core each, then ten each with a rank that did 15 % less work and with a busy
loop beside a rank. Crowded: the same of four ranks on two cores that ten other processes used, without the loop."""
Turns = Mapping[str, Sequence[Turn]]


def named(turns: Turns) -> list[tuple[str, str]]:
    slow = slow_ranks(turns)
    assert slow is not None
    return [(found.name, found.reason) for found in slow]


def recorded(*, crowded: bool, slowed: str | None) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the slowed rank and the named ones of the measurements in which a rank was slowed in this way."""
    return [
        (str(one["rank"]), named({name: [Turn(**turn) for turn in turns] for name, turns in one["turns"].items()}))
        for one in RECORDED
        if one["slowed"] == slowed and one["crowded"] is crowded
    ]


@pytest.mark.parametrize("crowded", [False, True])
def test_no_rank_of_an_even_machine_is_named(crowded: bool) -> None:
    assert [found for _, found in recorded(crowded=crowded, slowed=None)] == [[]] * 20


@pytest.mark.parametrize(("slowed", "reason"), [("slow", SLOW), ("busy", WAITS)])
def test_the_slowed_rank_is_named(slowed: str, reason: str) -> None:
    controls = recorded(crowded=False, slowed=slowed)
    assert len(controls) == 10
    assert [found for _, found in controls] == [[(rank, reason)] for rank, _ in controls]


def test_on_a_crowded_host_a_slow_rank_may_be_missed_but_no_other_is_named() -> None:
    controls = recorded(crowded=True, slowed="slow")
    assert len(controls) == 10
    assert sum(found == [(rank, SLOW)] for rank, found in controls) >= 9
    assert all(found in ([], [(rank, SLOW)]) for rank, found in controls)


def devices(*times: float, turns: int = 8) -> Turns:
    """Return turns by the devices' own clock, in which all devices get slower together by 5 % a turn."""
    return {f"device {place}": [Turn(time * 1.05**turn) for turn in range(turns)] for place, time in enumerate(times)}


def test_devices_are_compared_within_a_turn() -> None:
    assert named(devices(1.0, 1.01, 1.15, 1.0)) == [("device 2", SLOW)]
    assert named(devices(1.0, 1.01, 1.08, 1.0)) == []
    assert named(devices(1.2, 1.2, 1.0, 1.0, 1.0)) == [("device 0", SLOW), ("device 1", SLOW)]


def test_a_single_rank_and_few_turns_are_not_judged() -> None:
    assert slow_ranks(devices(1.0)) is slow_ranks(devices(1.0, 2.0, turns=3)) is slow_ranks({}) is None


def test_no_rank_is_named_for_waiting_where_all_of_them_wait() -> None:
    turns = {f"rank {rank}": [Turn(factor, 0.3, 0.7)] * 8 for rank, factor in enumerate((1.0, 1.0, 1.0, 1.5))}
    assert named(turns) == []
    assert named({name: [Turn(turn.seconds, 0.3, 0.1) for turn in of_rank] for name, of_rank in turns.items()}) == [
        ("rank 3", WAITS)
    ], "the control: the others have their cores"
