"""A checkpoint of PyTorch is read at any number of ranks, in any layout."""

import json
from pathlib import Path

import pytest

from tests.driver.frameworks.ranks import HERE, RankResults, distance, run_ranks, wait

pytestmark = pytest.mark.slow


def run(program: str, python: str, repo: Path, folder: Path) -> None:
    argv = [python, str(Path(__file__).with_name(program)), str(folder)]
    ranks = run_ranks(argv, repo, folder, 1, PYTHONPATH=f"{repo}:{HERE}")
    (output,) = wait(ranks)
    assert ranks[0].returncode == 0, output


@pytest.fixture(scope="module")
def folder(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reshaped")
    run("reshaped.py", torch_python, repo, folder)
    return folder


def test_other_ranks_continue_a_training_to_the_same_end(folder: Path) -> None:
    two, four, one = (RankResults(json.loads((folder / f"{ranks}.json").read_text())) for ranks in (2, 4, 1))
    whole = two["toy"]
    assert (two["stopped"].error or "").startswith("Stopped")
    for second in (four["toy"], one["toy"]):
        assert (second.finished["resumed"]["step"], second.finished["resumed"]["ranks"]) == (5, 2)
        assert second.losses.keys() == {*range(6, 21)}, "into the second epoch"
        assert second.losses == pytest.approx({step: whole.losses[step] for step in second.losses}, rel=1e-4)
        assert distance(second.weights, whole.weights) < 1e-5
        for name in ("samples", "steps", "epochs", "final_metrics"):
            assert second.finished[name] == pytest.approx(whole.finished[name], rel=1e-4), name
    assert len(set(four.value("draws"))) == 4, "each rank has other random numbers"
    assert abs(whole.losses[5] - whole.losses[20]) > 1e-2, "the control: the training changes the loss"


def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_one(folder: Path) -> None:
    two, four, one = (json.loads((folder / f"{ranks}.json").read_text()) for ranks in (2, 4, 1))
    assert two["trained"] == two["own"] == two["replicate"] == four["shard"] == four["shard x tensor"]
    assert one["two"] == one["four"] == {**two["trained"], "shared": True}
    assert one["two"] != one["untrained"], "the control"
    assert two["draws"][0] == two["draws"][1], "a state before the first step has the random states that were read"
    assert two["unshared"].endswith("of another rank not found; checkpoint_dir must be shared by all hosts")
    assert one["refused"].endswith("posix.mkdir, which no checkpoint contains")
    assert not (folder / "called").exists()
    once = {name: values for name, values in two["trained"]["model"].items() if name != "head.weight"}
    assert one["weights"] == once, "a shared weight is stored once"
