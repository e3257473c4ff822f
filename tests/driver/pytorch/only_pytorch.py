"""The trainings and the parts that only PyTorch has; scenarios.py runs them in one process per rank."""

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from toy_data import case  # type: ignore[import-not-found]
from toy_pytorch import STEPS  # type: ignore[import-not-found]

from flagperf_driver.driver import Config, World
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, hooks, optimizers, profiler, schedules, sharding, steps, traffic
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.feed import preparation
from flagperf_driver.pytorch.hooks import Hooks

PROFILED = {"throughput_only": True, "timing_warmup_steps": 1, "throughput_steps": 4, "profile_steps": 5}


def config(**settings: Any) -> Config:
    return Config(case("pytorch", **settings)["config"])


def lamb_from_zero() -> float:
    """Return the size of a LAMB step of weights that are 0, which have no norm to scale it."""
    zero = nn.Parameter(torch.zeros(2, 2))
    zero.grad = torch.ones(2, 2)
    optimizers.Lamb([zero], lr=0.1, weight_decay=0.1).step()
    return float(zero.detach().abs().max())


def rates(steps: int, **settings: Any) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedules.create(config(learning_rate=1.0, **settings), optimizer)
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def device_that_fails() -> str:
    def is_available() -> bool:
        warnings.warn("error 304", stacklevel=1)
        return False

    with mock.patch.object(torch, "meta", SimpleNamespace(is_available=is_available), create=True):
        return error_of(lambda: devices.set_device("meta", 0, 1))


def copied_aside() -> list[Any]:
    """Return the calls of the preparation of a batch on a device with streams."""
    calls: list[Any] = []

    def make_stream() -> Any:
        return SimpleNamespace(wait_stream=lambda _: calls.append("wait"))

    @contextlib.contextmanager
    def stream(_stream: Any) -> Iterator[None]:
        calls.append("copy stream")
        yield
        calls.append("default stream")

    device = torch.device("meta")
    ctx = PyTorchContext(config=config(), device=device)
    steps = replace(STEPS, prepare_batch=lambda _, batch: batch)
    streams = SimpleNamespace(Stream=make_stream, stream=stream, current_stream=make_stream)
    with mock.patch.object(torch, "meta", streams, create=True):
        for batch in map(preparation(ctx, steps), [torch.zeros(1), torch.ones(1)][1:]):
            calls.append(float(batch))
    return calls


def switches() -> dict[str, list[Any]]:
    """Return the switches that the vendors' ``device.py`` set for bf16 and for fp32."""
    cpu, vendors, found = torch.device("cpu"), Path(hooks.__file__).parents[2] / "vendors", {}
    npu, mlu, cnnl, mudnn = (mock.Mock() for _ in range(4))
    with (
        mock.patch.object(torch, "npu", npu, create=True),
        mock.patch.multiple(torch.backends, create=True, mlu=mlu, cnnl=cnnl, mudnn=mudnn),
    ):
        for precision in ("bf16", "fp32"):
            for vendor in ("ascend", "cambricon", "mthreads"):
                hooks.load_hooks(vendors / vendor / "device.py").settings(cpu, config(precision=precision))
            found[precision] = [npu.conv.allow_hf32, npu.matmul.allow_hf32]
            found[precision] += [cnnl.allow_tf32, mlu.matmul.allow_tf32, mudnn.allow_tf32]
        assert hooks.load_hooks(vendors / "ascend" / "device.py").grad_scaler(cpu) is npu.amp.GradScaler()
    return found


def error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def faults_of_hooks() -> dict[str, str]:
    """Return the errors of wrong hooks in a vendor's ``device.py``."""
    path, cpu = Path(tempfile.mkdtemp(), "device.py"), torch.device("cpu")

    def hooks_of(text: str) -> Hooks:
        path.write_text(text)
        return hooks.load_hooks(path)

    acme: Any = SimpleNamespace(modules=(), device="acme", device_module=path)
    path.write_text("def set_device(*_): return 'acme:0'\n")
    return {
        "no_device": error_of(lambda: hooks.set_up_device(acme, World())),
        "none": error_of(lambda: hooks_of("def events(device): pass\n").events(cpu)),
        "raises": error_of(lambda: hooks_of("def memory(device): raise OSError('no such counter')\n").memory(cpu)),
        "not_imported": error_of(lambda: hooks_of("import acme_missing\ndef memory(device): pass\n")),
    }


def compile_mode(**settings: Any) -> Any:
    """Return the mode that the default compile_model passes to torch.compile."""
    with mock.patch.object(torch, "compile") as compiled:
        steps.compile_model(PyTorchContext(config=config(**settings), device=torch.device("cpu")), nn.Linear(1, 1))
    return [call.kwargs["mode"] for call in compiled.call_args_list]


def recorded_kernels(*, named: bool) -> list[Any]:
    """Return what is recorded of a device's events, with or without a kind in each event."""

    class Event(SimpleNamespace):
        def __init__(self, kind: str, name: str, begin: int, duration: int, size: int = 0) -> None:
            on_host = kind.endswith("runtime")
            values = {"name": name, "start_ns": begin, "duration_ns": duration, "nbytes": size}
            values["device_type"] = torch.autograd.DeviceType.CPU if on_host else torch.autograd.DeviceType.CUDA
            values.update({"activity_type": kind} if named else {})
            super().__init__(**{key: partial(lambda value: value, value) for key, value in values.items()})

    recording = profiler._kernels(
        [
            Event("cuda_runtime", "cudaLaunchKernel", 10, 5),
            Event("kernel", "nvjet_tst_128x256", 20, 100),
            Event("cuda_runtime", "cudaStreamSynchronize", 25, 95),
            Event("cuda_runtime", "cudaEventRecord", 125, 1),
            Event("cuda_driver" if named else "cuda_runtime", "cuLaunchKernelEx", 130, 5),
            Event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 140, 10, 4096),
            Event("cuda_runtime", "cudaDeviceSynchronize", 150, 50),
        ]
    )
    return [[tuple(activity)[:5] for activity in recording.activities], recording.launches, recording.waits]


class OnMeta(nn.Module):  # type: ignore[misc]
    """A model without memory for its weight, but with a buffer."""

    def __init__(self, buffers: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, device="meta"))
        self.register_buffer("angles", torch.arange(4.0, device=buffers))

    def initial(self, name: str) -> float | None:
        return None

    def tie(self) -> None:
        pass


def placed(buffers: str) -> list[list[float]]:
    """Return the values of a parameter and a buffer after the model got memory."""
    model = OnMeta(buffers)
    sharding.materialize(PyTorchContext(config=config()), model)
    return [model.weight.tolist(), model.angles.tolist()]


def moved_model() -> str:
    model = nn.Linear(2, 2)
    sharding.materialize(PyTorchContext(config=config(), device=torch.device("meta")), model)
    return str(model.weight.device)


def units() -> dict[str, Any]:
    nested = {"a": torch.zeros(2), "b": [torch.ones(1), (torch.ones(1), "text", 3)]}
    moved = devices.to_device(nested, torch.device("meta"))
    return {
        "copied_aside": copied_aside(),
        "recorded_kernels": [recorded_kernels(named=named) for named in (True, False)],
        "lamb_from_zero": lamb_from_zero(),
        "step_bytes": step_bytes(),
        "linear": rates(8, lr_schedule="linear", lr_warmup=2, max_steps=6),
        "compile_mode": [compile_mode(), compile_mode(compile_mode="max-autotune")],
        "switches": switches(),
        "failing_device": device_that_fails(),
        "no_device": error_of(lambda: devices.set_device("acme", 0, 1)),
        "no_module": error_of(lambda: hooks.import_modules(["json", "torch_acme"], "acme")),
        "no_backend": error_of(lambda: distributed.check_backend("cpu:gloo,acme:accl")),
        "no_events": error_of(lambda: Hooks().events(torch.device("meta"))),
        "no_scaler": error_of(lambda: Hooks().grad_scaler(torch.device("cuda"))),
        "no_lower": error_of(lambda: Hooks().autocast(torch.device("cuda"), torch.float16)),
        "placed": placed("cpu"),
        **{f"hook_{name}": error for name, error in faults_of_hooks().items()},
        "no_buffer": error_of(lambda: placed("meta")),
        "moved_model": moved_model(),
        "moved": [str(tensor.device) for tensor in devices.tensors(moved)] + [moved["b"][1][1:]],
    }


def sharded(scenarios: Any) -> dict[str, Any]:
    """Train with FSDP and, as its control, with DDP."""
    how = {"train_batch_size": 16, "blocks": 2, "max_grad_norm": 1.0, "weight_decay": 0.01}
    fsdp, train = {**how, "parallel": "fsdp"}, scenarios.train
    whole = replace(STEPS, model_to_ddp=lambda ctx, model: model)
    return {
        "ddp": train(**how),
        "fsdp": train(**fsdp, eval_shares="one"),
        "fsdp_accumulated": train(**{**fsdp, "gradient_accumulation_steps": 2, "train_batch_size": 8}),
        "fsdp_resumed": scenarios.resumed(parallel="fsdp", blocks=2, norm=False),
        "flipped": {
            f"{parallel} {rank}": flipped(scenarios, rank, **{**how, "parallel": parallel})
            for parallel, rank in (("fsdp", 1), ("fsdp", None), ("ddp", 1))
        },
        "ddp_lamb": train(**how, optimizer="lamb"),
        "fsdp_lamb": train(**fsdp, optimizer="lamb"),
        "tensor": train(whole, **{**how, "train_batch_size": 32}, parallel={"tensor": 2}),
        "no_tensor": train(**how, parallel={"tensor": 2}),
    }


def flipped(scenarios: Any, of_rank: int | None, **how: Any) -> str | None:
    """Return the error of a training in which a bit of one rank's weights flips before the sixth step's forward."""

    def calculate_loss(ctx: PyTorchContext, model: Any, batch: Any) -> Any:
        if ctx.progress.step == 5 and ctx.rank == of_rank:
            weight = next(weight for name, weight in model.named_parameters() if name.endswith("first.bias")).detach()
            own = weight.to_local() if hasattr(weight, "to_local") else weight
            own.view(torch.int32)[3] ^= 1 << 5
        return STEPS.calculate_loss(ctx, model, batch)

    changed = replace(STEPS, calculate_loss=calculate_loss)
    error: str | None = scenarios.train(changed, replica_check_steps=4, max_steps=12, **how)["error"]
    return error


def synchronizations(scenarios: Any) -> int:
    """Return the number of micro-steps without a synchronization in two steps of four micro-steps."""
    with_ddp = nn.parallel.DistributedDataParallel
    with mock.patch.object(with_ddp, "no_sync", autospec=True, side_effect=with_ddp.no_sync) as without:
        scenarios.train(train_batch_size=4, gradient_accumulation_steps=4, max_steps=2)
    return without.call_count


def exchanged(scenarios: Any, **settings: Any) -> dict[str, Any]:
    """Train with FSDP; return the result, and the bytes of parameters and of gradients that ranks exchanged."""
    names, counts = ("all_gather_single", "reduce_scatter_single"), [0, 0]

    def counting(place: int, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            tensors = (value for value in (*args, *options.values()) if isinstance(value, torch.Tensor))
            counts[place] += max(tensor.nbytes for tensor in tensors)
            return real(*args, **options)

        return call

    counted: dict[str, Any] = {name: counting(place, getattr(dist, name)) for place, name in enumerate(names)}
    with mock.patch.multiple(dist, **counted):
        return {"trained": scenarios.train(parallel="fsdp", **settings), "bytes": counts}


def bucket_mib(compiled: bool) -> int:
    ctx = PyTorchContext(config=config(compile=compiled, parallel="ddp"), world_size=2)
    wrapped: Any = sharding.parallelize(ctx, nn.Linear(1, 1))
    return int(wrapped.bucket_bytes_cap) // 2**20


def step_bytes() -> dict[str, Any]:
    """Return the bytes of a step of two layers, 16 -> 64 -> 10, with 32 samples, and of a table of 1,000 rows.

    The second step computes the activation again in its backward pass.
    """
    layers = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    # A batch is a part of all values, which are not kept.
    values, labels = torch.randn(320, 16)[32:64], torch.randint(0, 10, (32,))

    def counted_by(least: traffic.LeastTraffic, *, again: bool) -> int:
        optimizer.zero_grad(set_to_none=True)
        with least.observing():
            hidden = checkpoint(nn.Sequential(*layers[:2]), values, use_reentrant=False) if again else model[:2](values)
            loss = nn.functional.cross_entropy(model[2](hidden), labels)
        least.end_forward()
        loss.backward()
        optimizer.step()
        return least.bytes

    found = [counted_by(traffic.LeastTraffic(model, optimizer), again=again) for again in (False, True)]
    table, rows = nn.Embedding(1000, 8), torch.arange(6)
    weights, other, expanded = torch.zeros(100), torch.zeros(100), torch.zeros(1, 1).expand(10, 10)
    counted = []
    for operation in (
        lambda: torch.add(weights, other),
        lambda: weights.add_(other),
        lambda: weights.copy_(other),
        lambda: torch.add(weights, other, out=other),
        lambda: weights.view(10, 10).t(),
        lambda: expanded + 1,
        lambda: table(rows),
        lambda: torch._foreach_mul_([weights, other], 2.0),
    ):
        with torch.no_grad(), traffic.Traffic() as moved:
            operation()  # type: ignore[no-untyped-call]
        counted.append(moved.bytes)
    return {"least": found, "gradients": traffic.LeastTraffic(model, optimizer).gradients, "operations": counted}


def results(scenarios: Any) -> dict[str, Any]:
    if scenarios.meeting.world.world_size == 1:
        return {
            "units": units(),
            "compiled": scenarios.train(compile=True, compile_with="eager", **PROFILED),
        }
    how = {"train_batch_size": 16, "blocks": 2}
    return {
        **sharded(scenarios),
        "profiled": scenarios.train(**PROFILED, train_batch_size=16),
        "profiled_fsdp": scenarios.train(**PROFILED, train_batch_size=16, blocks=2, parallel="fsdp"),
        "no_syncs": synchronizations(scenarios),
        "bucket_mib": [bucket_mib(compiled) for compiled in (False, True)],
        "ddp_bf16": scenarios.train(**how, precision="bf16"),
        "exchanged": {
            "fp32": exchanged(scenarios, **how),
            "bf16": exchanged(scenarios, **how, precision="bf16"),
            "fp32_norm": exchanged(scenarios, **how, norm=True),
            "bf16_norm": exchanged(scenarios, **how, norm=True, precision="bf16"),
        },
    }
