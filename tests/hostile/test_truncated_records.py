"""Stored records that are empty, truncated, damaged or have wrong types: a resume repeats those rounds only."""

import json
import re
import shutil
from pathlib import Path

import pytest

from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.running import resume
from pytest_flagperf.stored import digests
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import add_case, faster, finish
from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture

GARBAGE = ("\0" * 300, "{}", "[]", '{"schema": 99}', "\x80\x81", "[" * 100_000)
RECORDS = ("outcome.json", "round.json", "plan.json")
HOST = {"name": "localhost", "noderank": 0, "log_dir": "/x", "code_root": "/x", "devices": [0], "clock_offset_s": 0.0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run1"
    case_dir = add_case(run, "converged_1x1", faster(1.0, 1.1, 1.2))
    for path in case_dir.glob("round*/plan.json"):
        edit_json(path, hosts=[HOST])
        edit_json(path.parent / "round.json", missing=[])
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def _rounds(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*/*round*") if path.is_dir())


def _set_aside(run: Path) -> str:
    """Return why the second round runs again."""
    (sentence,) = resume.set_failed_rounds_aside(run)
    assert _rounds(run) == ["failed1-round2", "round1", "round3"]
    assert sentence.startswith("runs again: toy:pytorch:CPU:1:1:3: ")
    return sentence


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_a_round_whose_record_is_garbage_runs_again(run: Path, name: str, text: str) -> None:
    next(run.glob(f"*/round2/{name}")).write_bytes(text.encode("latin-1"))
    _set_aside(run)


def test_a_round_whose_outcome_was_changed_runs_again(run: Path) -> None:
    finish(run)
    file = next(run.glob("*/round2/outcome.json"))
    file.write_text(file.read_text().replace('"state": "finished"', '"state": "finishes"'))
    assert digests.CHANGED in _set_aside(run)


@pytest.mark.parametrize(
    ("missing", "again"),
    [(["outcome.json"], False), (["outcome.json", "round.json"], False), (["round.json"], True), (["plan.json"], True)],
)
def test_a_missing_record(run: Path, missing: list[str], again: bool) -> None:
    """Without an outcome a finished round is measured again, another may still run; others cannot be reported."""
    for name in missing:
        next(run.glob(f"*/round2/{name}")).unlink()
    assert bool(resume.set_failed_rounds_aside(run)) == again
    assert ("round2" in _rounds(run)) != again


def test_a_round_that_failed_and_has_no_outcome_yet_runs_again(run: Path) -> None:
    """The harness was killed between the two files."""
    (file,) = run.glob("*/round2/outcome.json")
    file.unlink()
    fault = {"kind": "crash", "host": "localhost", "rank": 0, "sentence": "rank 0 failed", "last_lines": []}
    edit_json(file.with_name("round.json"), state="failed", fault=fault)
    assert not measure(file.parent).ok
    _set_aside(run)


def test_one_card_is_measured_again_too(run: Path) -> None:
    (case_dir,) = run.glob("toy_*")
    (case_dir / "round3").rename(case_dir / "one_card")
    (case_dir / "one_card" / "outcome.json").write_text("{")
    (sentence,) = resume.set_failed_rounds_aside(run)
    assert "one_card/outcome.json" in sentence
    assert (case_dir / "failed1-one_card").is_dir()


DAMAGE = {"outcome.json": "", "round.json": "\0" * 200, "plan.json": '{"hosts": 3}'}


@pytest.mark.slow
def test_a_resume_with_damaged_records_passes_with_every_round_once(toy: Toy) -> None:
    """Of four rounds one has no damage; each of the others has one damaged record."""
    arguments = ("suites/alpha", "-k", "converges", "--nodes=1x1", "--repeat=4", "--set=step_s=0.001")
    toy.run(*arguments).assert_outcomes(passed=4)
    (run,) = toy.runs
    (case_dir,) = run.glob("alpha_*")
    for number, (name, text) in enumerate(DAMAGE.items(), 2):
        (case_dir / f"round{number}" / name).write_text(text)
    for name in ("verdicts/*", "../results.json", "../left_out.json", "../junit.xml", "round1/case.json"):
        for file in case_dir.glob(name):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    kept = (case_dir / "round1/round.json").stat().st_mtime_ns
    result = toy.run("suites/alpha", "-k", "converges", f"--resume={run}")
    text = result.stdout.str() + result.stderr.str()
    assert not {word for word in ("INTERNALERROR", "Traceback") if word in text}
    result.assert_outcomes(passed=4)
    assert result.ret == 0, text
    assert set(re.findall(r"runs again: .*?/round(\d+)/", text)) == {"2", "3", "4"}
    assert (case_dir / "round1/round.json").stat().st_mtime_ns == kept
    assert _rounds(run) == [*(f"failed1-round{one}" for one in (2, 3, 4)), *(f"round{one}" for one in (1, 2, 3, 4))]
    (case,) = json.loads((run / "results.json").read_text())["cases"]
    assert [outcome["round"] for outcome in case["outcomes"]] == [1, 2, 3, 4]
    assert case["ok"] is True
    assert len(toy.runs) == 1
