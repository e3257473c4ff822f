"""Run many trainings of the toy in one process per rank: scenarios.py FRAMEWORK FOLDER [MODULE].

Without a module it runs the table; else ``results`` of a module of tests/driver/pytorch/.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import toy_data  # type: ignore[import-not-found]
from table import FIRST_BIAS, TABLE, Scenario  # type: ignore[import-not-found]

from flagperf_driver import driver, perflog
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.training.loop import Training
from flagperf_driver.training.meeting import Meeting, meet
from flagperf_driver.training.steps import context_fields

FRAMEWORK = sys.argv[1]
WORLD = driver.World.from_environment(os.environ)
BATCH = 32 // WORLD.world_size
toy: Any = importlib.import_module(f"toy_{FRAMEWORK}")


def make_rank(stream: io.StringIO, **settings: Any) -> driver.Rank:
    run_case = driver.RunCase.from_json(toy_data.case(FRAMEWORK, **settings))
    return driver.Rank(run_case, WORLD, perflog.PerfLog(WORLD.rank, stream), Heartbeat(None))


class Scenarios:
    """Trainings of one rank."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def train(self, steps: Any = toy.STEPS, **settings: Any) -> dict[str, Any]:
        """Run one training; return its events, its error and its final weights."""
        stream = io.StringIO()
        rank = make_rank(stream, **settings)
        error = trainer = None
        try:
            trainer = toy.Trainer(rank, toy.Context(**context_fields(rank, Path())), steps, self.meeting)
            Training(rank, trainer).run()
        except (ArithmeticError, RuntimeError, ValueError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        records = list(perflog.read_records(io.BytesIO(stream.getvalue().encode())))
        return {
            "events": [[record.event, dict(record.value)] for record in records],
            "error": error,
            "weights": toy.weights(trainer) if trainer else None,
            "log": stream.getvalue(),
            "case": {**toy_data.case(FRAMEWORK, **settings), "nproc": WORLD.world_size},
        }

    def resumed(self, **settings: Any) -> dict[str, Any]:
        """Run a whole training, and the same training interrupted at its eighth batch and started again."""
        how: dict[str, Any] = {"log_freq": 1, "norm": True, "lr_schedule": "cosine", "max_steps": 14, "eval_steps": 4}
        how |= {"train_batch_size": BATCH, "dropout": toy.RESUMED_DROPOUT, **settings}
        folder = self.meeting.gather(tempfile.mkdtemp())[0]
        whole = self.train(**how)
        how |= {"checkpoint_dir": folder, "checkpoint_steps": 5}
        first = self.train(**how, stop_at=[WORLD.rank, 8])
        second = self.train(**how)
        left = sorted(path.name for path in Path(folder).iterdir())
        return {"whole": whole, "first": first, "second": second, "left": left}

    def of(self, name: str, scenario: Scenario) -> dict[str, Any]:
        if name == "predicted":
            return self.train(predicting(), train_batch_size=BATCH, **scenario.config)
        size = 32 if scenario.each else BATCH
        how = {**scenario.config, "train_batch_size": size // scenario.parts}
        how["gradient_accumulation_steps"] = scenario.parts
        if FIRST_BIAS in how.get("no_decay", ()):
            how["no_decay"] = [toy.FIRST_BIAS]
        return self.train(**how)

    def results(self) -> dict[str, Any]:
        """Run the table and a training that is interrupted."""
        chosen = {name: it for name, it in TABLE.items() if WORLD.world_size in it.ranks}
        found = {name: self.of(name, scenario) for name, scenario in chosen.items()}
        found["padded"] = self.train(padded(), train_batch_size=BATCH)
        return {**found, "resumed": self.resumed(skips=WORLD.world_size == 1)}


def padded() -> Any:
    """Return steps whose batches have no tokens once they are prepared."""
    prepared: list[Any] = []

    def prepare(ctx: Any, batch: Any) -> Any:
        prepared.append(toy.STEPS.prepare_batch(ctx, batch))
        return prepared[-1]

    def count(ctx: Any, batch: Any) -> tuple[int, int, int]:
        return (0 if any(batch is one for one in prepared) else 3), 4, 6

    return replace(toy.STEPS, prepare_batch=prepare, count_tokens=count)


def predicting() -> Any:
    """Return steps that evaluate by a prediction for each sample instead of sums."""

    def predict(ctx: Any, model: Any, batch: Any) -> list[Any]:
        right, count = (int(value) for value in toy.evaluate_batch(ctx, model, batch))
        return [1] * right + [0] * (count - right)

    return replace(
        toy.STEPS,
        evaluate_batch=predict,
        summarize=lambda ctx, items: {"accuracy": sum(items) / len(items), "count": float(len(items))},
    )


def main() -> None:
    rank = make_rank(io.StringIO())
    with meet(rank) as meeting:
        toy.join(rank, meeting)
        scenarios = Scenarios(meeting)
        sys.path.append(str(Path(__file__).parents[1] / "pytorch"))
        results = importlib.import_module(sys.argv[3]).results(scenarios) if sys.argv[3:] else scenarios.results()
        meeting.gather(None)
    Path(sys.argv[2], f"rank{WORLD.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some frameworks wait for their own threads
