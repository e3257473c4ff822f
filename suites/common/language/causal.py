"""The steps of models that predict each token from the tokens before it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from common.language import low_precision, tokens
from common.language.decoder import Decoder, Shape
from common.language.mixture import MixtureDecoder, MixtureShape
from common.language.tensor_plan import mixture_plan, tensor_plan
from common.language.tokens import Tokens
from common.steps import Loader
from flagperf_driver.pytorch import Context, Steps, sharding
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch.steps import Total, compile_methods
from flagperf_driver.training import expert_load


def create_model(ctx: Context) -> nn.Module:
    """Return the decoder without memory for its weights; ``model_to_ddp`` draws them where they are needed."""
    with torch.device("meta"):
        return Decoder(Shape.of(ctx.config))


def convert_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Choose the type of the blocks' products, and which activations the backward pass computes again.

    Compiling has to know both.
    """
    low_precision.convert(ctx, model.blocks)
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


STEPS = Steps(
    create_model=create_model,
    convert_model=convert_model,
    compile_model=compile_model,
    model_to_ddp=model_to_ddp,
    create_train_data=create_train_data,
    create_eval_data=create_eval_data,
    calculate_loss=calculate_loss,
    evaluate_batch=evaluate_batch,
    summarize=summarize,
    count_samples=count_samples,
)


# -- a mixture of experts


def create_mixture(ctx: Context) -> nn.Module:
    """Return the decoder with experts without memory for its weights, as ``create_model`` does."""
    with torch.device("meta"):
        return MixtureDecoder(MixtureShape.of(ctx.config))


def recompute_blocks(ctx: Context, model: nn.Module) -> nn.Module:
    """Choose which activations the backward pass computes again."""
    sharding.recompute(model.blocks, ctx.config.checkpoint_activations)
    return model


def compile_mixture(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one block for all of them, as ``compile_model`` does; or its parts, if ranks exchange tokens in between.

    torch compiles no part of a function that is computed again and waits for the host in the middle.
    """
    if ctx.parallel.of_experts.expert == 1 or not ctx.config.checkpoint_activations:
        return compile_model(ctx, model)
    compile_methods(ctx, [*(block.attention for block in model.blocks), model.norm], "forward")
    compile_methods(ctx, [block.mixture.experts for block in model.blocks], "compute")
    compile_methods(ctx, [model], "row_statistics", "row_slopes")
    return model


def divide_mixture(ctx: Context, model: nn.Module) -> nn.Module:
    """Divide the model among the ranks, and draw its weights."""
    return sharding.parallelize(ctx, model, mixture_plan)


def mixture_figures(ctx: Context, model: nn.Module, total: Total) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return how evenly the tokens since the last call are divided among the experts."""
    load: Tensor | None = model.take_load()
    return {} if load is None else expert_load.figures(load.tolist(), total)


MIXTURE_STEPS = replace(
    STEPS,
    create_model=create_mixture,
    convert_model=recompute_blocks,
    compile_model=compile_mixture,
    model_to_ddp=divide_mixture,
    step_figures=mixture_figures,
)
