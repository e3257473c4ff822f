"""Recorded rounds and runs, good and bad, get exactly the verdicts that are written beside them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
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
from pytest_flagperf.stored import files
from tests.results_help import NAMES, REPLAYS, expected, recorded
from tests.trees import set_options

GATES = REPLAYS / "gates"
GATED = sorted(path.parent.name for path in GATES.glob("*/expected.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_verdicts_that_are_written_beside_it(name: str) -> None:
    outcome, written = recorded(name), expected(name)
    assert [verdict.name for verdict in failed(converges(outcome))] == written["converges"]
    assert [verdict.name for verdict in failed(throughput([outcome]))] == written["throughput"]
    assert [warning.kind for warning in outcome.validity_warnings] == written.get("validity_warnings", [])
    assert [text for text in outcome.warnings if "outside the possible range" in text] == written.get("dropped", [])


@pytest.mark.parametrize("name", GATED)
def test_a_run_gets_past_its_gates_or_not_as_is_written_beside_it(name: str, tmp_path: Path) -> None:
    written = files.read_printable(GATES / name / "expected.json")
    (tmp_path / "flagperf.toml").write_text("".join(map(_table, written["expecting"])))
    outcomes = _stored(GATES / name, tmp_path / "reports" / "run20261201000000")
    assert _judged(outcomes, tmp_path) == (written["failed"], written["excused"])
    strictly = sorted([*written["failed"], *written["strict"]])
    assert _judged(outcomes, tmp_path, strict=True) == (strictly, written["excused"])


def _stored(run: Path, to: Path) -> list[Outcome]:
    """The run as it lies in a folder of reports, measured."""
    shutil.copytree(run, to)
    found = []
    for plan in sorted(to.glob("*/round*/plan.json")):
        found.append(measure(plan.parent))
        store.save_outcome(plan.parent, found[-1])
    return found


def _judged(outcomes: Sequence[Outcome], root: Path, *, strict: bool = False) -> tuple[list[str], list[str]]:
    """The names of what failed in any round, and of what failed as was expected."""
    set_options(root, baselines=str(GATES / "baselines"))
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
    good = [name for name in NAMES if not any(expected(name).values())]
    assert {"converged_1x1", "converged_1x2", "mangled_log", "clock_skew", "at_its_power_limit"} <= set(good)
    assert len(NAMES) - len(good) >= 20


def test_the_replays_are_what_their_maker_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REPLAYS / "make.py"), str(tmp_path)], check=True, timeout=60)
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(REPLAYS) for path in REPLAYS.glob("*/**/*") if path.is_file()}
    kept = {path for path in kept if path.parts[0] != "__pycache__"}
    assert kept == names
    assert [name for name in names if (tmp_path / name).read_bytes() != (REPLAYS / name).read_bytes()] == []
