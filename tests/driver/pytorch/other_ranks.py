"""Continue a training on other numbers of ranks: other_ranks.py FOLDER.

Four ranks train whole, and again until all read their eighth batch. Three ranks continue from a copy of the checkpoint
with larger batches, and two with two batches for each step. Every rank writes its results to ``RANKS-RANK.json``.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from flagperf_driver.pytorch import distributed, states
from tests.driver.frameworks.forks import run_forks

sys.path.append(str(Path(__file__).parents[1] / "frameworks"))
toy: Any = importlib.import_module("toy_pytorch")
FOLDER = Path(sys.argv[1])
HOW: dict[str, Any] = {"parallel": "fsdp", "blocks": 2, "log_freq": 1, "max_steps": 20, "lr_schedule": "cosine"}
OF_RANKS: dict[int, dict[str, Any]] = {
    4: {"train_batch_size": 6},
    3: {"train_batch_size": 8},
    2: {"train_batch_size": 6, "gradient_accumulation_steps": 2},
}


def run(rank: int) -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    sys.argv[1:] = ["pytorch"]
    scenarios: Any = importlib.import_module("scenarios")
    train = scenarios.Scenarios(None).train
    how = {**HOW, **OF_RANKS[ranks]}
    saving = {**how, "checkpoint_dir": str(FOLDER / str(ranks)), "checkpoint_steps": 5}
    with distributed.process_group("gloo", torch.device("cpu"), ranks, 120):
        if ranks == 4:
            found = {"whole": train(**how), "first": train(**saving, stop_at=[rank, 8])}
        else:
            found = {"second": train(**saving), "draw": draw(rank, ranks)}
        (FOLDER / f"{ranks}-{rank}.json").write_text(json.dumps(found))


def draw(rank: int, ranks: int) -> float:
    """Return a random number after a checkpoint of four ranks; those ranks had the same state."""
    state = states.random_state(torch.device("cpu"))
    ctx = toy.Context(config=None, rank=rank, world_size=ranks)
    parts: Any = None
    of_ranks = states.TorchStates(ctx, parts)
    of_ranks._random = [state] * 4
    of_ranks.continue_random()
    return float(torch.rand(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for ranks in OF_RANKS:
        if ranks != 4:
            shutil.copytree(FOLDER / "4", FOLDER / str(ranks))
        run_forks(run, ranks)
