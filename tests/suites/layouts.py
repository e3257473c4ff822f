"""Compare trainings of two tiny models in layouts of four ranks with those of one rank: layouts.py FILE."""

from __future__ import annotations

import functools
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "suites"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "suites/flux1/pytorch"))
import flow
from common.language import experts
from common.language.decoder import Decoder, Shape
from common.language.mixture import MixtureDecoder, MixtureShape
from common.language.tensor_plan import mixture_plan, tensor_plan
from pictures import Batch
from transformer import Shape as DiffusionShape
from transformer import Transformer

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context, distributed, optimizers, sharding
from flagperf_driver.pytorch.checks import replicas
from flagperf_driver.pytorch.parts import Parts
from flagperf_driver.pytorch.states import TorchStates
from flagperf_driver.training.checks import replicas as replica_check
from tests.driver.frameworks.forks import run_forks

RANKS, SEQUENCES, LENGTH, STEPS = 4, 4, 32, 3
CONFIG = {
    **options.values("pytorch"), "vocab_size": 64, "num_layers": 2, "hidden_size": 32, "num_heads": 8,
    "num_kv_heads": 4, "head_size": 4, "intermediate_size": 64, "tied_embeddings": False, "norm_epsilon": 1e-5,
    "rope_theta": 1e4, "rope_factor": 8.0, "rope_low": 1.0, "rope_high": 4.0, "rope_old_context": 16, "init_std": 0.1,
    "loss_chunk": 24, "learning_rate": 1e-2, "weight_decay": 0.1, "epsilon": 1e-5, "max_grad_norm": 0.5,
    "diffuses": False,
}  # fmt: skip
MIXTURE = {
    "num_experts": 8, "experts_per_token": 2, "attention_window": 8, "balance_factor": 0.5, "grouped_products": True,
    "collapsed": False,
}  # fmt: skip
DIFFUSION = {
    "diffuses": True, "latent_channels": 2, "text_size": 12, "pooled_size": 6, "num_heads": 2, "num_double_blocks": 2,
    "num_single_blocks": 2, "mlp_ratio": 2, "rope_axes": (4, 6, 6), "rope_theta": 1e4, "time_waves": 16,
    "max_grad_norm": 0.1,
}  # fmt: skip
"""The config of FLUX.1's transformer instead of Llama's decoder."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "shard, recomputed": {"parallel": "fsdp", "checkpoint_activations": True},
    "replicate x shard": {"parallel": {"replicate": 2, "shard": 2}},
    "tensor": {"parallel": {"tensor": 4}},
    "replicate x tensor, tied": {"parallel": {"replicate": 2, "tensor": 2}, "tied_embeddings": True},
    "shard x tensor, compiled": {
        "parallel": {"shard": 2, "tensor": 2}, "checkpoint_activations": "selective", "compile": True,
    },
    "expert": {"parallel": {"expert": 4}, **MIXTURE},
    "shard x expert, recomputed": {
        "parallel": {"shard": 2, "expert": 2}, "checkpoint_activations": "selective", **MIXTURE,
    },
    "replicate x expert": {"parallel": {"replicate": 2, "expert": 2}, **MIXTURE},
    # Without the balance, which would end it.
    "expert, one rank has all tokens": {
        "parallel": {"expert": 4}, **MIXTURE, "collapsed": True, "balance_factor": 0.0,
    },
    "tensor, experts": {"parallel": {"tensor": 4}, **MIXTURE},
    "expert x tensor": {"parallel": {"expert": 2, "tensor": 2}, **MIXTURE},
    "shard x tensor, experts": {"parallel": {"shard": 2, "tensor": 2}, **MIXTURE},
    "ddp, experts": {**MIXTURE},
    "diffusion, ddp": {**DIFFUSION},
    "diffusion, replicate x shard, compiled": {
        **DIFFUSION, "parallel": {"replicate": 2, "shard": 2}, "checkpoint_activations": True, "compile": True,
    },
    "shard x tensor, bf16": {"parallel": {"shard": 2, "tensor": 2}, "precision": "bf16"},
    "diffusion, shard, bf16": {**DIFFUSION, "parallel": "fsdp", "precision": "bf16"},
}  # fmt: skip
OF_EXPERTS = (
    "replicate x expert", "expert", "shard x expert, recomputed", "expert x tensor", "shard x tensor, experts",
    "ddp, experts",
)  # fmt: skip
"""The first one writes a checkpoint, the others read it."""
Weights = dict[str, Tensor]


def context(rank: int | None, **settings: Any) -> Context:
    """Return the context of one of the ranks, or of a rank alone."""
    ranks: dict[str, Any] = {} if rank is None else {"rank": rank, "world_size": RANKS}
    return Context(config=Config({**CONFIG, **settings}), seed=7, **ranks)


def created(ctx: Context) -> nn.Module:
    diffuses = ctx.config.diffuses
    with torch.device("meta"):
        if ctx.config.diffuses:
            model: Any = Transformer(DiffusionShape.of(ctx.config))
        elif hasattr(ctx.config, "num_experts"):
            model = MixtureDecoder(MixtureShape.of(ctx.config))
        else:
            model = Decoder(Shape.of(ctx.config))
    sharding.recompute(model.blocks, ctx.config.checkpoint_activations)
    if ctx.config.compile:
        for block in [*model.blocks, model.last if diffuses else model.norm]:
            block.forward = torch.compile(block.forward, backend="aot_eager", fullgraph=True)
    plan = mixture_plan if hasattr(ctx.config, "num_experts") else tensor_plan
    model = sharding.parallelize(ctx, model, None if diffuses else plan)
    if getattr(ctx.config, "collapsed", False):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # The scores of all experts are equal: the first ones are chosen.
                parameter *= 0.0 if "router" in name else 1.0
    return model


def weights(model: nn.Module) -> Weights:
    return {name: whole(value).clone() for name, value in distributed.named(model.named_parameters())}


def whole(value: Any) -> Tensor:
    result: Tensor = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach()
    return result


def loss_of(ctx: Context, model: nn.Module, step: int) -> Tensor:
    """Return the mean loss of this rank's samples of a step."""
    if not ctx.config.diffuses:
        loss: Tensor = model(*batch(ctx, step))
        return loss
    random = torch.Generator().manual_seed(step)
    sizes = ((2, 4, 4), (2, 4, 4), (), (3, ctx.config.text_size), (ctx.config.pooled_size,))
    parts = (torch.rand(SEQUENCES, *size, generator=random) for size in sizes)
    return flow.losses(model, Batch(*(part.chunk(ctx.data_ranks)[ctx.data_rank] for part in parts))).mean()


def batch(ctx: Context, step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, ctx.config.vocab_size, (SEQUENCES, LENGTH + 1), generator=random)
    own = tokens.chunk(ctx.data_ranks)[ctx.data_rank]
    return own[:, :-1], own[:, 1:]


def train(ctx: Context) -> dict[str, Any]:
    """Return the weights before and after some steps, its losses, the norms of the gradients, and the digests."""
    model = created(ctx)
    start, losses, norms, gathered = weights(model), [], [], 0
    optimizer = optimizers.create(ctx.config, optimizers.parameter_groups(model, ctx.config))
    for step in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=ctx.config.precision == "bf16"):
            loss = loss_of(ctx, model, step)
        losses.append(float(loss.detach()))
        loss.backward()
        with CommDebugMode() as exchanges:
            norm = distributed.clip_gradients(list(model.parameters()), ctx.config.max_grad_norm)
        gathered += sum(count for name, count in exchanges.get_comm_counts().items() if "gather" in str(name))
        norms.append(float(whole(norm)))
        optimizer.step()
        optimizer.zero_grad()
    return {
        "start": start, "end": weights(model), "losses": losses, "norms": norms, "gathered": gathered,
        "differences": differences(ctx, model),
    }  # fmt: skip


def differences(ctx: Context, model: nn.Module) -> list[str]:
    """Return what the comparison of the ranks says, before and after one bit of a weight of rank 1 is flipped."""

    def difference() -> str:
        try:
            replica_check.check(distributed.gather(replicas.digests(model)), STEPS)
        except replica_check.ReplicaError as error:
            return str(error).partition(";")[0]
        return ""

    before = difference()
    if ctx.rank == 1:
        name = "last.linear.bias" if ctx.config.diffuses else "norm.weight"
        value: Any = dict(distributed.named(model.named_parameters()))[name].detach()
        (value.to_local() if hasattr(value, "to_local") else value).view(torch.int32)[-1] ^= 1
    return [before, difference()]


def distance(one: Weights, other: Weights) -> float:
    assert list(one) == list(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@functools.cache
def alone(data_ranks: int, parts: int, **model: Any) -> tuple[dict[str, Any], Weights]:
    """Return the training of one rank, and the initial weights of another seed.

    The balance of experts is that of the tokens that a rank of a layout routes: of its samples, or parts of them.
    """
    ctx = context(None, **model)
    with mock.patch.object(experts, "unevenness", functools.partial(mean_unevenness, data_ranks, parts)):
        trained = train(ctx)
    return trained, weights(created(replace(ctx, seed=8)))


def mean_unevenness(data_ranks: int, parts: int, scores: Tensor, used: Tensor) -> Tensor:
    """Return the mean over the ranks of a layout, each with its samples and, of tensor ranks, its part of them."""
    by_rank = scores.unflatten(0, (data_ranks, SEQUENCES // data_ranks, parts, LENGTH // parts)).transpose(1, 2)
    chosen = torch.zeros_like(by_rank).scatter_(-1, by_rank.topk(MIXTURE["experts_per_token"]).indices, 1.0)
    used_by_rank = chosen.sum((2, 3)) / MIXTURE["experts_per_token"] / (by_rank.shape[2] * by_rank.shape[3])
    likely = by_rank.softmax(-1).mean((2, 3))
    return len(used) * (used_by_rank * likely).sum(-1).mean() - 1


def compared(rank: int, **settings: Any) -> dict[str, Any]:
    model = {key: settings[key] for key in ("tied_embeddings", *MIXTURE, *DIFFUSION) if key in settings}
    ctx = context(rank, **settings)
    routed = (ctx.data_ranks, ctx.parallel.tensor) if "num_experts" in settings else (1, 1)
    (plain, other), layout = alone(*routed, **model), train(ctx)
    losses = torch.tensor(distributed.gather(layout["losses"]), dtype=torch.float64).mean(0).tolist()
    return {
        "start": distance(plain["start"], layout["start"]),
        "other seed": distance(plain["start"], other),
        "end": distance(plain["end"], layout["end"]),
        "moved": distance(layout["start"], layout["end"]),
        "losses": [plain["losses"], losses],
        "norms": [plain["norms"], layout["norms"]],
        "gathered": layout["gathered"],
        "differences": layout["differences"],
    }


# -- checkpoints --------------------------------------------------------------------------------------------


def parts(ctx: Context) -> Parts:
    """Return a model and its optimizer, which has made its moments."""
    model = created(ctx)
    optimizer = optimizers.create(ctx.config, optimizers.parameter_groups(model, ctx.config))
    model(*batch(ctx, 0)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return Parts(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), None, (), ())


def state(trained: Parts) -> Weights:
    """Return all weights, and the first moments of the optimizer."""
    moments = {
        f"moment of {name}": whole(trained.optimizer.state[value]["exp_avg"]).clone()
        for name, value in distributed.named(trained.model.named_parameters())
    }
    return {**weights(trained.model), **moments}


def read_in_other_layouts(rank: int) -> dict[str, list[float]]:
    """Return how far from a checkpoint of experts each layout is, before it reads the checkpoint and after."""
    (ctx, *others), folder = (context(rank, **LAYOUTS[name]) for name in OF_EXPERTS), Path(sys.argv[1]).parent
    written = parts(ctx)
    TorchStates(ctx, written).copy()(folder)
    expected, found = state(written), {}
    for name, ctx in zip(OF_EXPERTS[1:], others, strict=True):
        other = parts(replace(ctx, seed=8))
        before = distance(expected, state(other))
        TorchStates(ctx, other).load(folder)
        found[name] = [before, distance(expected, state(other))]
    return found


# -- one rank ----------------------------------------------------------------------------------------------


class Kept(TorchDispatchMode):  # type: ignore[misc]
    """The storages that operations made."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def bytes(self) -> int:
        return sum(size for storage, size in self._made.values() if not storage.expired())


def recomputed(mode: Any) -> dict[str, float]:
    """Return the FLOPs of a step, the bytes kept after the forward pass, and the norm of the gradients."""
    ctx = context(None, checkpoint_activations=mode)
    model, counter = created(ctx), FlopCounterMode(display=False)
    with counter:
        with Kept() as kept:
            loss = model(*batch(ctx, 0))
        size = kept.bytes()
        loss.backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    return {"flops": counter.get_total_flops(), "kept": size, "norm": float(norm)}


def run(rank: int) -> None:
    # What a module returns must be no view, of which FSDP would not see a change in place.
    warnings.filterwarnings("error", ".*returned a view tensor")
    with distributed.process_group("gloo", torch.device("cpu"), RANKS, 120):
        found = {name: compared(rank, **settings) for name, settings in LAYOUTS.items()}
        found["checkpoint"] = read_in_other_layouts(rank)
    if rank == 0:
        modes = {"recomputed": {str(mode): recomputed(mode) for mode in (False, "selective", True)}}
        Path(sys.argv[1]).write_text(json.dumps({**found, **modes}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_forks(run, RANKS)
