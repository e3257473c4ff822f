"""What a step costs through our loop over the same training written out by hand.

    PYTHONPATH=. OMP_NUM_THREADS=1 TORCH_PYTHON benchmarks/loop_overhead.py [--steps N] [--repeats N]

Both train the same model on the same batches with the same optimizer, in one process, turn and turn about: what
disturbs the machine disturbs both. The small model shows the microseconds, the larger one the percentage.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flagperf_driver import defaults, driver, perflog
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.pytorch.loop import Training
from flagperf_driver.pytorch.parts import context

CPU = torch.device("cpu")
Batches = list[tuple[Tensor, Tensor]]
MODELS = {"small": (64, 2, 8), "larger": (384, 3, 64)}
"""By name: width, layers, batch size."""


def make_model(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def make_batches(width: int, size: int, count: int) -> Batches:
    torch.manual_seed(1)
    return [(torch.randn(size, width), torch.randint(10, (size,))) for _ in range(count)]


Taken = tuple[float, float]
"""Seconds by the clock, and of the processor: the second does not count what others do meanwhile."""


def timed(action: Callable[[], None]) -> Taken:
    clock, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - clock, time.process_time() - processor


def by_hand(model: nn.Module, batches: Batches) -> Taken:
    """The bare loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    model.train()

    def train() -> None:
        for values, labels in batches:
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return timed(train)


def by_loop(model: nn.Module, batches: Batches, folder: Path) -> Taken:
    """The same through the loop, its log lines and its end included."""
    values = {key: value for key, value in vars(defaults).items() if key[0] != "_" and key[0].islower()}
    values.update(max_steps=len(batches), eval_at_start=False, log_freq=50, train_batch_size=len(batches[0][1]))
    metric = {"name": "none", "direction": "higher", "unit": "", "target": 1.0}
    body = {
        "schema": 1, "case": "toy:pytorch:CPU:1:1:1", "model": "toy", "framework": "pytorch", "vendor": "cpu",
        "hardware": "CPU", "nnodes": 1, "nproc": 1, "round": 1, "seed": 1, "scale": "small", "synthetic": False,
        "throughput_only": False, "metric": metric, "sample_unit": "samples", "device": "cpu", "backend": "gloo",
        "torch_plugin": None, "data_dir": None, "extern": None, "config": values,
    }  # fmt: skip
    case = driver.RunCase.from_json(body)
    stream = io.StringIO()
    rank = driver.Rank(case, driver.World(), perflog.PerfLog(0, stream), Heartbeat(folder / "rank0.progress"))
    training = Training(rank, context(rank, CPU, Path()), steps(model, batches))
    taken = timed(training.run)
    records = perflog.read(io.BytesIO(stream.getvalue().encode()))
    assert any(record.event == "FINISHED" for record in records)
    return taken


def steps(model: nn.Module, batches: Batches) -> Steps:
    def loss(_ctx: Context, module: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    return Steps(
        create_model=lambda _: model,
        create_train_data=lambda _: batches,
        create_eval_data=lambda _: [batches[0]],
        calculate_loss=loss,
        evaluate_batch=lambda *_: torch.zeros(1),
        summarize=lambda *_: {"none": 0.0},
        count_samples=lambda _, batch: len(batch[1]),
    )


def measure(name: str, count: int, repeats: int, folder: Path) -> None:
    width, layers, size = MODELS[name]
    batches = make_batches(width, size, count)
    ways: dict[str, Callable[[], Taken]] = {
        "bare": lambda: by_hand(make_model(width, layers), batches),
        "loop": lambda: by_loop(make_model(width, layers), batches, folder),
    }
    for run in ways.values():
        run()
    taken: dict[str, list[Taken]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, run in ways.items():
            taken[way].append(run())
    for index, clock in enumerate(("wall", "cpu")):
        report(f"{name} {clock}", {way: [one[index] / count * 1e6 for one in taken[way]] for way in ways})


def report(name: str, taken: dict[str, list[float]]) -> None:
    for label, of in (("min", min), ("median", statistics.median)):
        bare, loop = of(taken["bare"]), of(taken["loop"])
        over = loop - bare
        print(
            f"{name:11} {label:6} bare {bare:9.1f} us/step   loop {loop:9.1f} us/step   "
            f"over {over:+7.1f} us ({over / bare:+.2%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            measure(name, arguments.steps, arguments.repeats, Path(folder))


if __name__ == "__main__":
    main()
