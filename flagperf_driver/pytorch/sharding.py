"""A large model divided among ranks: tensor parallel, shards, recomputation, and weights drawn in place.

``parallelize`` reads as the list of what happens to a model, in order. The model is created on the meta device, so that
it never exists whole in a rank's memory.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from flagperf_driver import seeds
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.training.parallel import ParallelError

COMPILED_BUCKET_MIB = 128
"""DDP compiles the part of the model that fills a bucket as a graph of its own; its default is 25 MiB."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm")
ATTENTION = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
"""Names of the kernels behind scaled_dot_product_attention."""
FUSED = (*(f"_scaled_dot_product_{name}" for name in ATTENTION), "_scaled_dot_product_fused_attention_overrideable")


@dataclass(frozen=True)
class Uniform:
    """Initial values between -limit and limit."""

    limit: float


@runtime_checkable
class Drawn(Protocol):
    """A model that is created on the meta device, and declares how its weights are drawn."""

    def initial(self, name: str) -> float | Uniform | None:
        """Return the standard deviation of a parameter's normal distribution, or another; None for ones."""

    def tie(self) -> None:
        """Make modules that share a parameter share it again."""


@runtime_checkable
class ExpertWeights(Protocol):
    """A module whose parameters have a part for each expert along their first dimension."""

    def share(self, group: Any) -> None:
        """Exchange tokens with a group of ranks, which have as many experts each, in the order of the ranks."""


def parallelize(
    ctx: PyTorchContext, model: nn.Module, tensor_plan: Callable[[], Mapping[str, Any]] | None = None
) -> nn.Module:
    """Return the model, divided among the ranks as ``config.parallel`` says, and with its initial weights.

    ``tensor_plan`` returns the style of each module for tensor parallelism, as ``divide`` takes it.
    """
    sizes = ctx.parallel
    if sizes.is_sharded:
        # torch warns of two collectives where a norm is reduced over two dimensions of the mesh.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        # Experts have a mesh of their own: the other weights are divided among all ranks of their groups, too.
        mesh = distributed.device_mesh(sizes.without_experts, ctx.device)
        gathered = distributed.gathered_type(model, ctx.config.precision)
        if sizes.of_experts.expert > 1:
            divide_experts(ctx, model, gathered)
        if sizes.tensor > 1:
            if tensor_plan is None:
                raise ParallelError(f"parallel is {sizes.name}; expected a model_to_ddp step of the suite for tensor")
            divide(model, mesh["tensor"], tensor_plan())
        distributed.shard(model, distributed.sharding_mesh(mesh), gathered)
    materialize(ctx, model)
    if sizes.is_sharded or ctx.world_size == 1:
        return model
    options: dict[str, Any] = {"bucket_cap_mb": COMPILED_BUCKET_MIB} if ctx.config.compile else {}
    return distributed.replicate(model, **options)


# -- tensor parallel ---------------------------------------------------------------------------------------


def divide(model: nn.Module, mesh: Any, plan: Mapping[str, Any]) -> None:
    """Divide the modules' weights over the ranks of a mesh with one dimension; a key of the plan may contain ``*``."""
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, mesh, dict(plan), src_data_rank=None)
    _tie(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            # The output is a view of a DTensor: in compiled blocks that read it, its gradient would be wrong.
            module.register_forward_hook(lambda module, inputs, output: output.clone())  # noqa: ARG005 - a hook's


# -- expert parallel ---------------------------------------------------------------------------------------


def divide_experts(ctx: PyTorchContext, model: nn.Module, gathered: torch.dtype | None) -> None:
    """Give each rank of an expert group some of the experts; their weights are sharded over the other axes.

    The ranks of a tensor group have different tokens of a sample, so they belong to the expert group, too.
    """
    from torch.distributed.tensor import Shard, distribute_tensor

    sizes = ctx.parallel.of_experts
    modules: list[Any] = [module for module in model.modules() if isinstance(module, ExpertWeights)]
    if not modules:
        if ctx.parallel.expert > 1:
            name = ctx.parallel.name
            raise ParallelError(f"parallel is {name}; {type(model).__name__} has no experts; expected expert = 1")
        return
    mesh = distributed.device_mesh(sizes, ctx.device)
    of_experts = mesh["expert"]
    for module in modules:
        for name, weight in list(module.named_parameters(recurse=False)):
            if len(weight) % sizes.expert:
                words = f"expert x tensor = {sizes.expert}"
                raise ParallelError(f"{words} does not divide {len(weight)}, the number of experts")
            own = distribute_tensor(weight.detach(), of_experts, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(own))
        module.share(of_experts.get_group())
        distributed.shard_module(module, distributed.sharding_mesh(mesh), gathered)
        # A rank computes the tokens of the whole group: its gradients are already sums over these ranks.
        module.set_gradient_divide_factor(float(ctx.parallel.data_ranks))
        if sizes.shard > 1:
            # torch would let the backend divide, which gloo cannot; for a single shard it would divide twice.
            module.set_force_sum_reduction_for_comms(True)


# -- recomputation -----------------------------------------------------------------------------------------


def recompute(blocks: Iterable[nn.Module], mode: bool | str) -> None:
    """Compute the blocks' activations again in the backward pass, which saves their memory.

    ``mode`` is the config's ``checkpoint_activations``: False, True, or "selective", which keeps the outputs of matrix
    products and of attention. Call it before the blocks are compiled: a compiled block hides its operations.
    """
    if mode not in (False, True, "selective"):
        raise ValueError(f"checkpoint_activations={mode!r}; expected False, True or 'selective'")
    if mode is False:
        return
    for block in blocks:
        # No wrapper module: parameters keep their names.
        block.forward = _recomputed(block.forward, selective=mode == "selective")


def _recomputed(forward: Callable[..., Any], *, selective: bool) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint

    options = {"context_fn": _selective} if selective else {}

    # A function, not a partial: torch.compile traces it.
    def recomputed(*args: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options)

    return recomputed


def _selective() -> Any:
    from torch.utils import checkpoint
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    # Modules in the block that are sharded on their own name other steps of theirs when they compute again.
    getattr(checkpoint, "SAC_IGNORED_OPS", set()).update(_names_of_steps())
    return create_selective_checkpoint_contexts(_policy)


def _policy(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001 - torch's signature
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE if operation in _kept() else CheckpointPolicy.PREFER_RECOMPUTE


@functools.lru_cache(maxsize=None)
def _names_of_steps() -> frozenset[Any]:
    """Return the operations that give a part of a step a name for profilers, and compute nothing."""
    packets = [getattr(torch.ops.profiler, f"_record_function_{name}", None) for name in ("enter_new", "exit")]
    return frozenset(
        getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()
    )


@functools.lru_cache(maxsize=None)
def _kept() -> frozenset[Any]:
    """Return the operations whose outputs are kept: those that cost most to compute or to exchange."""
    packets = [getattr(torch.ops.aten, name, None) for name in (*PRODUCTS, *FUSED)]
    kept = [packet.default for packet in packets if packet is not None]
    if hasattr(torch.ops, "_c10d_functional"):
        kept.append(torch.ops._c10d_functional.reduce_scatter_tensor.default)
    return frozenset(kept)


# -- initial weights ---------------------------------------------------------------------------------------


def is_on_meta(model: nn.Module) -> bool:
    """Return True for a model whose parameters have no memory yet."""
    return any(parameter.is_meta for parameter in model.parameters())


def materialize(ctx: PyTorchContext, model: nn.Module) -> None:
    """Give a model on the meta device memory and its initial weights, which do not depend on how it is divided.

    ``nn.init`` on shards would draw the same values on every rank of the CPU. So each rank draws the whole parameter,
    one at a time, and keeps its part: no communication, and the same weights with any number of ranks.
    """
    if not is_on_meta(model):
        model.to(ctx.device)
        return
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise TypeError(f"buffer {lost[0]} is on the meta device, so it has no values; create it on the CPU")
    # Not to_empty(), which drops the values of buffers.
    model._apply(lambda value: torch.empty_like(value, device=ctx.device) if value.is_meta else value.to(ctx.device))
    _tie(model)
    with torch.no_grad():
        for name, parameter in distributed.named(model.named_parameters()):
            parameter.copy_(_part(drawn(ctx, model, name, parameter), parameter))


def drawn(ctx: PyTorchContext, model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """Return the whole initial value of a parameter, from a generator of its own."""
    if not isinstance(model, Drawn):
        raise TypeError(
            f"{type(model).__name__} is on the meta device without initial(name) and tie(); add these methods, which "
            "say how its weights are drawn, or create the model on the CPU"
        )
    initial = model.initial(name)
    whole = torch.ones(parameter.shape, dtype=parameter.dtype, device=ctx.device)
    if initial is None:
        return whole
    generator = torch.Generator(ctx.device).manual_seed(seeds.derive(ctx.seed, f"{seeds.MODEL} {name}"))
    if isinstance(initial, Uniform):
        return whole.uniform_(-initial.limit, initial.limit, generator=generator)
    return whole.normal_(0.0, initial, generator=generator)


def initial_value(ctx: PyTorchContext, model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """Return the value of a parameter of a new model: of one without memory, the value that it will get."""
    return drawn(ctx, model, name, parameter) if parameter.is_meta else parameter


def _part(whole: Tensor, parameter: Any) -> Any:
    """Return what this rank holds of a whole value, in the layout of the parameter."""
    if not hasattr(parameter, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _tie(model: nn.Module) -> None:
    """Share parameters again, which ``to_empty`` and tensor parallelism give copies of their own."""
    if isinstance(model, Drawn):
        model.tie()
