"""The facts about a device's health, and the events of their changes."""

from collections.abc import Mapping

import pytest

from flagperf_driver.node.sampling.health import (
    FACTS,
    FLAGS,
    NUMBERS,
    TEXTS,
    DeviceHealth,
    describe_device,
    fits,
    valid_facts,
)
from flagperf_driver.node.sampling.notes import Notes


def events(*states: Mapping[str, object]) -> list[tuple[str | None, str]]:
    notes = Notes()
    health = DeviceHealth(3, notes)
    for state in states:
        health.update(state)
    return [(event["kind"], event["sentence"]) for event in notes.report()["events"]]


def test_a_device_has_all_facts_and_invalid_values_are_unknown() -> None:
    assert len(FACTS) == len(set(FACTS))
    read = describe_device(2, {"name": "X9", "links": "18", "partitioned": 1, "fan": 3, "power_limit": 700}, error=None)
    assert read.keys() == {"index", "error", *FACTS}
    assert {key: its for key, its in read.items() if its is not None} == {"index": 2, "name": "X9", "power_limit": 700}
    assert valid_facts(read) == {"name": "X9", "power_limit": 700}


@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None, float("nan"), [], {}])
def test_each_fact_has_values_of_one_type(value: object) -> None:
    kinds = {kind: fits(words[0], value) for kind, words in (("t", TEXTS), ("n", NUMBERS), ("b", FLAGS))}
    number = value in (1, 1.5) and not isinstance(value, bool)
    assert kinds == {"t": value == "x", "n": number, "b": isinstance(value, bool)}


def test_another_device_and_errors_are_events_and_unchanged_or_missing_facts_are_not() -> None:
    state = {"uuid": "u1", "ecc_uncorrected": 0, "links_down": 2, "partitioned": False, "memory_total": 5}
    assert events(state, dict(state), {}, {**state, "uuid": None, "memory_total": 6, "fan": 3}) == []
    assert events({"uuid": "u1", "ecc_uncorrected": 0}, {"uuid": "u2", "ecc_uncorrected": 1}, {"uuid": "u2"}) == [
        ("changed", "device 3: uuid changed from u1 to u2"),
        (None, "device 3: ecc_uncorrected changed from 0 to 1"),
    ]
    counts = [{"ecc_corrected": count} for count in range(65)]
    assert [sentence.rpartition(" ")[2] for _, sentence in events(*counts)] == ["1", "2", "4", "8", "16", "32", "64"]
    assert len(events(*({"ecc_uncorrected": count} for count in range(65)))) == 64
    assert events({"link_errors": 900}, {"link_errors": 3}) == [(None, "device 3: link_errors changed from 900 to 3")]
