"""Parsing of the output of vendors' tools."""

import contextlib

import pytest

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
