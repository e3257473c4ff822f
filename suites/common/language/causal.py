"""The steps of models that predict each token from the tokens before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from common.language import tokens
from common.language.decoder import Decoder, Shape
from common.language.tensor_plan import tensor_plan
from common.language.tokens import Tokens
from common.steps import Loader
from flagperf_driver.pytorch import Context, sharding
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch.steps import compile_methods


def create_model(ctx: Context) -> nn.Module:
    """Return the decoder without memory for its weights; ``model_to_ddp`` draws them where they are needed."""
    with torch.device("meta"):
        return Decoder(Shape.of(ctx.config))


def convert_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Choose which activations the backward pass computes again; compiling has to know it."""
    sharding.recompute(model.blocks, ctx.config.checkpoint_activations)
    return model


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one block for all of them, the last norm, and what is computed of each logit."""
    compile_methods(ctx, [*model.blocks, model.norm], "forward")
    compile_methods(ctx, [model], "row_statistics", "row_slopes")
    return model


def model_to_ddp(ctx: Context, model: nn.Module) -> nn.Module:
    """Divide the model among the ranks, and draw its weights."""
    return sharding.parallelize(ctx, model, tensor_plan)


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    return Loader(*tokens.train(ctx), _workers(ctx), pin=devices.pins(ctx.device))


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the evaluation's sequences."""
    return Loader(*tokens.evaluation(ctx), _workers(ctx), pin=devices.pins(ctx.device))


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; synthetic batches need no process."""
    return 0 if ctx.synthetic else int(ctx.config.num_workers)


def calculate_loss(ctx: Context, model: nn.Module, batch: Tokens) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the mean loss of the batch's tokens."""
    loss: Tensor = model(batch.inputs, batch.targets)
    return loss


def evaluate_batch(ctx: Context, model: nn.Module, batch: Tokens) -> Tensor:
    """Return the sum of the losses, and the number of tokens."""
    count = count_samples(ctx, batch)
    loss: Tensor = model(batch.inputs, batch.targets)
    return torch.stack((loss * count, torch.full_like(loss, count)))


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the mean loss of a token of the evaluation, in nats."""
    losses, count = sums
    return {"log_perplexity": losses / count}


def count_samples(ctx: Context, batch: Tokens) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of tokens."""
    sequences, length = batch.inputs.shape
    return int(sequences * length)
