"""Run many trainings of the toy in one process per rank, because starting torch takes longer than all of them."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import adaptations  # type: ignore[import-not-found]
import torch
from torch import distributed as dist
from torch import nn
from toy import EVAL, Classifier, Toy, eval_data, samples, train  # type: ignore[import-not-found]
from toy_case import config  # type: ignore[import-not-found]

from flagperf_driver import seeds
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, hooks, optimizers, parts, schedules, steps
from flagperf_driver.pytorch.evaluation import evaluate as evaluate_share
from flagperf_driver.pytorch.feed import preparation
from flagperf_driver.pytorch.hooks import Hooks
from flagperf_driver.pytorch.steps import Context
from flagperf_driver.training import timeline
from flagperf_driver.training.evaluation import ModelTime, evaluate
from flagperf_driver.training.timeline import HostMarks

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 32 // WORLD


def shared_folder() -> str:
    """Return a folder that is the same on all ranks."""
    names: list[Any] = [tempfile.mkdtemp() if RANK == 0 else None]
    if WORLD > 1:
        dist.broadcast_object_list(names)
    return str(names[0])


def resumed(**settings: Any) -> dict[str, Any]:
    """Run a whole training, and the same training interrupted at its eighth step and started again."""
    how = {
        "log_freq": 1,
        "dropout": 0.3,
        "lr_schedule": "cosine",
        "max_steps": 14,
        "eval_steps": 4,
        **settings,
    }
    how = {"train_batch_size": BATCH, **how}
    folder = shared_folder()
    whole = train(**how)
    how.update(checkpoint_dir=folder, checkpoint_steps=5)
    first = train(**{**how, "stop_at": [RANK, 8]})
    other = train(**{**how, "train_batch_size": BATCH // 2})
    second = train(**how)
    left = sorted(path.name for path in Path(folder).iterdir())
    late = shared_folder()
    train(**{**how, "stop_at": [RANK, 8], "checkpoint_dir": late})
    train(**{**how, "max_time_s": 0.0, "checkpoint_dir": late})
    kept = sorted(path.name for path in Path(late).iterdir())
    return {"whole": whole, "first": first, "other": other, "second": second, "left": left, "kept": kept}


def evaluated(ctx: Context, model: nn.Module, *, predictions: bool) -> dict[str, float]:
    """Return the metrics over all ranks, from sums or from a prediction for each sample."""

    def predict(_ctx: Context, module: nn.Module, batch: Any) -> list[Any]:
        hits: list[Any] = (module(batch["values"]).argmax(1) == batch["labels"]).tolist()
        return hits

    def summarize(_ctx: Context, items: list[Any]) -> dict[str, float]:
        return {"accuracy": sum(items) / len(items), "count": float(len(items))}

    steps = Toy().steps()
    if predictions:
        steps = replace(steps, evaluate_batch=predict, summarize=summarize)
    trainer: Any = SimpleNamespace(
        evaluate=lambda beat: evaluate_share(ctx, steps, model, eval_data(ctx), HostMarks(), beat),
        summarize=lambda results: steps.summarize(ctx, results),
        gather=distributed.gather,
        total=lambda values: distributed.total(values, ctx.device),
    )
    return evaluate(trainer, RANK, ["accuracy"], lambda: None, ModelTime())


def exact() -> dict[str, Any]:
    """Return the metric of a model by the loop's evaluation and by direct computation."""
    model = Classifier(Config(config(norm=True, dropout=0.5)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    wrapped = distributed.parallelize(model, "ddp", torch.device("cpu"), WORLD)
    metrics_by_shares = {}
    for shares in ("even", "uneven", "one"):
        settings = Config(config(norm=True, dropout=0.5, eval_shares=shares, eval_batch_size=32))
        ctx = Context(config=settings, device=torch.device("cpu"), rank=RANK, world_size=WORLD)
        before = copy.deepcopy(model.state_dict())
        metrics = evaluated(ctx, wrapped, predictions=False)
        assert metrics == evaluated(ctx, wrapped, predictions=True)
        after = model.state_dict()
        untouched = all(bool((before[name] == after[name]).all()) for name in before)
        metrics_by_shares[shares] = {**metrics, "untouched": untouched, "training": model.training}
    values, labels = samples(EVAL, seed=1)
    model.eval()
    with torch.no_grad():
        right = (model(values).argmax(1) == labels).double()
    padded = torch.cat([right[:200].mean()[None], right[200:].mean()[None]]).mean()
    return {"loop": metrics_by_shares, "hand": float(right.mean()), "mean_of_means": float(padded)}


def averaged() -> dict[str, float]:
    """Return the averaged running statistics of ranks with different statistics."""
    norm = nn.BatchNorm1d(4)
    norm.running_mean.fill_(RANK + 1.0)
    distributed.average_statistics(nn.Sequential(norm))
    return {"mean": float(norm.running_mean[0]), "batches": float(norm.num_batches_tracked)}


def draws() -> list[float]:
    """Return a random number by the seed of the weights and one by the seed of the rank."""
    ctx = Context(config=Config(config()), device=torch.device("cpu"))
    parts.seed(ctx, seeds.MODEL)
    weights = float(torch.rand(1))
    parts.seed(ctx, seeds.RANK, RANK)
    return [weights, float(torch.rand(1))]


def lamb() -> dict[str, float]:
    """Return how far our LAMB and AdamW are from a direct implementation of LAMB."""
    shapes = [(8, 4), (4,), (3, 3)]
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    gradients = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(5)]
    how = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6}

    def by(kind: Callable[..., Any]) -> list[Any]:
        weights = [nn.Parameter(value.clone()) for value in start]
        groups = [{"params": [weights[0], weights[2]], "weight_decay": 0.1}]
        groups.append({"params": [weights[1]], "weight_decay": 0.0})
        optimizer = kind(groups, **how)
        for step in gradients:
            for weight, gradient in zip(weights, step, strict=False):
                weight.grad = gradient.clone()
            optimizer.step()
        return [weight.detach() for weight in weights]

    def plain() -> list[Any]:
        ends = []
        for index, value in enumerate(start):
            decay = 0.0 if index == 1 else 0.1
            weight, mean, square = value.double(), torch.zeros(1), torch.zeros(1)
            for number, step in enumerate(gradients, 1):
                gradient = step[index].double()
                mean = 0.9 * mean + 0.1 * gradient
                square = 0.99 * square + 0.01 * gradient**2
                update = (mean / (1 - 0.9**number)) / ((square / (1 - 0.99**number)).sqrt() + 1e-6)
                update = update + decay * weight
                ratio = float(weight.norm() / update.norm()) if decay else 1.0
                weight = weight - 0.02 * ratio * update
            ends.append(weight)
        return ends

    def difference(left: list[Any], right: list[Any]) -> float:
        pairs = zip(left, right, strict=False)
        return max(float((first.double() - second.double()).abs().max()) for first, second in pairs)

    zero = nn.Parameter(torch.zeros(2, 2))
    zero.grad = torch.ones(2, 2)
    optimizers.Lamb([zero], lr=0.1, weight_decay=0.1).step()
    reference = plain()
    return {
        "lamb": difference(by(optimizers.Lamb), reference),
        "adamw": difference(by(torch.optim.AdamW), reference),
        "from_zero": float(zero.detach().abs().max()),
    }


def schedule(steps: int, **settings: Any) -> list[float]:
    """Return the optimizer's learning rate at each step."""
    values = Config(config(learning_rate=1.0, **settings))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedules.create(values, optimizer)
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


@contextlib.contextmanager
def torch_module(device: torch.device, module: Any) -> Iterator[None]:
    """Make ``module`` available as ``torch.<type>``."""
    setattr(torch, device.type, module)
    yield
    delattr(torch, device.type)


class Ticks:
    """Device events whose time the test sets."""

    now, made = 0.0, 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Ticks.made += 1

    def record(self) -> None:
        self.at = Ticks.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Ticks) -> float:
        return (later.at - self.at) * 1e3


def device_clock() -> dict[str, Any]:
    """Two windows of two steps of two micro-steps: each waits 1 s, then takes 4 s forward and 6 s backward.

    100 s pass between the windows.
    """
    device = torch.device("meta")
    with torch_module(device, SimpleNamespace(Event=Ticks)):
        line = timeline.Timeline(Hooks().events(device), warmup_steps=1)
    windows = []
    for _ in range(2):
        line.resume()
        for _ in range(2):
            for _ in range(2):
                Ticks.now += 1
                line.begin()
                Ticks.now += 4
                line.begin_backward()
                Ticks.now += 6
                line.end()
            line.step(3)
        Ticks.now += 1
        line.begin()
        line.drop()
        window = line.close()
        windows.append([window.steps, window.seconds, window.waiting, window.samples])
        Ticks.now += 100
    totals = line.totals
    return {
        "name": line.marks.name,
        "windows": windows,
        "totals": [totals.compute, totals.waiting, totals.measured_compute, totals.measured_samples],
        "forward": totals.measured_forward,
        "step_time": totals.step_time(),
        "events": Ticks.made,
    }


def host_clock() -> float:
    """Time a window by the host's clock: 5 s to submit its step, a pause of 100 s, 3 s until the step is done."""
    host = SimpleNamespace(now=0.0)
    host.perf_counter = lambda: host.now

    class Slow(timeline.HostMarks):
        def seconds(self, marks: Sequence[float]) -> list[float]:
            host.now += 3
            return super().seconds(marks)

    line = timeline.Timeline(Slow(), warmup_steps=0)
    real = vars(timeline)["time"]
    vars(timeline)["time"] = host
    try:
        line.resume()
        line.begin()
        line.begin_backward()
        host.now += 5
        line.end()
        line.step(1)
        host.now += 100
        line.close()
    finally:
        vars(timeline)["time"] = real
    return line.totals.by_host


def copied_aside() -> list[Any]:
    """Return the calls of the preparation of a batch on a device with streams."""
    calls: list[Any] = []

    class Stream:
        def wait_stream(self, _other: Any) -> None:
            calls.append("wait")

    @contextlib.contextmanager
    def stream(_stream: Stream) -> Iterator[None]:
        calls.append("copy stream")
        yield
        calls.append("default stream")

    device = torch.device("meta")
    ctx = Context(config=Config(config()), device=device)
    steps = replace(Toy().steps(), prepare_batch=lambda _, batch: batch)
    with torch_module(device, SimpleNamespace(Stream=Stream, stream=stream, current_stream=Stream)):
        for batch in map(preparation(ctx, steps), [torch.zeros(1), torch.ones(1)][1:]):
            calls.append(float(batch))
    return calls


def switches() -> dict[str, list[Any]]:
    """Return the switches that each vendor's ``device.py`` sets for bf16 and for fp32."""
    vendors = Path(hooks.__file__).parents[2] / "vendors"
    npu, mlu, cnnl, mudnn = (SimpleNamespace(conv=SimpleNamespace(), matmul=SimpleNamespace()) for _ in range(4))
    there = {(torch, "npu"): npu, (torch.backends, "mlu"): mlu, (torch.backends, "cnnl"): cnnl}
    there[torch.backends, "mudnn"] = mudnn
    for (owner, name), value in there.items():
        setattr(owner, name, value)
    switches_by_vendor: dict[str, list[Any]] = {"ascend": [], "cambricon": [], "mthreads": []}
    for precision in ("bf16", "fp32"):
        for vendor in switches_by_vendor:
            theirs = hooks.load_hooks(vendors / vendor / "device.py")
            theirs.settings(torch.device("cpu"), Config(config(precision=precision)))
        switches_by_vendor["ascend"].append([npu.conv.allow_hf32, npu.matmul.allow_hf32])
        switches_by_vendor["cambricon"].append([cnnl.allow_tf32, mlu.matmul.allow_tf32])
        switches_by_vendor["mthreads"].append([mudnn.allow_tf32])
    npu.amp = SimpleNamespace(GradScaler=lambda: "torch_npu's")
    switches_by_vendor["scaler"] = [hooks.load_hooks(vendors / "ascend" / "device.py").grad_scaler(torch.device("cpu"))]
    for owner, name in there:
        delattr(owner, name)
    return switches_by_vendor


def decay_groups(**settings: Any) -> list[tuple[float, list[int]]]:
    """Return the weight decay of each group of two linear layers, and the dimensions of its parameters."""
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    groups = optimizers.parameter_groups(layers, Config(config(**settings)))
    return [(group["weight_decay"], [parameter.ndim for parameter in group["params"]]) for group in groups]


def error_of(action: Callable[[], Any]) -> str:
    """Return the type and the message of the error that ``action`` raises."""
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def compile_mode(**settings: Any) -> Any:
    """Return the mode that the default compile_model passes to torch.compile."""
    passed: list[Any] = []
    usual, torch.compile = torch.compile, lambda call, **options: passed.append(options["mode"]) or call  # type: ignore
    try:
        steps.compile_model(Context(config=Config(config(**settings)), device=torch.device("cpu")), nn.Linear(1, 1))
    finally:
        torch.compile = usual
    return passed


def units() -> dict[str, Any]:
    nested = {"a": torch.zeros(2), "b": [torch.ones(1), (torch.ones(1), "text", 3)]}
    moved = devices.to_device(nested, torch.device("meta"))
    return {
        "device_clock": device_clock(),
        "host_clock": host_clock(),
        "copied_aside": copied_aside(),
        "lamb": lamb(),
        "linear": schedule(8, lr_schedule="linear", lr_warmup=2, max_steps=6),
        "cosine": schedule(6, lr_schedule="cosine", lr_decay=4),
        "step": schedule(6, lr_schedule="step", lr_step=2, lr_gamma=0.5),
        "constant": schedule(4, lr_warmup=3),
        "compile_mode": [compile_mode(), compile_mode(compile_mode="max-autotune")],
        "no_end": error_of(lambda: schedule(1, lr_schedule="linear", max_steps=None)),
        "no_schedule": error_of(lambda: schedule(1, lr_schedule="cosin")),
        "no_optimizer": error_of(lambda: optimizers.create(Config(config(optimizer="lion")), [])),
        "switches": switches(),
        "no_device": error_of(lambda: devices.set_device("acme", 0, 1)),
        "absent_device": error_of(lambda: devices.set_device("cuda", 0, 1)),
        "no_module": error_of(lambda: hooks.import_modules(["json", "torch_acme"], "acme")),
        "no_backend": error_of(lambda: distributed.check_backend("cpu:gloo,acme:accl")),
        "no_events": error_of(lambda: Hooks().events(torch.device("meta"))),
        "no_scaler": error_of(lambda: Hooks().grad_scaler(torch.device("cuda"))),
        "no_lower": error_of(lambda: Hooks().autocast(torch.device("cuda"), torch.float16)),
        "moved": [str(tensor.device) for tensor in devices.tensors(moved)] + [moved["b"][1][1:]],
        "decays": decay_groups(weight_decay=0.1),
        "decay_all": decay_groups(weight_decay=0.1, decay_vectors=True),
        "decay_but": decay_groups(weight_decay=0.1, no_decay=["1.weight"]),
        "no_parameter": error_of(lambda: decay_groups(weight_decay=0.1, no_decay=["2.weight"])),
    }


def for_all() -> dict[str, Any]:
    """Return the scenarios of one rank and of two ranks."""
    return {
        "strong": train(train_batch_size=BATCH),
        "accumulated": train(train_batch_size=BATCH // 4, gradient_accumulation_steps=4),
        "exact": exact(),
        "resumed": resumed(),
        "throughput": train(throughput_only=True, throughput_steps=20, target=0.0, eval_steps=3),
        "epochs": train(max_epochs=2, max_steps=None, eval_steps=None),
        "max_samples": train(max_samples=5 * 32 * WORLD, max_steps=None),
        "parity": train(max_samples=5 * 32 * WORLD, parity_samples=4 * 32 * WORLD, max_steps=None),
        "deadline": train(max_time_s=0.0, max_steps=None),
        "nan": train(nan_at=[WORLD - 1, 4], max_steps=7, log_freq=100, eval_steps=None),
    }


def for_one() -> dict[str, Any]:
    return {
        "units": units(),
        "target": train(target=0.5),
        "synthetic": train(target=0.5, synthetic=True),
        "lower": train(target=0.0, max_steps=2),
        "dropout and norm": train(norm=True, dropout=0.5),
        "skipping": resumed(skips=True),
        "lr0": train(learning_rate=0),
        "untrained": train(learning_rate=0, max_steps=1),
        "clipped": train(optimizer="sgd", learning_rate=1.0, max_grad_norm=1e-3, max_steps=1, eval_steps=None),
        "unclipped": train(optimizer="sgd", learning_rate=1.0, max_steps=1, eval_steps=None),
        "bf16": train(precision="bf16", max_steps=2),
        "fp16": train(precision="fp16", max_steps=2, max_grad_norm=1.0),
        "fp32": train(max_steps=2),
        "compiled": train(compile=True, compile_with="eager"),
        "no_data": train(no_data=True),
        "adapted": adaptations.for_one(),
        "late": train(eval_start_steps=10, eval_at_start=False),
        "seed7": train(seed=7),
        "lamb": train(optimizer="lamb", weight_decay=0.01),
        "nowhere": train(checkpoint_steps=5),
        "rare": train(log_freq=10**9, eval_steps=None, max_steps=9),
    }


def for_two() -> dict[str, Any]:
    syncs: list[int] = []
    with_ddp = nn.parallel.DistributedDataParallel
    real = with_ddp.no_sync

    def counted(model: nn.Module) -> Any:
        syncs.append(1)
        return real(model)

    with_ddp.no_sync = counted
    how = {"train_batch_size": BATCH, "blocks": 2, "max_grad_norm": 1.0, "weight_decay": 0.01}
    results = {
        "counted": train(train_batch_size=4, gradient_accumulation_steps=4, max_steps=2),
        "no_syncs": len(syncs),
        "averaged": averaged(),
        "short": train(short_rank=1, max_epochs=1, max_steps=None),
        "draws": draws(),
        "ddp": train(**how),
        "fsdp": train(parallel="fsdp", eval_shares="one", **how),
        "fsdp_accumulated": train(
            parallel="fsdp", gradient_accumulation_steps=2, **{**how, "train_batch_size": BATCH // 2}
        ),
        "fsdp_resumed": resumed(parallel="fsdp", blocks=2),
        "fsdp_lamb": train(parallel="fsdp", optimizer="lamb", **how),
        "ddp_lamb": train(optimizer="lamb", **how),
        "adapted": adaptations.for_two(**how),
    }
    with_ddp.no_sync = real
    return results


def main() -> None:
    torch.set_num_threads(1)
    with distributed.process_group("gloo", torch.device("cpu"), WORLD, 60):
        results = {**for_all(), **(for_one() if WORLD == 1 else for_two())}
    Path(sys.argv[1], f"rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
