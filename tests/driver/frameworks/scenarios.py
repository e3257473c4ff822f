"""Run many trainings of the toy in one process per rank: scenarios.py FRAMEWORK FOLDER."""

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
        how = {"log_freq": 1, "norm": True, "lr_schedule": "cosine", "max_steps": 14, "eval_steps": 4}
        how |= {"train_batch_size": BATCH, "dropout": toy.RESUMED_DROPOUT, **settings}
        folder = self.meeting.gather(tempfile.mkdtemp())[0]
        whole = self.train(**how)
        how |= {"checkpoint_dir": folder, "checkpoint_steps": 5}
        first = self.train(**how, stop_at=[WORLD.rank, 8])
        second = self.train(**how)
        left = sorted(path.name for path in Path(folder).iterdir())
        return {"whole": whole, "first": first, "second": second, "left": left}

    def predicted(self) -> dict[str, Any]:
        """Train and evaluate by a prediction for each sample instead of sums."""

        def predict(ctx: Any, model: Any, batch: Any) -> list[Any]:
            sums = toy.evaluate_batch(ctx, model, batch)
            right, count = (int(value) for value in sums)
            return [1] * right + [0] * (count - right)

        steps = replace(
            toy.STEPS,
            evaluate_batch=predict,
            summarize=lambda ctx, items: {"accuracy": sum(items) / len(items), "count": float(len(items))},
        )
        return self.train(steps, train_batch_size=BATCH)

    def all(self) -> dict[str, Any]:
        return self.of_any_number() | (self.of_several_ranks() if WORLD.world_size > 1 else {})

    def of_any_number(self) -> dict[str, Any]:
        how = {"train_batch_size": BATCH}
        return {
            "strong": self.train(**how),
            "accumulated": self.train(train_batch_size=BATCH // 4, gradient_accumulation_steps=4),
            "accumulated_bf16": self.train(
                train_batch_size=BATCH // 4, gradient_accumulation_steps=4, precision="bf16"
            ),
            "bf16": self.train(precision="bf16", **how),
            "fp16": self.train(precision="fp16", max_grad_norm=1.0, max_steps=2, **how),
            "clipped": self.train(max_grad_norm=1e-2, optimizer="sgd", max_steps=5, weight_decay=0.1, **how),
            **{name: self.train(optimizer=name, weight_decay=0.1, max_steps=5, **how) for name in toy.OPTIMIZERS},
            "decayed": self.train(weight_decay=0.5, decay_vectors=True, no_decay=[toy.FIRST_BIAS], max_steps=5, **how),
            "predicted": self.predicted(),
            "resumed": self.resumed(),
            "skipping": self.resumed(skips=True),
            "lr0": self.train(learning_rate=0.0, norm=True, **how),
        }

    def of_several_ranks(self) -> dict[str, Any]:
        """Run the trainings of which the tests compare the ranks."""
        how = {"train_batch_size": BATCH}
        return {
            "uneven": self.train(eval_shares="uneven", norm=True, dropout=0.5, **how),
            "one": self.train(eval_shares="one", norm=True, dropout=0.5, **how),
            "throughput": self.train(throughput_only=True, throughput_steps=20, eval_steps=3),
            "epochs": self.train(max_epochs=2, max_steps=None, eval_steps=None),
            "short": self.train(short_rank=1, max_epochs=1, max_steps=None),
            "target": self.train(target=0.5, max_steps=40, **how),
            "nan": self.train(nan_at=[WORLD.world_size - 1, 4], max_steps=7, log_freq=100, eval_steps=None),
        }


def main() -> None:
    rank = make_rank(io.StringIO())
    with meet(rank) as meeting:
        toy.join(rank, meeting)
        results = Scenarios(meeting).all()
        meeting.gather(None)
    Path(sys.argv[2], f"rank{WORLD.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some frameworks wait for their own threads
