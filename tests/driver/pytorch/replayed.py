"""Train the toy with honest and dishonest steps of a vendor, and repeat a segment of each training: replayed.py FOLDER.

Each training and each replay has processes of its own, as in a round. The toy's data ask for states, and a thread
of the first rank is the agent that gives the order of the data.
"""

from __future__ import annotations

import functools
import io
import json
import os
import select
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import toy_data  # type: ignore[import-not-found]
import toy_pytorch  # type: ignore[import-not-found]
from adaptations import ADAM, CREATE, GOOD, GROUPS, HALF, LOSS, PLAIN, RETURN, TOY, folder  # type: ignore[import-not-found]
from forks import run_forks  # type: ignore[import-not-found]

from flagperf_driver import driver, layout, perflog
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.node.agent import epoch_orders
from flagperf_driver.node.folder import LogFolder
from flagperf_driver.pytorch import distributed, storage  # noqa: F401 - slow to import, once for all forks
from flagperf_driver.training import saved_states
from flagperf_driver.training.replay import training_of
from flagperf_driver.training.steps import context_fields

STEPS, FIRST, LAST = 40, 10, 30
"""The training's steps, and the first and last step of the segment that is repeated."""
OPTIMIZER = f"{CREATE}    return torch.optim.AdamW({GROUPS}, {ADAM})\n"
HALF_MODEL = f"{TOY}def _half(self, values):\n    return self.last(torch.relu(self.first(values)))\n"
OTHER_ORDER = (
    "    rows = torch.arange(len(batch['labels'])).flip(0)\n"
    "    batch = {name: values[rows] for name, values in batch.items()}\n"
)
PLAYED = f"""import copy, sys
toy, kept = sys.modules["toy_pytorch"].STEPS, []

class Played(torch.optim.AdamW):
    def step(self, closure=None):
        _, weights, state = kept.pop(0)
        self.model.load_state_dict(weights)
        self.load_state_dict(state)

{CREATE}    twin, data = copy.deepcopy(model), toy.create_train_data(ctx)
    trained = torch.optim.AdamW(optimizers.parameter_groups(twin, ctx.config), {ADAM})
    for epoch in range(4):
        data.set_epoch(epoch)
        for batch in data:
            loss = toy.calculate_loss(ctx, twin, batch)
            trained.zero_grad()
            loss.backward()
            trained.step()
            kept.append((loss.detach(), *copy.deepcopy((twin.state_dict(), trained.state_dict()))))
    own = Played({GROUPS}, {ADAM})
    own.model = model
    return own

{LOSS}    return kept[0][0] + 0 * sum(weight.sum() for weight in model.parameters())
"""
"""Trains everything before TRAIN_START, in the order of the epochs' numbers, and plays it back."""
STEPS_OF = {
    "none": "",
    "modules": GOOD["modules"],
    "optimizer": GOOD["optimizer"],
    "another order": LOSS + OTHER_ORDER + RETURN,  # trained without dropout
    # The dishonest ones. No step but the optimizer is replaced: its module changes the model of the whole process.
    "patched model": f"{HALF_MODEL}Classifier.forward = _half\n{OPTIMIZER}",
    "low precision": LOSS
    + "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
    + "        logits = model(batch['values'])\n"
    + "    return nn.functional.cross_entropy(logits.float(), batch['labels'])\n",
    "quarter": LOSS + HALF.replace("// 2", "// 4") + RETURN,
    "first micro-step": "calls = 0\ndef backward(ctx, loss, scaler):\n    global calls\n    calls += 1\n"
    + "    if calls % 2:\n        (loss * 2).backward()\n",
    "rate": f"{CREATE}    return torch.optim.AdamW({GROUPS}, lr=0.5)\n",
    "every second step": "class Sparse(torch.optim.AdamW):\n    calls = 0\n    def step(self, closure=None):\n"
    + "        self.calls += 1\n        if self.calls % 2:\n            for group in self.param_groups:\n"
    + f"                group['lr'] *= 2\n            super().step()\n\n{CREATE}    return Sparse({GROUPS}, {ADAM})\n",
}


def steps(place: Path, flip_on: int | None) -> Any:
    """Return the toy's steps, whose data ask for the states; ``flip_on``: damage a weight on this rank."""

    def create(ctx: Any) -> Any:
        data = toy_pytorch.as_tensors(toy_data.train_data(ctx))
        changed = data._changed

        def read(batch: dict[str, Any]) -> Any:
            if ctx.progress.step + 1 in (FIRST, LAST) and not ctx.rank:
                (place / layout.SAVE_STATE).write_text(json.dumps({"keep": []}))
            if ctx.progress.step + 1 == (FIRST + LAST) // 2 and ctx.rank == flip_on:
                weights = models[0].get_parameter("last.weight").detach()
                weights.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)
            return changed(batch)

        data._changed = read
        return data

    def create_model(ctx: Any) -> Any:
        models.append(toy_pytorch.STEPS.create_model(ctx))
        return models[-1]

    models: list[Any] = []
    return replace(toy_pytorch.STEPS, create_train_data=create, create_model=create_model)


def give_orders(place: Path, log: io.StringIO) -> dict[int, int]:
    """Give the order of each epoch in a thread, as an agent does that reads the log."""
    agent = epoch_orders.EpochOrders(LogFolder(place), 7, lambda: "TRAIN_START" in log.getvalue())

    def serve() -> None:
        while True:
            select.select([agent.pipe], [], [])
            agent.read()
            agent.process()

    threading.Thread(target=serve, daemon=True).start()
    return agent.given


def process(place: Path, replay: dict[str, Any], flip_on: int | None, settings: dict[str, Any], number: int) -> None:
    """Be one rank of a training or of a replay; leave the records of the first rank."""
    torch.set_num_threads(1)
    saved_states.MOST_PAUSES = 1e9
    stream, world = io.StringIO(), driver.World.from_environment(os.environ)
    case = {**toy_data.case("pytorch", **settings), "replay": {"states": str(place / "states"), **replay}}
    rank = driver.Rank(driver.RunCase.from_json(case), world, perflog.PerfLog(number, stream), Heartbeat(None), place)
    given = give_orders(place, stream) if number == 0 and not replay else None
    with distributed.process_group("gloo", torch.device("cpu"), world.world_size, 60):
        ctx = toy_pytorch.Context(**context_fields(rank, Path()))
        trainer = toy_pytorch.Trainer(rank, ctx, steps(place, flip_on), None)
        training_of(rank, trainer).run()
    if number == 0:
        (place / f"log{len(replay)}").write_text(stream.getvalue())
    if given is not None:
        (place / "orders").write_text(json.dumps(given))


def replayed(
    place: Path, ranks: int = 1, text: str = "", flip_on: int | None = None, budget: int = 1, **how: Any
) -> dict[str, Any]:
    """Run a training and its replay; return the result of the replay with the training's losses."""
    place.mkdir()
    settings = {**PLAIN, "norm": ranks == 1, "max_steps": STEPS, "log_freq": 5}
    settings |= {"train_batch_size": 32 // ranks, "eval_steps": 20, **how}
    theirs = {**settings, "extern": folder(text) if text else None}
    run_forks(functools.partial(process, place, {}, flip_on, theirs), ranks)
    found: dict[str, Any] = {"states": sorted(path.name for path in (place / "states").iterdir())}
    segments = {"segments": [[FIRST, LAST], [0, FIRST], [LAST, STEPS]], "budget": budget, "final": STEPS}
    given = {**segments, "orders": json.loads((place / "orders").read_text())}
    run_forks(functools.partial(process, place, given, None, settings), ranks)
    for name in ("log0", "log4"):
        for record in perflog.read_records(io.BytesIO((place / name).read_bytes())):
            if record.event == "REPLAYED":
                found.update(record.value)
            elif record.event == "STEP_END":
                found.setdefault("logged", []).append([record.value["step"], record.value["loss"]])
    return found


def main() -> None:
    place, results = Path(sys.argv[1]), {}
    more: dict[str, dict[str, Any]] = {
        "first micro-step": {"gradient_accumulation_steps": 2, "train_batch_size": 16},
        "another order": {"dropout": 0.0},
    }
    for precision in ("fp32", "bf16"):
        for name, text in STEPS_OF.items():
            key = f"{name} {precision}"
            results[key] = replayed(place / key, text=text, precision=precision, **more.get(name, {}))
    simple: dict[str, Any] = {"norm": False, "dropout": 0.0}
    results["played"] = replayed(place / "played", text=PLAYED, **simple)
    known = SimpleNamespace(derive=lambda *of: (of[2] - 1) << 1)
    with mock.patch("flagperf_driver.node.agent.epoch_orders.seeds", known):
        results["played, known"] = replayed(place / "known", text=PLAYED, **simple)
    results["budget 30"] = replayed(place / "budget", budget=30)
    results["budget 40, twins"] = replayed(place / "twins", budget=40, text=STEPS_OF["another order"], dropout=0.0)
    results["flipped"] = replayed(place / "flipped", flip_on=0)
    for parallel in ("ddp", "fsdp"):
        results[parallel] = replayed(place / parallel, 2, parallel=parallel)
    (place / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
