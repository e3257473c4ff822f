"""A comparison of runs in Markdown, for the comment of a pull or merge request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flagperf.report.export import blocks
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.units import count

from .case_table import BAD, CHECK, GONE, HEAD, LEFT_OUT, NOT_JUDGED, CaseRow
from .comparison import NOISY, Compared, certainty
from .page import ComparisonPage

MARK = "<!-- flagperf compare -->"
"""The first line, by which a CI job finds its earlier comment and replaces it."""
LIMIT = 65_000
"""The limit in bytes; GitHub refuses a comment of more than 65,536 characters."""
_SIGNS = {
    **dict.fromkeys((*BAD, GONE), "❌"), CHECK: "⚠️", **dict.fromkeys((LEFT_OUT, NOT_JUDGED, NOISY), "❔"),
    noise.BETTER: "🟢",
}  # fmt: skip


def of_comparison(page: ComparisonPage) -> str:
    """Return the verdict, the table of all cases, the regressions and, folded, all figures of each case."""
    sign = ("✅", _SIGNS[noise.WORSE], _SIGNS[NOT_JUDGED])[page.exit_code]
    runs = " → ".join(page.directories)
    parts = [
        blocks.lines([MARK, f"### {sign} flagperf: {blocks.text(f'{page.title}: {runs}')}"]),
        blocks.table(["", *HEAD], [_cells(row) for row in page.rows], left=3),
        *_list((*page.regressions, *filter(None, [page.gone]))),
        *_list(tuple(f"⚠️ {text}" for text in page.suspect)),
        *blocks.details(count(len(page.notes), "note"), page.notes),
        *(block for case in page.cases for block in _case(case, page.threshold)),
        blocks.lines([f"<sub>{blocks.text(_rule(page))}</sub>"]),
    ]
    return blocks.truncated(parts, LIMIT, "This comment is truncated; see the page of flagperf compare --html.")


def of_refusal(old: str, new: str, problems: Sequence[str]) -> str:
    """Return the reasons why two runs were not compared."""
    title = f"### {_SIGNS[LEFT_OUT]} flagperf: not compared: {blocks.text(f'{old} → {new}')}"
    return blocks.truncated([blocks.lines([MARK, title]), *_list(problems)], LIMIT, "This comment is truncated.")


def _cells(row: CaseRow) -> list[str]:
    case, metric, *figures, verdict = row.cells
    bold = f"**{blocks.text(verdict)}**" if row.verdict in BAD else blocks.text(verdict)
    return [_SIGNS.get(row.verdict, ""), blocks.code(case), blocks.text(metric), *map(blocks.text, figures), bold]


def _list(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield blocks.lines(f"- {blocks.text(text)}" for text in texts)


def _case(case: Compared, threshold: float) -> Iterator[str]:
    """Yield a folded table of all figures, the differences between the runs, and how the noise was measured."""
    about = [*case.row.failed, *case.row.interrupted, *case.row.invalid]
    if not case.changes and not about:
        return
    rows = [
        [blocks.text(text) for text in (change.name, *change.texts, change.share, change.word)]
        for change in case.changes
    ]
    texts = [*(f"different: {text}" for text in case.row.differences), *about, *case.row.notes]
    texts += [certainty(case.changes, threshold), *(text for trend in case.trends for text in trend.sentences())]
    yield (
        blocks.lines([f"<details><summary>{blocks.code(case.row.name)}</summary>", ""]).rstrip("\n")
        + "\n\n"
        + (blocks.table(["metric", "old", "new", "change", ""], rows, left=1) if rows else "")
        + blocks.lines([*(f"- {blocks.text(text)}" for text in texts if text), "", "</details>"])
    )


def _rule(page: ComparisonPage) -> str:
    return (
        f"A change counts if it is larger than {page.threshold:.0%} and than the noise: the change that chance exceeds "
        f"once in {1 / noise.CHANCE:.0f} runs."
    )
