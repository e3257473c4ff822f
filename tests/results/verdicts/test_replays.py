"""Recorded rounds and runs, good and bad, get exactly the verdicts that are written beside them."""

from pathlib import Path

import pytest

from pytest_flagperf.kinds.training.verdicts import converges, throughput
from pytest_flagperf.results.verdicts import failed
from tests.helpers.results_help import NAMES, REPLAYS, recorded, replay_dir
from tests.replays.make import GOLDEN


@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_verdicts_that_are_written_beside_it(name: str) -> None:
    outcome, expected = recorded(name), REPLAYS[name]
    assert tuple(verdict.name for verdict in failed(converges(outcome))) == expected.unconverged
    assert tuple(verdict.name for verdict in failed(throughput([outcome]))) == expected.unsound
    assert tuple(warning.kind for warning in outcome.validity_warnings) == expected.validity_warnings


@pytest.mark.parametrize("name", ["crashed_rank", "foreign_process"])
def test_the_format_of_a_rounds_files_is_the_committed_one(name: str) -> None:
    """After a wanted change of the format, ``python -m tests.replays.make`` writes the committed files again."""

    def files(root: Path) -> dict[Path, str]:
        return {path.relative_to(root): path.read_text("utf-8") for path in root.rglob("*") if path.is_file()}

    assert files(replay_dir(name)) == files(GOLDEN / name)
