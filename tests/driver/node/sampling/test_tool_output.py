"""What vendors' tools report: parsing, the facts about a device's health, and the events of their changes."""

import contextlib
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
from flagperf_driver.node.sampling.tool_output import (
    NotUnderstood,
    after,
    cells,
    figure,
    index,
    refused,
    table,
    two_lines,
    used_of_total,
)

TABLE = """+----+------+
| ID | Busy |
| C  | MiB  |
+====+======+
| 0  | 5%   |
| 31 | 1/2  |
+----+------+
"""


@pytest.mark.parametrize(
    ("text", "units", "expected"),
    [
        ("109.51W", ["W"], 109.51),
        (" 32 c ", ["C"], 32.0),
        ("0%", ["%"], 0.0),
        ("-3", [], -3.0),
        ("401", ["MiB"], None),  # of 40102MiB, truncated
        ("12 GiB", ["MiB"], None),
        ("0000:81:00.0", [], None),
        ("N/A", ["W"], None),
        ("", [], None),
        ("²", [], None),
        ("nan", [], None),
        (7, [], None),
    ],
)
def test_a_figure_must_have_the_unit(text: object, units: list[str], expected: float | None) -> None:
    assert figure(text, *units) == expected


def test_figures_with_a_slash_headings_device_numbers_and_cells_are_read() -> None:
    assert used_of_total("914/65536 MiB", "MiB") == (914, 65536)
    assert used_of_total("0 MiB/ 23374 MiB", "MiB") == (0, 23374)
    assert used_of_total("914", "MiB") == (914, None)
    assert after("Driver Version", "| IX: 1  Driver Version: 3.1.0 |") == "3.1.0"
    assert after("Driver Version", "nothing of it") is None
    assert (index(" 12 "), index("1 2"), index("-1"), index("9999999")) == (12, None, None, None)
    assert cells("| a | b c |") == ["a", "b c"]
    assert cells("+---+") == []


def opens(row: list[str]) -> bool:
    return row[1].endswith("%")


def test_a_device_with_two_lines() -> None:
    assert two_lines(TABLE, "a-smi", 2, opens) == [(["0", "5%"], ["31", "1/2"])]
    with pytest.raises(NotUnderstood, match="no device found in a-smi's table; the output is empty"):
        two_lines("", "a-smi", 2, opens)


@pytest.mark.parametrize("left", range(len(TABLE.rstrip())))
def test_no_device_of_a_truncated_table_is_half_read(left: int) -> None:
    with contextlib.suppress(NotUnderstood):
        assert two_lines(TABLE[:left], "a-smi", 2, opens) == [(["0", "5%"], ["31", "1/2"])]


def test_a_refusal_quotes_the_output() -> None:
    assert str(refused("+--+\n  no  driver\n", "no device")) == "no device; the output is 'no driver'"
    assert str(refused(" \n", "no device")) == "no device; the output is empty"
    assert str(refused("x" * 999, "no device")).endswith("xxx...'")


ONE_LINE = """+--------+------+
| Device | Busy |
+--------+------+
| 0      | 5%   |
| 1      | N/A  |
+--------+------+
"""


def test_a_table_is_read_below_its_headings() -> None:
    assert table(ONE_LINE, "Device", "Busy") == [["0", "5%"], ["1", "N/A"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE_LINE.replace("Busy", "Idle"), "no table with the columns Device, Busy; the output is '| Device | Idle |"),
        (
            ONE_LINE.replace("| 1      | N/A  |", "| 1      | 2 | 3 |"),
            "'1 | 2 | 3' is not the line of a device; expected a number and 1 more",
        ),
        (ONE_LINE.replace("| 1 ", "| all "), "'all | N/A' is not the line of a device"),
        ("".join(ONE_LINE.splitlines(True)[:3]), "no device found below the headings"),
        ("".join(ONE_LINE.splitlines(True)[:4]), "the table is truncated at '| 0      | 5%   |'"),
        ("no driver", "the output is 'no driver'"),
        ("", "the output is empty"),
    ],
)
def test_an_unexpected_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        table(text, "Device", "Busy")
    assert message in str(caught.value)


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
