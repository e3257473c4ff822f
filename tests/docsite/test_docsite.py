"""The tables of figures, verdicts and files, from which the site's reference pages are made, are complete."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from docsite import reference
from pytest_flagperf.kind import criteria
from pytest_flagperf.kinds import TrainingKind
from pytest_flagperf.results.figures.kinds import FIGURES, MONEY, RATE
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.columns import FIGURES as COLUMNS
from pytest_flagperf.results.tables.columns import LATER, MEANWHILE
from pytest_flagperf.results.verdicts.verdict import OF_EVERY_KIND
from pytest_flagperf.stored import layout
from tests.helpers.results_help import NAMES, recorded

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [recorded(name) for name in NAMES]


def different(outcomes: list[Outcome]) -> Iterator[str]:
    """The figures of rounds whose unit or direction is not that of the table."""
    for outcome in outcomes:
        for figure in outcome.metrics:
            if figure.name in outcome.target.values:
                continue
            kind = FIGURES.get(figure.name)
            units = {RATE: outcome.rate_unit, MONEY: "EUR"}
            unit = kind and units.get(kind.unit, kind.unit)
            if kind is None or (figure.unit, figure.direction) != (unit, kind.direction):
                yield f"{figure.name}: {figure.unit} {figure.direction}, expected {kind}"


def test_measured_figures_are_those_of_the_table(outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(set(different(outcomes))) == []
    measured = {figure.name for outcome in outcomes for figure in outcome.metrics}
    assert len(measured & FIGURES.keys()) >= 30
    monkeypatch.setitem(FIGURES, "p_core", FIGURES["p_core"]._replace(direction="lower"))
    assert any(line.startswith("p_core: ") for line in different(outcomes))
    assert FIGURES.keys() == {name for name, _ in (*COLUMNS, *MEANWHILE, *LATER)}


def named_verdicts() -> set[str]:
    """The names that the code gives to verdicts as text."""
    nodes = (
        node
        for path in (REPO / "pytest_flagperf").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Verdict" and node.args
    )
    return {str(node.args[0].value) for node in nodes if isinstance(node.args[0], ast.Constant)}


def test_every_verdict_and_every_file_of_a_run_has_a_meaning(outcomes: list[Outcome]) -> None:
    assert len(named_verdicts()) >= 12
    found = [one for criterion in TrainingKind.criteria for one in criterion.verdicts_on(outcomes)]
    declared = {*OF_EVERY_KIND, *(name for criterion in criteria().values() for name in criterion.meanings)}
    assert {*named_verdicts(), *(verdict.name for verdict in found)} - declared == set()
    assert {verdict.kind for verdict in found} == {"finished", "figures", "convergence", "throughput"}
    described = {name for files in layout.FILES.values() for name in files}
    constants = {
        name for name in vars(layout) if name[0].isupper() and name.isupper() and isinstance(getattr(layout, name), str)
    }
    parts = {"VERDICTS", "ONE_CARD", "ALL_CARDS", "LIVE", "LIVE_SUFFIX", "CONTROLLER", "FETCHED", "WEIGHTS"}  # of names
    assert {name for name in constants - parts if getattr(layout, name) not in described} == set()


@pytest.mark.parametrize(
    "name", ["options", "flagperf-toml", "config", "vendor-toml", "suite-toml", "figures", "verdicts"]
)
def test_every_row_of_a_reference_page_has_a_meaning(name: str) -> None:
    rows = [line for line in reference.pages()[f"reference/{name}"].splitlines() if line.startswith("| `")]
    assert len(rows) >= 15
    assert [row for row in rows if row.endswith("|  |")] == []
