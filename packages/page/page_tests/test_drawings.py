"""Drawings of a model: checked as they are read, kept first and last, and shown on the page."""

import base64
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from flagperf_driver.node.logs.drawings import FirstAndLast, LoggedDrawings, drawings
from flagperf_driver.training.steps import MOST_PIXELS
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf_page import drawings as page
from tests.helpers.results_help import recorded

RECORD: dict[str, Any] = {
    "step": 3, "name": "some_digits", "rows": 2, "columns": 3, "pixels": base64.b64encode(bytes(range(12))).decode(),
}  # fmt: skip
PICTURES = LoggedDrawings(**RECORD)
INVALID: dict[str, list[Any]] = {
    "name": ["<b>", "", "a" * 41, 1, None],
    "step": [-1, 1.5, "3", True, 2**63],
    "rows": [0, -2, 5, "2", True],
    "columns": [0, 7, None],
    "pixels": ["", "?", "AA", 12, "A" * 4 * MOST_PIXELS],
}


def test_a_valid_record_is_read() -> None:
    assert drawings(RECORD) == PICTURES
    assert PICTURES.content == bytes(range(12))
    most = base64.b64encode(bytes(MOST_PIXELS)).decode()
    assert drawings({**RECORD, "rows": 1, "columns": 1, "pixels": most}) is not None


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in INVALID.items() for value in values])
def test_an_invalid_record_is_left_out(key: str, value: object) -> None:
    assert drawings({**RECORD, key: value}) is None
    assert drawings({name: own for name, own in RECORD.items() if name != key}) is None


def test_the_first_and_the_last_pictures_are_kept() -> None:
    kept = FirstAndLast()
    for step in range(100):
        kept.add(replace(PICTURES, step=step))
        kept.add(replace(PICTURES, step=step, name=f"other{step}"))
    assert [(one.name, one.step) for one in kept.all()][:2] == [("some_digits", 0), ("some_digits", 99)]
    assert len({one.name for one in kept.all()}) == 4, "a log with many names needs no more memory"


def test_the_page_shows_the_pictures_side_by_side() -> None:
    outcome: Outcome = replace(recorded("converged_1x1"), drawings=(replace(PICTURES, step=0), PICTURES))
    html = page.html([outcome])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", html) == [
        "round 1: some digits before the training", "round 1: some digits after 3 steps",
    ]  # fmt: skip
    first, _ = re.findall(r"base64,([A-Za-z0-9+/=]+)", html)
    picture = Image.open(io.BytesIO(base64.b64decode(first)))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (7, 2))
    assert picture.tobytes() == bytes([0, 1, 2, 255, 6, 7, 8, 3, 4, 5, 255, 9, 10, 11])
    eleven = replace(PICTURES, rows=1, columns=1, pixels=base64.b64encode(bytes(range(11))).decode())
    assert [list(row)[::2] for row in page.sheet(eleven)] == [[*range(10)], [255] * 10, [10] + [255] * 9]


def test_a_round_without_pictures_has_no_drawings() -> None:
    outcome = recorded("converged_1x1")
    assert page.html([outcome]) == ""
    damaged = replace(outcome, drawings=(replace(PICTURES, pixels="?"),))
    assert page.html([damaged]) == "", "a stored outcome may be damaged"
    assert Outcome.from_json(replace(outcome, drawings=(PICTURES,)).to_json()).drawings == (PICTURES,)
