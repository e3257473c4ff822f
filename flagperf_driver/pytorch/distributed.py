"""Several ranks: the process group, values combined over all ranks, and wrappers of the model."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import sys
from typing import TYPE_CHECKING, Any, ContextManager, Iterator, Sequence

import torch
from torch import distributed as dist
from torch import nn

from flagperf_driver.pytorch import device as devices
from flagperf_driver.training.parallel import AXES, Parallel
from flagperf_driver.training.trainer import DeviceError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextlib.contextmanager
def process_group(backend: str, device: torch.device, world_size: int, timeout_s: float) -> Iterator[None]:
    """Join all ranks of the training by env:// for the duration of the block; do nothing for a single rank.

    After an exception the group is not destroyed, because the process ends.
    """
    if world_size == 1:
        yield
        return
    check_backend(backend)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, timeout=timeout, **_device_option(backend, device))
    yield
    # Wait until all ranks are done. A barrier would choose the device by itself.
    total([0.0], device)
    dist.destroy_process_group()


def check_backend(backend: str) -> None:
    """Raise an error if torch has no such backend; ``backend`` may be a list such as ``cpu:gloo,acme:accl``."""
    names = [part.rpartition(":")[2].lower() for part in backend.split(",")]
    available: list[str] = getattr(dist.Backend, "backend_list", names)  # torch 2.0
    missing = [name for name in names if name not in available]
    if missing:
        choices = ", ".join(name for name in available if name != "undefined")
        raise DeviceError(
            f"backend {missing[0]!r} not found in torch {torch.__version__} of {sys.executable}; "
            f"add the module that registers it to modules of [framework.pytorch] in vendor.toml, "
            f"or choose from {choices}"
        )


def _device_option(backend: str, device: torch.device) -> dict[str, Any]:
    """Return the option that lets NCCL connect at once; other backends may not support it."""
    supported = "device_id" in inspect.signature(dist.init_process_group).parameters  # torch 2.3
    return {"device_id": device} if supported and backend == "nccl" and not devices.is_host(device) else {}


def _is_single_rank() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1


def total(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over all ranks in float64; this waits for the device."""
    return _over_ranks(values, device, torch.sum)


def minimum(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the minimum of each value over all ranks."""
    return _over_ranks(values, device, torch.amin)


def maximum(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the maximum of each value over all ranks."""
    return _over_ranks(values, device, torch.amax)


def _over_ranks(values: Sequence[float], device: torch.device, operation: Any) -> list[float]:
    if _is_single_rank():
        return list(values)
    # As bytes: some devices and backends do not support float64.
    mine = torch.tensor(values, dtype=torch.float64).view(torch.uint8).to(device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    rows = torch.stack(gathered).cpu().view(torch.float64)
    result: list[float] = operation(rows, dim=0).tolist()
    return result


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, in the order of the ranks."""
    if _is_single_rank():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def device_mesh(parallel: Parallel, device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks; its dimensions are named as the axes, those with one rank too."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, tuple(getattr(parallel, axis) for axis in AXES), mesh_dim_names=AXES)


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the part of the mesh that FSDP needs: the ranks of one copy or, with several copies, those of all."""
    return mesh["shard"] if mesh["replicate"].size() == 1 else mesh["replicate", "shard"]


# -- the model ---------------------------------------------------------------------------------------------


def replicate(
    model: nn.Module, *, static_graph: bool = False, unused_parameters: bool = False, **more: Any
) -> nn.Module:
    """Wrap the model in DDP, with more of its options.

    Set ``static_graph`` if every step uses the same parameters in the same order.
    """
    from torch.nn.parallel import DistributedDataParallel

    # Buffers are averaged at evaluations, not synchronized at every forward pass. Newer torch renamed the option.
    options = inspect.signature(DistributedDataParallel.__init__).parameters
    no_sync = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
    # Without device_ids DDP does not search the inputs for tensors to move.
    return DistributedDataParallel(
        model,
        **{no_sync: False},
        gradient_as_bucket_view=True,
        static_graph=static_graph,
        find_unused_parameters=unused_parameters,
        **more,
    )


def gathered_type(model: nn.Module, precision: str) -> torch.dtype | None:
    """Return the type in which parameters are gathered: bf16 if steps compute in it; None for the parameters' own.

    A batch norm needs weights of the type of its statistics, which are fp32.
    """
    has_statistics = any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
    lower = devices.AUTOCAST_TYPES.get(precision) is torch.bfloat16
    return torch.bfloat16 if lower and not has_statistics else None


def shard(model: nn.Module, mesh: DeviceMesh, gathered: torch.dtype | None = None) -> nn.Module:
    """Shard the model by FSDP: each layer of every ModuleList separately, then the rest.

    A mesh with two dimensions replicates along the first one and shards along the second one. With ``gathered``, ranks
    exchange parameters in this type instead of fp32; gradients are summed in fp32.
    """
    # Innermost modules first: a shard contains the parameters that no inner shard contains.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(True for _ in layer.parameters()):
                    shard_module(layer, mesh, gathered)
    shard_module(model, mesh, gathered)
    return model


def shard_module(module: nn.Module, mesh: DeviceMesh, gathered: torch.dtype | None = None) -> None:
    """Shard the parameters of a module that no inner module shards, as ``shard`` does."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Autocast lowers the inputs where it should; other inputs, such as boxes, keep their precision.
    policy = MixedPrecisionPolicy(
        param_dtype=gathered, reduce_dtype=torch.float32 if gathered else None, cast_forward_inputs=False
    )
    fully_shard(module, mesh=mesh, mp_policy=policy)


def clip_gradients(weights: Sequence[Any], limit: float) -> torch.Tensor:
    """Scale all gradients so that their common norm is at most the limit; return the norm before.

    Weights of different meshes, such as those of experts, have norms of their own, which are combined here.
    """
    by_mesh: dict[Any, list[Any]] = {}
    for weight in weights:
        by_mesh.setdefault(getattr(weight, "device_mesh", None), []).append(weight)
    if len(by_mesh) < 2:
        return torch.nn.utils.clip_grad_norm_(weights, limit)
    norms = []
    for of_mesh in by_mesh.values():
        norm: Any = torch.nn.utils.get_total_norm([weight.grad for weight in of_mesh if weight.grad is not None])
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    whole = torch.linalg.vector_norm(torch.stack(norms))
    for of_mesh in by_mesh.values():
        torch.nn.utils.clip_grads_with_norm_(of_mesh, limit, whole)
    return whole


_WRAPPERS = frozenset(["module", "_orig_mod", "_checkpoint_wrapped_module"])
"""Parts of a parameter's name that wrappers add."""


def named(values: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the values by their names without the parts that wrappers add."""
    for name, value in values:
        yield ".".join(part for part in name.split(".") if part not in _WRAPPERS), value


def unwrap(model: nn.Module) -> nn.Module:
    """Return the suite's model without the DDP wrapper; FSDP changes the model in place, without a wrapper."""
    inner = getattr(model, "module", None)
    return inner if isinstance(inner, nn.Module) and hasattr(model, "no_sync") else model


def unsynchronized(model: nn.Module) -> ContextManager[Any]:
    """Accumulate the gradients of a replicated model in this rank, without synchronizing them with other ranks.

    A model in shards exchanges those of every micro-step: otherwise each rank would hold all gradients whole, in fp32.
    """
    without: ContextManager[Any] = model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()
    return without


@contextlib.contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Keep all shards gathered, so that ranks may run different numbers of forward passes."""
    shards = [module for module in model.modules() if hasattr(module, "unshard")]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    yield
    for module in shards:
        module.reshard()
        module.set_reshard_after_forward(module is not model, recurse=False)


def average_statistics(model: nn.Module) -> None:
    """Average the running statistics of batch norms over all ranks: each rank has seen only its share."""
    if _is_single_rank():
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
