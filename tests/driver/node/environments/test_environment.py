"""The record of a failed build of an environment."""

import os
from pathlib import Path

import pytest

from flagperf_driver.node.environments.build import _EarlierBuild, build, handle, reason
from flagperf_driver.node.environments.environment import BuildError, describe


def test_failures_are_raised_again_in_their_run_and_missing_packages_until_a_success(tmp_path: Path) -> None:
    file = tmp_path / "frame.failed"
    _EarlierBuild(file, "one").record(error="uv pip failed")
    with pytest.raises(BuildError, match="uv pip failed"):
        _EarlierBuild(file, "one").unavailable()
    assert _EarlierBuild(file, "two").unavailable() is None
    earlier = _EarlierBuild(file, "one")
    earlier.record(unavailable="no index")
    assert earlier.unavailable() == "no index"
    earlier.record()
    assert earlier.unavailable() is None
    assert not file.exists()
    _EarlierBuild(file, "").record(error="uv pip failed")
    assert _EarlierBuild(file, "").unavailable() is None, "without a run nothing is remembered"


def test_the_reason_for_missing_packages_is_reported_by_the_process_that_looked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path))
    request = {"framework": "frame", "requirements": ["frame==1.0"], "run": "one", "timeout_s": 60}
    environment = describe(request)
    environment.folder.parent.mkdir()
    _EarlierBuild(environment.beside(".failed"), "one").record(unavailable="no index")
    assert build(environment, request) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "a"}', '{"run": "one", "error": null, "unavailable": null}'])
def test_a_damaged_record_is_no_failure(tmp_path: Path, text: str) -> None:
    file = tmp_path / "frame.failed"
    file.write_text(text)
    assert _EarlierBuild(file, "one").unavailable() is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["Using Python 3.11.7 environment at: v", "error: Request failed after 3 retries in 12.7s",
             "  cause: Failed to fetch: https://packages.example/whl/cpu/torch/",
             "  cause: error sending request for url (https://packages.example/whl/cpu/torch/)",
             "  cause: Connection refused (os error 111)"],
            "cannot fetch from https://packages.example: Connection refused (os error 111)",
        ),
        (
            ["error: No solution found when resolving dependencies",
             f"  cause: Because only frame<={'9' * 20} is available and you require frame==1.0, {'we conclude ' * 20}"],
            f"Because only frame<={'9' * 20} is available and you require frame==1.0,",
        ),
        (["  ", "uv: killed"], "uv: killed"),
        ([], "uv failed"),
    ],
)  # fmt: skip
def test_the_reason_for_missing_packages_is_one_short_line_with_its_beginning(lines: list[str], expected: str) -> None:
    text = reason(lines)
    assert text.startswith(expected)
    assert len(text) <= 160


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("[[packages]]\nwheels = [{ size = 10 }]\n\n[[packages]]\nwheels = [{ size = 5 }]\n", (2, 15)),
        ("[[packages]]\nwheels = [{ size = 10 }]\n\n[[packages]]\nwheels = [{ url = 'b' }]\n", (2, None)),
        ('[[packages]]\nwheels = [{ url = "file://FOLDER/a%2B1.whl" }]\n', (1, 7)),  # an index in a folder
        ('[[packages]]\nwheels = [{ url = "file://FOLDER/missing.whl" }]\n', (1, None)),
        (None, (None, None)),  # uv fails: the index cannot be reached
    ],
)  # fmt: skip
def test_the_size_of_a_build_is_known_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str | None, expected: tuple[int | None, int | None]
) -> None:
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path))
    (tmp_path / "a+1.whl").write_text("content")
    (tmp_path / "printed").write_text((printed or "").replace("FOLDER", str(tmp_path)))
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\nexit {0 if printed else 1}\n")
    uv.chmod(0o755)
    request = {"op": "size", "framework": "frame", "requirements": ["frame==1.0"], "uv": str(uv), "timeout_s": 60}
    reading, writing = os.pipe()  # from a caller that has not left
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w"):
        monkeypatch.setattr("sys.stdin", stdin)
        answer = handle(request)
    assert (answer["packages"], answer["bytes"]) == expected
    assert [path.name for path in (tmp_path / "venv").iterdir()] == [], "the requirements may contain a password"
