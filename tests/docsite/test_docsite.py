"""The documentation site: its pages, and the complete tables from which the reference pages are made."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from docsite import pages, reference
from docsite.navigation import CHINESE, ENGLISH, NAVIGATION
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


def stage(tmp_path: Path, **texts: str) -> pages.Stage:
    made = {name: pages.Page(name, f"docs/{name}.md", text) for name, text in texts.items()}
    return pages.Stage(ENGLISH, tmp_path / "stage", made, {}, tmp_path)


def test_a_link_to_a_missing_file_is_an_error_but_not_in_code_and_an_ungrouped_page_is_last(tmp_path: Path) -> None:
    with pytest.raises(pages.PageError, match=r"docs/a.md: link target 'none.md' not found"):
        stage(tmp_path, a="# A\n\n[x](none.md)\n").write()
    one = stage(tmp_path, a="# A\n\n    [x](none.md)\n\n```sh\n[x](none.md)\n```\n")
    one.write()
    assert "[x](none.md)" in (one.folder / "a.md").read_text(encoding="utf-8")
    (*_, (title, names)) = stage(tmp_path, index="# I\n", brand_new="# N\n").navigation()
    assert (title, names[-1]) == (NAVIGATION[-1].english, "brand_new")


def test_pages_have_names_of_their_sources() -> None:
    names = {source: pages.page_name(source) for source in ("docs/a.zh.md", "suites/glm/README.md", "CONTRIBUTING.md")}
    assert list(names.values()) == ["a", "suites/glm/index", "contributing"]
    assert "docs/index.zh.md" in pages.sources(REPO, CHINESE)
