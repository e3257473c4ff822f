"""Recorded rounds and runs, good and bad, get exactly the verdicts that are written beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_flagperf.expected import ExpectedInFile
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import converges, failed, throughput
from pytest_flagperf.running.gates import Gates
from pytest_flagperf.running.judging import with_expected
from pytest_flagperf.settings import read_settings
from tests.replays.make import GOLDEN
from tests.replays.make_gates import GATED, Gated, write_baseline, write_rounds
from tests.results_help import NAMES, REPLAYS, recorded, replay_dir
from tests.trees import set_options


@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_verdicts_that_are_written_beside_it(name: str) -> None:
    outcome, expected = recorded(name), REPLAYS[name]
    assert tuple(verdict.name for verdict in failed(converges(outcome))) == expected.unconverged
    assert tuple(verdict.name for verdict in failed(throughput([outcome]))) == expected.unsound
    assert tuple(warning.kind for warning in outcome.validity_warnings) == expected.validity_warnings
    assert tuple(text for text in outcome.warnings if "outside the possible range" in text) == expected.dropped


@pytest.mark.parametrize("gated", GATED, ids=lambda gated: gated.name)
def test_a_run_gets_past_its_gates_or_not_as_is_written_beside_it(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "flagperf.toml").write_text("".join(map(_table, gated.expecting)))
    write_baseline(tmp_path / "baselines")
    outcomes = []
    for round_dir in write_rounds(gated, tmp_path / "reports" / "run20261201000000"):
        outcomes.append(measure(round_dir))
        store.save_outcome(round_dir, outcomes[-1])
    excused = sorted(gated.excused)
    assert _judged(outcomes, tmp_path) == (sorted(gated.failed), excused)
    assert _judged(outcomes, tmp_path, strict=True) == (sorted([*gated.failed, *gated.strict]), excused)


def _judged(outcomes: Sequence[Outcome], root: Path, *, strict: bool = False) -> tuple[list[str], list[str]]:
    """The names of what failed in any round, and of what failed as was expected."""
    set_options(root, baselines=str(root / "baselines"))
    settings = read_settings({}, root)
    gates = Gates(settings, strict=strict)
    found = [*throughput(outcomes), *gates.throughput(outcomes)]
    sources = [ExpectedInFile(one, settings.expected_in) for one in settings.expected]
    bad = [verdict for verdict in with_expected(found, sources, strict=strict) if not verdict.ok]
    names = list(dict.fromkeys(verdict.name for verdict in bad))
    return sorted(names), sorted({verdict.name for verdict in bad if verdict.expected_failure})


def _table(expected: Mapping[str, str]) -> str:
    return "[[expected]]\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in expected.items())


def test_there_are_replays_of_both_kinds() -> None:
    good = [
        name
        for name, one in REPLAYS.items()
        if not (one.unconverged or one.unsound or one.validity_warnings or one.dropped)
    ]
    assert {"converged_1x1", "converged_1x2", "mangled_log", "clock_skew", "at_its_power_limit"} <= set(good)
    assert len(NAMES) - len(good) >= 20


@pytest.mark.parametrize("name", ["crashed_rank", "foreign_process"])
def test_the_format_of_a_rounds_files_is_the_committed_one(name: str) -> None:
    """After a wanted change of the format, ``python -m tests.replays.make`` writes the committed files again."""

    def files(root: Path) -> dict[Path, str]:
        return {path.relative_to(root): path.read_text("utf-8") for path in root.rglob("*") if path.is_file()}

    assert files(replay_dir(name)) == files(GOLDEN / name)
