"""Expected failures and known problems: the cases and verdicts that a table matches, and invalid tables."""

from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.expected import Expected, of_tables
from pytest_flagperf.settings import SettingsError, read_settings
from tests.helpers.trees import VENDOR_TOML, write_vendor

TABLE = '\n[[expected]]\ncase = "glm:*:A100:*"\nverdict = "efficiency"\nreason = "known"\n'
CASE = "glm:pytorch:A100:1:8:3"


@pytest.mark.parametrize(
    ("pattern", "is_it"),
    [("glm:*:A100:*", True), (CASE, True), ("glm:pytorch:A100:1:8", True), ("*", True), ("*:1:4", False)],
)
def test_a_case_matches_with_and_without_its_rounds(pattern: str, is_it: bool) -> None:
    assert Expected(pattern, "*", "why").is_about(CASE) is is_it


def test_the_users_file_excuses_a_verdict_or_a_pattern_of_them(tmp_path: Path) -> None:
    assert Expected("*", "baseline *", "why").judges("baseline p_core")
    assert not Expected("*", "baseline *", "why").judges("efficiency")
    one = Expected("glm:*:A100:*", "efficiency", "known")
    (tmp_path / "flagperf.toml").write_text(TABLE)
    settings = read_settings({}, tmp_path)
    assert (settings.expected, settings.expected_in) == ((one,), str(tmp_path / "flagperf.toml"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [('case = "glm"\ntext = "x"', "case = 'glm': expected model:"), ('case = "*"\ntext = " "', "text is empty")],
)
def test_an_invalid_known_problem_is_reported(tmp_path: Path, lines: str, message: str) -> None:
    write_vendor(tmp_path, toml=f"{VENDOR_TOML}\n[[known_problem]]\n{lines}\n")
    with pytest.raises(CatalogError, match=rf"vendor\.toml:\d+: \[\[known_problem\]\] 1: {message}"):
        _ = Catalog.scan([tmp_path]).vendor("acme").toml


WRONG = [
    ('case = "glm"', "case = 'glm': expected model:framework:hardware"),
    ('verdict = ""', "verdict is empty"),
    ('reason = " "', "reason is empty"),
    ('reasn = "x"', "reasn: no such key; did you mean reason"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_problems_are_reported_with_file_and_table(tmp_path: Path, line: str, message: str) -> None:
    key = line.partition(" ")[0]
    lines = [line, *(each for each in TABLE.splitlines() if not each.startswith(key) and " = " in each)]
    text = "\n".join(["[[expected]]", *lines, ""])
    (tmp_path / "flagperf.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"flagperf\.toml: \[\[expected\]\] 1: " + message.replace("[", r"\[")):
        read_settings({}, tmp_path)


@pytest.mark.parametrize("given", [3, [3], {"case": "x"}])
def test_values_that_are_not_tables_are_reported(given: object) -> None:
    messages: list[str] = []
    assert of_tables(given, "f.toml", messages) == ()
    assert "expected tables, as in [[expected]]" in messages[0]
