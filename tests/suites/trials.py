"""Train a suite in this process as a rank does, with the suite's own steps, on any data directory."""

from __future__ import annotations

import gc
import io
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flagperf_driver import events, options
from flagperf_driver.driver import Rank, RunCase, World
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.perflog import PerfLog, read_records
from flagperf_driver.training.loop import Training
from flagperf_driver.training.timeline import Timeline
from tests.suites import trainers

REPO = Path(__file__).resolve().parents[2]
STEPS = 20
DEVICES = {"tensorflow2": "CPU", "mindspore": "CPU"}
"""The names of the CPU in frameworks that do not call it cpu."""


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    losses: list[float]
    metrics: dict[str, float]
    steps: int

    def learnt(self) -> bool:
        """Return whether the loss of the last steps is below that of the first steps."""
        return sum(self.losses[-5:]) < 0.9 * sum(self.losses[:5])


def rank_of(
    suite: Path, data_dir: Path | None, log: io.StringIO, *, synthetic: bool = False, scale: str = "", **settings: Any
) -> Rank:
    """Return a rank at the reference scale or another one, with these config values instead of the suite's."""
    files = ["_base.py", *([f"_{scale}.py"] if scale else [])]
    config = options.values(suite.name, *(suite / "config" / name for name in files))
    unknown = settings.keys() - config.keys()
    assert not unknown, f"{suite}: unknown config keys {unknown}"
    toml = (suite / "suite.toml").read_text(encoding="utf-8")
    name, direction = (re.search(rf'(?m)^{key} = "(\w+)"', toml).group(1) for key in ("name", "direction"))  # type: ignore[union-attr]
    target = math.inf if direction == "higher" else -math.inf  # no training reaches it
    body = {
        "schema": 1, "case": f"{suite.parent.name}:{suite.name}:CPU:1:1:1", "model": suite.parent.name,
        "framework": suite.name, "vendor": "cpu", "hardware": "CPU", "nnodes": 1, "nproc": 1, "round": 1, "token": "",
        "seed": 42, "scale": scale or "reference", "synthetic": synthetic, "throughput_only": False,
        "metric": {"name": name, "direction": direction, "unit": "", "target": target},
        "sample_unit": "samples", "device": DEVICES.get(suite.name, "cpu"), "backend": "", "modules": [],
        "device_module": None, "data_dir": data_dir and str(data_dir), "extern": None, "config": {**config, **settings},
    }  # fmt: skip
    return Rank(RunCase.from_json(body), World(), PerfLog(0, log), Heartbeat(None))


def train(suite: Path, data_dir: Path, **settings: Any) -> Trained:
    """Train some steps with an evaluation in the middle and one at the end."""
    how = {"max_steps": STEPS, "max_epochs": None, "max_samples": None, "eval_steps": STEPS // 2, "log_freq": 1}
    log = io.StringIO()
    rank = rank_of(suite, data_dir, log, **{**how, "eval_at_start": False, "precision": "fp32", **settings})
    try:
        Training(rank, trainers.create(suite, rank, trainers.steps_of(suite))).run()
    finally:
        _end_workers()
    records = list(read_records(io.BytesIO(log.getvalue().encode())))
    losses = [record.value["loss"] for record in records if record.event == events.STEP_END]
    finished = records[-1].value
    return Trained(losses, finished["final_metrics"], finished["steps"])


def _end_workers() -> None:
    """End the workers of PyTorch's loaders: the garbage collector would wait five seconds for each of them.

    A loader is part of a cycle; the collector ends the thread that would tell the workers to end.
    """
    if "torch" in sys.modules:
        loader: Any = sys.modules["torch.utils.data.dataloader"]
        for each in gc.get_objects():
            if type(each) is loader._MultiProcessingDataLoaderIter:
                each._shutdown_workers()


@dataclass(frozen=True)
class TinyData:
    """A suite's reference scale on tiny data, with a smaller model."""

    suite: Path
    scratch: Path
    smaller: dict[str, Any]
    """The config values of the smaller model."""
    write: Callable[[Path], None]
    """Writes the data to a folder."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def folder(self, name: str) -> Path:
        """Return a new folder with the data."""
        path = self.scratch / name
        self.write(path)
        return path

    def train(self, path: Path, **settings: Any) -> Trained:
        """Train some steps on this folder."""
        return train(self.suite, path, **{**self.smaller, **settings})

    def check_learnt(self, path: Path, **settings: Any) -> Trained:
        """Check that a training on this folder learns, and that it does not learn at a learning rate of 0."""
        trained = self.train(path, **settings)
        assert trained.steps == STEPS
        assert trained.learnt(), trained.losses
        assert not self.train(path, **{**settings, "learning_rate": 0.0, "max_steps": STEPS // 2}).learnt()
        return trained

    def damaged(self, change: Callable[[Path], object], *words: str, **settings: Any) -> None:
        """Check that a training on changed data ends with an error that contains the words."""
        path = self.folder(f"damaged{next(self._numbers)}")
        change(path)
        fails(lambda: self.train(path, **settings), *words)


@dataclass(frozen=True)
class Step:
    """The result of one optimizer step."""

    loss: float
    changed: set[str]
    """The names of the parameters that the step changed."""
    unchanged: set[str]


def full_model(suite: Path, **settings: Any) -> Any:
    """Return PyTorch's reference model, without memory for its weights."""
    from tests.suites import flops

    ctx = flops.context(suite, "reference", "meta", **settings)
    with ctx.device:
        return trainers.steps_of(suite).create_model(ctx)


def parameters(suite: Path) -> int:
    """Return the number of parameters of the reference model."""
    if suite.name == "pytorch":
        return sum(value.numel() for value in full_model(suite).parameters())
    trainer = trainers.create(suite, rank_of(suite, None, io.StringIO(), synthetic=True), trainers.steps_of(suite))
    return sum(value.size for value in trainers.weights(trainer).values())


def one_step(suite: Path, frozen: str = "", **settings: Any) -> Step:
    """Train one optimizer step of the reference model with synthetic data; do not train the parameter ``frozen``."""
    rank = rank_of(suite, None, io.StringIO(), synthetic=True, **{"precision": "fp32", **settings})
    steps = trainers.steps_of(suite)

    def create_model(ctx: Any) -> Any:
        model = steps.create_model(ctx)
        if frozen:
            trainers.freeze(suite.name, model, frozen)
        return model

    trainer = trainers.create(suite, rank, replace(steps, create_model=create_model))
    before = trainers.weights(trainer)
    timeline = Timeline(trainer.marks, warmup_steps=0)
    timeline.resume()
    batches = trainer.epoch(0, 0)
    trainer.step(next(batches), batches, timeline)
    unchanged = {name for name, value in trainers.weights(trainer).items() if (value == before[name]).all()}
    return Step(trainer.losses(1)[0], before.keys() - unchanged, unchanged)


def fails(call: Callable[[], object], *words: str) -> None:
    """Check that the call raises an error of this repository, not of a library, with these words in its message."""
    error = _error_of(call)
    assert error is not None, f"no error; expected one with {words}"
    assert _is_ours(type(error)), f"{error!r} is not an error of the suite"
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{error} does not contain {missing}"
    assert "Traceback" not in str(error), error


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _is_ours(kind: type[Exception]) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(REPO)
