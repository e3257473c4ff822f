"""The step times of ranks, from their logs."""

from dataclasses import replace
from pathlib import Path

from flagperf_driver import perflog
from flagperf_driver.perflog import Record
from pytest_flagperf_page import chart_html, step_times
from tests.helpers.results_help import recorded, replay_dir


def test_each_rank_of_a_replay_with_records_has_step_times(tmp_path: Path) -> None:
    found = step_times.read(replay_dir("converged_1x2"), recorded("converged_1x2"))
    assert [words.rank for words in found] == [0, 1]
    for words in found:
        assert words.step_times
        assert [step for step, _ in words.step_times] == sorted(step for step, _ in words.step_times)
    (tmp_path / "rank1.out.log").write_text("nothing of ours\n")
    outcome = replace(recorded("converged_1x2"), logs=("rank0.out.log", "rank1.out.log"))
    assert step_times.read(tmp_path, outcome) == []


def test_of_a_long_log_a_part_is_read_and_its_last_word(tmp_path: Path) -> None:
    steps = [Record("STEP_END", {"step": step, "step_time": 0.1}, step, 0) for step in range(20_000)]
    end = Record("FINISHED", {"forward_time": 0.05}, 20_001, 0)
    lines = map(perflog.format_record, [*steps, end])
    (tmp_path / "rank0.out.log").write_text("\n".join(lines) + "\n")
    outcome = replace(recorded("converged_1x1"), logs=("rank0.out.log",))
    (words,) = step_times.read(tmp_path, outcome)
    assert 100 < len(words.step_times) < 1000
    assert words.step_times[-1] == (19_999, 0.1)
    assert words.forward == 0.05


def test_a_rank_that_holds_up_the_others_is_seen() -> None:
    ranks = [step_times.RankStepTimes(rank, (), 0.04 if rank == 7 else 0.02) for rank in range(20)]
    text = chart_html.rank_bars(ranks)
    assert "the slowest 16 of 20 ranks" in text
    assert text.count("<tr") == 16
    assert text.count("<tr class=bad") == text.count('<tr class=bad><th scope="row">rank 7</th>') == 1
    assert "class=bad" not in chart_html.rank_bars(ranks[:7])
    assert chart_html.rank_bars(ranks[:1]) == chart_html.rank_bars([step_times.RankStepTimes(0, ())] * 2) == ""
