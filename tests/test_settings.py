"""Settings: the command line over the file over the defaults, and what is wrong is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flagperf.settings import OPTIONS, SettingsError, read_settings


def test_defaults_stand_when_nobody_says_otherwise(tmp_path: Path) -> None:
    settings = read_settings({}, tmp_path)
    assert (settings.vendor, settings.repeat, settings.reports, settings.case) == ("cpu", 1, "reports", ())
    assert not settings.given("vendor")


def test_the_file_wins_over_the_default_and_the_command_line_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.flagperf]\nvendor = "acme"\nrepeat = 3\ndata-dir = "/d"\n')
    settings = read_settings({"repeat": 5, "synthetic": None}, tmp_path)
    assert (settings.vendor, settings.repeat, settings.data_dir) == ("acme", 5, "/d")
    assert settings.sources["vendor"].endswith("pyproject.toml")
    assert settings.sources["repeat"] == "command line"


def test_flagperf_toml_is_taken_before_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.flagperf]\nvendor = "one"\n')
    (tmp_path / "flagperf.toml").write_text('vendor = "two"\n')
    assert read_settings({}, tmp_path).vendor == "two"


def test_every_problem_of_a_file_is_told_at_once_with_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "flagperf.toml").write_text('vendr = "x"\nrepeat = "3"\nscale = "smal"\nsynthetic = 1\nset = "a=1"\n')
    with pytest.raises(SettingsError) as caught:
        read_settings({}, tmp_path)
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    assert "unknown setting 'vendr'; did you mean vendor?" in text
    assert "repeat = '3': a whole number is wanted" in text
    assert "allowed are reference, small; did you mean small?" in text
    assert "synthetic = 1: true or false is wanted" in text
    assert "set = 'a=1': a list of strings is wanted" in text


def test_no_rounds_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"repeat = 0 \(command line\): at least one round"):
        read_settings({"repeat": 0}, tmp_path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "flagperf.toml").write_text("vendor = \n")
    with pytest.raises(SettingsError, match=r"flagperf\.toml: not a TOML file"):
        read_settings({}, tmp_path)


def test_every_option_has_a_help_and_a_name_of_its_own() -> None:
    assert all(option.help for option in OPTIONS)
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)
