"""What is known of a device, and what a change of it means."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flagperf_driver.node.sampling.health import (
    NUMBERS,
    TEXTS,
    TRUTHS,
    WORDS,
    DeviceHealth,
    described,
    fits,
    understood,
)
from flagperf_driver.node.sampling.notes import Notes


def told(*states: Mapping[str, object]) -> list[tuple[str | None, str]]:
    notes = Notes()
    course = DeviceHealth(3, notes)
    for state in states:
        course.learn(state)
    return [(event["kind"], event["sentence"]) for event in notes.report()["events"]]


def test_a_device_is_described_in_all_words_and_what_is_no_value_of_one_is_not_known() -> None:
    assert len(WORDS) == len(set(WORDS))
    found = described(2, {"name": "X9", "links": "18", "partitioned": 1, "fan": 3, "power_limit": 700}, error=None)
    assert found.keys() == {"index", "error", *WORDS}
    assert {word: value for word, value in found.items() if value is not None} == {
        "index": 2,
        "name": "X9",
        "power_limit": 700,
    }
    assert understood(found) == {"name": "X9", "power_limit": 700}


@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None, float("nan"), [], {}])
def test_each_word_has_values_of_one_kind(value: object) -> None:
    kinds = {kind: fits(words[0], value) for kind, words in (("t", TEXTS), ("n", NUMBERS), ("b", TRUTHS))}
    number = value in (1, 1.5) and not isinstance(value, bool)
    assert kinds == {"t": value == "x", "n": number, "b": isinstance(value, bool)}


def test_what_stays_or_is_not_told_is_no_event() -> None:
    state = {"uuid": "u1", "ecc_uncorrected": 0, "links_down": 2, "partitioned": False, "memory_total": 5}
    assert told(state, dict(state), {}, {**state, "uuid": None, "memory_total": 6, "fan": 3}) == []


def test_another_device_bends_figures_and_a_sick_one_is_told() -> None:
    assert told({"uuid": "u1", "ecc_uncorrected": 0}, {"uuid": "u2", "ecc_uncorrected": 1}, {"uuid": "u2"}) == [
        ("changed", "device 3: uuid went from u1 to u2"),
        (None, "device 3: ecc_uncorrected went from 0 to 1"),
    ]


def test_a_stream_of_corrected_errors_is_told_at_each_doubling_and_uncorrected_ones_always() -> None:
    counts = [{"ecc_corrected": count} for count in range(65)]
    assert [sentence.rpartition(" ")[2] for _, sentence in told(*counts)] == ["1", "2", "4", "8", "16", "32", "64"]
    assert len(told(*({"ecc_uncorrected": count} for count in range(65)))) == 64
    assert told({"link_errors": 900}, {"link_errors": 3}) == [(None, "device 3: link_errors went from 900 to 3")]
