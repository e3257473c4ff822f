"""What tools print, taken apart."""

from __future__ import annotations

import contextlib

import pytest

from flagperf_driver.node.sampling.tool_output import (
    NotUnderstood,
    after,
    cells,
    figure,
    first,
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
    ("text", "units", "wanted"),
    [
        ("109.51W", ["W"], 109.51),
        (" 32 c ", ["C"], 32.0),
        ("0%", ["%"], 0.0),
        ("-3", [], -3.0),
        ("860", [], 860.0),
        ("401", ["MiB"], None),  # of 40102MiB, cut
        ("12 GiB", ["MiB"], None),
        ("0000:81:00.0", [], None),
        ("N/A", ["W"], None),
        ("-", ["W"], None),
        ("NA", [], None),
        ("", [], None),
        ("²", [], None),
        ("nan", [], None),
        (7, [], None),
        (None, [], None),
    ],
)
def test_a_figure_has_the_unit_that_is_asked_for(text: object, units: list[str], wanted: float | None) -> None:
    assert figure(text, *units) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0%   30C   P0    40W / 250W", 40.0),
        ("0%   32C        106 W/ 250 W", 106.0),
        ("35C 56W", 56.0),
        ("N/A  60C   P0    N/A / 150W", None),
        ("N/A /150W", None),
    ],
)
def test_a_limit_is_no_reading(text: str, wanted: float | None) -> None:
    assert first(text, "W") == wanted


def test_two_figures_about_a_slash() -> None:
    assert used_of_total("914/65536 MiB", "MiB") == (914, 65536)
    assert used_of_total("0 MiB/ 23374 MiB", "MiB") == (0, 23374)
    assert used_of_total("914", "MiB") == (914, None)


def test_words_of_headings_and_numbers_of_devices() -> None:
    assert after("Driver Version", "| IX: 1  Driver Version: 3.1.0 |") == "3.1.0"
    assert after("Driver Version", "nothing of it") is None
    assert (index(" 12 "), index("1 2"), index("-1"), index("9999999")) == (12, None, None, None)
    assert cells("| a | b c |") == ["a", "b c"]
    assert cells("+---+") == []


def opens(row: list[str]) -> bool:
    return row[1].endswith("%")


def test_a_device_of_two_lines() -> None:
    assert two_lines(TABLE, "a-smi", 2, opens) == [(["0", "5%"], ["31", "1/2"])]
    with pytest.raises(NotUnderstood, match="there is no device of a-smi's table in it; it is empty"):
        two_lines("", "a-smi", 2, opens)


@pytest.mark.parametrize("left", range(len(TABLE.rstrip())))
def test_of_a_table_that_is_cut_no_device_is_half_read(left: int) -> None:
    with contextlib.suppress(NotUnderstood):
        assert two_lines(TABLE[:left], "a-smi", 2, opens) == [(["0", "5%"], ["31", "1/2"])]


def test_a_refusal_quotes_what_was_printed() -> None:
    assert str(refused("+--+\n  no  driver\n", "no device")) == "there is no device in it; it says 'no driver'"
    assert str(refused(" \n", "no device")) == "there is no device in it; it is empty"
    assert str(refused("x" * 999, "no device")).endswith("xxx...'")


# -- one line a device ---------------------------------------------------------------------------------------

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
    ("text", "said"),
    [
        (ONE_LINE.replace("Busy", "Idle"), "there is no table of Device, Busy in it; it says '| Device | Idle |"),
        (ONE_LINE.replace("| 1      | N/A  |", "| 1      | 2 | 3 |"), "'1 | 2 | 3' is no device's line: 2 cells are"),
        (ONE_LINE.replace("| 1 ", "| all "), "'all | N/A' is no device's line"),
        ("".join(ONE_LINE.splitlines(True)[:3]), "there is no device below the headings in it"),
        ("".join(ONE_LINE.splitlines(True)[:4]), "the table ends at '| 0      | 5%   |'"),
        ("no driver", "it says 'no driver'"),
        ("", "it is empty"),
    ],
)
def test_of_any_other_table_nothing_is_guessed(text: str, said: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        table(text, "Device", "Busy")
    assert said in str(caught.value)
