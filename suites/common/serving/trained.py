"""A language model that is served: trained in the round, or random, and the judge of its server's answers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from common.language import causal
from common.language.decoder import Decoder
from common.language.text_bytes import TextBytes
from common.serving.published import write
from common.shares import Draw
from flagperf_driver.pytorch import Context, distributed, parts
from flagperf_driver.pytorch.evaluation import evaluate
from flagperf_driver.pytorch.feed import epoch_batches, preparation


class TrainedModel:
    """The part of a serving suite's model that all engines share; they add the ``command`` of a server."""

    def __init__(self, ctx: Context) -> None:
        """Train the model, as its training suite does, or draw it with ``--synthetic``; write it to a folder."""
        self.ctx, config = ctx, ctx.config
        built = parts.build(ctx, causal.STEPS, causal.STEPS)
        self.log_perplexity = None if ctx.synthetic else _train(ctx, built)
        model = distributed.unwrap(built.model)
        self.model: Decoder = model.eval().requires_grad_(requires_grad=False)
        self.vocabulary: int = config.vocab_size
        rows = TextBytes(config.max_seq_length, training=False, count=config.eval_sequences)
        self.texts: list[list[int]] = rows[Draw(0, torch.arange(len(rows)).numpy())].tolist()
        self.places: int = max(config.prompt_tokens + config.answer_tokens, config.max_seq_length + 2)
        """The most tokens of a prompt with its answer."""
        self.folder = Path(tempfile.mkdtemp(prefix="served-"))
        write(self.model, self.folder)

    @torch.no_grad()
    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        counts = []
        for prompt, answer in zip(prompts, answers, strict=True):
            # With the answer as input, each of its tokens is judged after those before it, also after a wrong one.
            tokens = torch.tensor([[*prompt, *answer]], device=self.ctx.device)
            likely = self.model(tokens[:, :-1]).argmax(-1)[0, len(prompt) - 1 :]
            counts.append(int((likely == tokens[0, len(prompt) :]).sum()) if answer else 0)
        return counts


def _train(ctx: Context, built: parts.Parts) -> float:
    """Train for ``max_steps``, and return the log perplexity by the evaluation of trainings."""
    prepare = preparation(ctx, causal.STEPS)
    weights = [parameter for group in built.optimizer.param_groups for parameter in group["params"]]
    step = epoch = 0
    while step < ctx.config.max_steps:
        for batch in epoch_batches(ctx, built.train_data, epoch, 0):
            causal.STEPS.calculate_loss(ctx, built.model, prepare(batch)).backward()
            distributed.clip_gradients(weights, ctx.config.max_grad_norm)
            built.optimizer.step()
            built.scheduler.step()
            built.optimizer.zero_grad(set_to_none=True)
            step += 1
            if step == ctx.config.max_steps:
                break
        epoch += 1
    marks = ctx.hooks.events(ctx.device)
    result = evaluate(ctx, causal.STEPS, built.model, built.eval_data, marks, lambda: None)
    return causal.summarize(ctx, distributed.total(result.sums, ctx.device))["log_perplexity"]
