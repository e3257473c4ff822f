"""The progress of a round in one line."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flagperf.case import Case
from pytest_flagperf.progress import RoundProgress
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.stored import layout


def round_title(case: str, folder: str) -> str:
    """Return the case and the number of a round or, of a short round, the name of its folder."""
    folder = folder.rpartition("/")[2]
    number = layout.round_number(folder)
    return f"{case} {folder if number is None else f'round {number}'}"


def in_round(title: str, text: str) -> str:
    """Return what is done in the round of this title; it is empty between rounds. A text may name its case itself."""
    if not title or text.startswith(f"{title.partition(' ')[0]} "):
        return text
    return f"{title}  {text}".rstrip()


def progress_line(progress: RoundProgress, width: int = 1000, *, is_running: bool = True) -> str:
    """Return step, loss, metric and target, throughput and remaining time in one line of at most ``width`` columns.

    What does not fit is left out, the last part first.
    """
    figures = [*_figures(progress, is_running=is_running)]
    wide = "  ".join([f"{progress.case} round {progress.round}", *figures])
    if len(wide) <= width:
        return wide
    case = Case.parse(progress.case)
    name = " ".join(filter(None, [case.model, str(case.shape), case.variant_name]))
    parts = [f"{name} #{progress.round}", *figures]
    while len("  ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return "  ".join(parts)[:width]


def _figures(progress: RoundProgress, *, is_running: bool) -> Iterator[str]:
    if not progress.step:
        yield progress.phase
        return
    yield f"step {progress.step:,}"
    if progress.loss is not None:
        yield f"loss {plain(progress.loss, 3)}"
    if progress.metric is not None and progress.target is not None:
        yield f"{progress.metric_name} {plain(progress.metric, 3)} of {plain(progress.target, 3)}"
    if progress.throughput is not None:
        which = "" if is_running else "last "
        yield f"{which}{quantity(progress.throughput, f'{progress.sample_unit}/s', 3)}"
    if is_running and progress.time_left_s is not None:
        yield f"estimated {quantity(progress.time_left_s, 's')} left"
