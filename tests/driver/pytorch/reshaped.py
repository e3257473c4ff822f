"""Write and read checkpoints in several layouts: reshaped.py FOLDER.

Two ranks train shards and write the checkpoint ``two``, four ranks read it and write ``four``, and one rank reads both.
Two ranks also train the toy, whole and again until both read their eighth batch. Four ranks continue from a copy of its
checkpoint with smaller batches, and one with four batches for each step.
Rank 0 writes the whole states of all these trainings, and the toy's results, to ``RANKS.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from flagperf_driver.driver import Config
from flagperf_driver.pytorch import distributed, storage
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.parts import Parts
from flagperf_driver.pytorch.states import TorchStates, model_weights
from flagperf_driver.training.checkpoint import CheckpointError
from tests.driver.frameworks.forks import run_forks

FOLDER = Path(sys.argv[1])
RANK, RANKS = 0, 1  # of this process; ``run`` sets them
HOW: dict[str, Any] = {"parallel": "fsdp", "blocks": 2, "log_freq": 1, "max_steps": 20, "lr_schedule": "cosine"}
OF_RANKS: dict[int, dict[str, Any]] = {
    2: {"train_batch_size": 12},
    4: {"train_batch_size": 6},
    1: {"train_batch_size": 6, "gradient_accumulation_steps": 4},
}


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)  # seven rows: no number of ranks divides them
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        scores: torch.Tensor = self.head(hidden + self.down(torch.relu(self.up(hidden))))
        return scores


class Toy:
    def __init__(self, layout: str, seed: int = 2) -> None:
        torch.manual_seed(seed)
        self.model = parallel(Model(), layout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        parts = Parts(self.model, self.optimizer, self.scheduler, None, (), ())
        ctx = PyTorchContext(config=Config({}), device=torch.device("cpu"), rank=RANK, world_size=RANKS)
        self.states = TorchStates(ctx, parts)

    def train(self) -> Toy:
        for _ in range(3):
            self.model(torch.arange(7)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            distributed.unwrap(self.model).steps.add_(1)
        return self

    def write(self, name: str) -> None:
        """Write the state to a checkpoint, and destroy it between copying and writing."""
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        write = self.states.copy()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        write(folder)

    def read(self, name: str) -> dict[str, Any]:
        self.states.load(FOLDER / name)
        return self.whole()

    def draws(self) -> list[Any]:
        """Return a random number of each rank after the checkpoint that was read."""
        self.states.continue_random()
        drawn: list[Any] = [None] * RANKS
        dist.all_gather_object(drawn, float(torch.rand(1)))
        return drawn

    def whole(self) -> dict[str, Any]:
        """Return the state with all shards."""
        moments = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        return {
            "rate": self.optimizer.param_groups[0]["lr"],
            "model": {name: values(tensor) for name, tensor in distributed.unwrap(self.model).state_dict().items()},
            "moments": [{name: values(tensor) for name, tensor in sorted(state.items())} for state in moments],
            "shared": self.model.head.weight is self.model.embedding.weight if RANKS == 1 else None,
        }


def parallel(model: Model, layout: str) -> nn.Module:
    if layout == "plain":
        return model
    if layout == "replicate":
        return distributed.replicate(model)
    if layout == "shard":
        return fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    mesh = init_device_mesh("cpu", (RANKS // 2, 2), mesh_dim_names=("shard", "tensor"))
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["shard"])


def values(tensor: Any) -> list[Any]:
    whole: list[Any] = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()
    return whole


def results() -> dict[str, Any]:
    if RANKS == 2:
        two = Toy("shard", seed=1).train()
        trained = two.whole()
        two.write("two")
        found = {"trained": trained, "own": two.read("two"), "replicate": Toy("replicate").read("two")}
        torch.rand(1)
        two.write("before the first step")
        draws = [two.read(name) and two.draws() for name in ("two", "before the first step")]
        return {**found, "draws": draws, "unshared": unshared(two)}
    if RANKS == 4:
        four = Toy("shard x tensor")
        found = {"shard": Toy("shard").read("two"), "shard x tensor": four.read("two")}
        four.write("four")
        return {**found, "draws": four.draws()}
    return {
        "untrained": Toy("plain").train().whole(),
        "two": Toy("plain").read("two"),
        "four": Toy("plain").read("four"),
        "weights": {name: values(tensor) for name, tensor in model_weights(FOLDER / "two").items()},
        "refused": refused(),
    }


def trainings() -> dict[str, Any]:
    """Train the toy, or continue its training on other ranks."""
    os.environ.update(LOCAL_RANK=str(RANK), LOCAL_WORLD_SIZE=str(RANKS))
    sys.argv[1:] = ["pytorch"]
    train = importlib.import_module("scenarios").Scenarios(None).train
    how = {**HOW, **OF_RANKS[RANKS]}
    saving = {**how, "checkpoint_dir": str(FOLDER / f"toy{RANKS}"), "checkpoint_steps": 5}
    if RANKS == 2:
        return {"toy": train(**how), "stopped": train(**saving, stop_at=[RANK, 8])}
    return {"toy": train(**saving)}


def unshared(toy: Toy) -> str:
    """Return the error of a checkpoint of which each rank writes its part to a folder of its own."""
    try:
        toy.write(f"of rank {RANK}")
    except CheckpointError as error:
        return str(error)
    return ""


def refused() -> str:
    """Return the error of a checkpoint whose table calls a function."""

    class Call:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(FOLDER / "called"),)

    folder = FOLDER / "hostile"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Call()))
    try:
        storage.stored(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def run(rank: int) -> None:
    global RANK, RANKS
    RANK, RANKS = rank, int(os.environ["WORLD_SIZE"])
    with distributed.process_group("gloo", torch.device("cpu"), RANKS, 120):
        found = {**results(), **trainings()}
        if RANK == 0:
            (FOLDER / f"{RANKS}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for ranks in OF_RANKS:
        if ranks != 2:
            shutil.copytree(FOLDER / "toy2", FOLDER / f"toy{ranks}")
        run_forks(run, ranks)
