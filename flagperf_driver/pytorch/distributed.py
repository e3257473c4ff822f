"""Many ranks: joining them, what they agree on, and the model's wrappers."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import sys
from typing import Any, Iterator, Sequence

import torch
from torch import distributed as dist
from torch import nn

from flagperf_driver.pytorch import device as devices


@contextlib.contextmanager
def joined(backend: str, device: torch.device, world_size: int, timeout_s: float) -> Iterator[None]:
    """All ranks of the training, by env://. Nothing is joined, and nothing left, where there is one.

    A rank that raises leaves the group behind: it ends, and the group with it.
    """
    if world_size == 1:
        yield
        return
    check(backend)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, timeout=timeout, **_bound(backend, device))
    yield
    # Nobody tears down the group that another still uses. A barrier would choose its device itself.
    total([0.0], device)
    dist.destroy_process_group()


def check(backend: str) -> None:
    """Whether torch has it; it may name one for each type of device: ``cpu:gloo,acme:accl``."""
    names = [part.rpartition(":")[2].lower() for part in backend.split(",")]
    there: list[str] = getattr(dist.Backend, "backend_list", names)  # torch 2.0
    missing = [name for name in names if name not in there]
    if missing:
        told = ", ".join(name for name in there if name != "undefined")
        raise devices.DeviceError(
            f"backend {missing[0]!r}: torch {torch.__version__} in {sys.executable} has none of that name; name the "
            f"module that registers it (modules in vendor.toml); there is: {told}"
        )


def _bound(backend: str, device: torch.device) -> dict[str, Any]:
    """NCCL connects at once when it is told the device; of other backends nobody promises that they take one."""
    takes = "device_id" in inspect.signature(dist.init_process_group).parameters  # torch 2.3
    return {"device_id": device} if takes and backend == "nccl" and not devices.is_host(device) else {}


def _alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1


def total(values: Sequence[float], device: torch.device) -> list[float]:
    """The sums over all ranks, in float64; the device's work before it is waited for."""
    return _over_ranks(values, device, torch.sum)


def least(values: Sequence[float], device: torch.device) -> list[float]:
    """The smallest over all ranks."""
    return _over_ranks(values, device, torch.amin)


def most(values: Sequence[float], device: torch.device) -> list[float]:
    """The largest over all ranks."""
    return _over_ranks(values, device, torch.amax)


def _over_ranks(values: Sequence[float], device: torch.device, operation: Any) -> list[float]:
    if _alone():
        return list(values)
    # As bytes: neither every device nor every backend has float64.
    mine = torch.tensor(values, dtype=torch.float64).view(torch.uint8).to(device)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    whole = torch.stack(everybody).cpu().view(torch.float64)
    result: list[float] = operation(whole, dim=0).tolist()
    return result


def gather(value: Any) -> list[Any]:
    """Every rank's value, in the order of the ranks."""
    if _alone():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


# -- the model ---------------------------------------------------------------------------------------------


def parallelize(model: nn.Module, parallel: str, device: torch.device, world_size: int) -> nn.Module:
    """The model for ``world_size`` ranks: itself for one, else as ``parallel`` says."""
    if parallel not in ("ddp", "fsdp"):
        raise ValueError(f"parallel={parallel!r}: there is ddp and fsdp")
    if world_size == 1:
        return model
    return replicate(model) if parallel == "ddp" else shard(model, device, world_size)


def replicate(model: nn.Module, *, static_graph: bool = False, unused_parameters: bool = False) -> nn.Module:
    """DDP. ``static_graph`` is for models whose every step takes the same way through the same parameters."""
    from torch.nn.parallel import DistributedDataParallel

    # Buffers are averaged at evaluations, not sent at every forward pass; torch is renaming that option.
    options = inspect.signature(DistributedDataParallel.__init__).parameters
    no_sync = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
    # Without device_ids no input is looked through for tensors to move.
    return DistributedDataParallel(
        model,
        **{no_sync: False},
        gradient_as_bucket_view=True,
        static_graph=static_graph,
        find_unused_parameters=unused_parameters,
    )


def shard(model: nn.Module, device: torch.device, world_size: int) -> nn.Module:
    """FSDP: the layers of every ModuleList one by one, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    # From the inside out: a shard takes the parameters that no shard within it has taken.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The suite's own module; sharding changes it in place, so that there is nothing to take off."""
    inner = getattr(model, "module", None)
    return inner if isinstance(inner, nn.Module) and hasattr(model, "no_sync") else model


@contextlib.contextmanager
def unsynchronized(model: nn.Module) -> Iterator[None]:
    """A micro-step whose gradients only add up here."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Every shard gathered, so that ranks may run forward passes of different number."""
    shards = [module for module in model.modules() if hasattr(module, "unshard")]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    yield
    for module in shards:
        module.reshard()
        module.set_reshard_after_forward(module is not model, recurse=False)


def average_statistics(model: nn.Module) -> None:
    """Give all ranks the mean of their batch norms' running statistics: each has seen its share only."""
    if _alone():
        return
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    buffers = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
    tensors = [buffer for buffer in buffers if buffer is not None]
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(mean.view_as(tensor))
