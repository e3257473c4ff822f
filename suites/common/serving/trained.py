"""The decoder that is served: that of a training suite, trained in the round or drawn, or with published weights.

What judges its answers is here, too: the model itself, or at the reference scale the scores of a set.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from transformers import AutoTokenizer

from common.language.decoder import Decoder
from common.language.text_bytes import TextBytes
from common.serving import published
from common.serving.scored import WEIGHTS, Scored, stops_of
from common.shares import Draw
from common.training.program import context_of, steps_of
from flagperf_driver.pytorch import Context, Steps, distributed, parts
from flagperf_driver.pytorch.evaluation import evaluate
from flagperf_driver.pytorch.feed import epoch_batches, preparation
from flagperf_driver.pytorch.states import model_weights
from flagperf_driver.training.checkpoint import stored_checkpoint


class TrainedModel:
    """The model of a serving suite whose config names a training by ``weights_of``; engines add the ``command``."""

    def __init__(self, ctx: Context) -> None:
        """Train the model as its suite does, or draw it with ``--synthetic``; write it to a folder.

        At the reference scale the weights are in the data directory.
        """
        self.ctx, config = ctx, ctx.config
        training = context_of(ctx, config.weights_of)
        self.trained_by: str = config.weights_of_run
        """The training of the same run whose weights are served; empty if they come from this round."""
        self.name = training.suite_dir.parent.name
        self.vocabulary: int = training.config.vocab_size
        self.texts: Sequence[Sequence[int]] = []
        self.log_perplexity: float | None = None
        self.places: int = config.prompt_tokens + config.answer_tokens
        """The most tokens of a prompt with its answer."""
        self.scored: Scored | None = None
        if config.accuracy_set and not ctx.synthetic:
            self._publish()
            return
        self.folder = Path(tempfile.mkdtemp(prefix="served-"))
        if ctx.synthetic:
            self._draw(training, steps_of(training.suite_dir))
        else:
            self._train(training, steps_of(training.suite_dir))

    def _publish(self) -> None:
        """Take the weights, and the set by which they are judged, from the data directory."""
        config = self.ctx.config
        self.folder = Path(config.data_dir, WEIGHTS)
        # The vocabulary has more tokens than a training of this shape, or fewer.
        self.vocabulary = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        answers = import_module(f"common.serving.{config.accuracy_set}").answer_set(Path(config.data_dir))
        text_of = partial(AutoTokenizer.from_pretrained(self.folder).decode, skip_special_tokens=answers.plain)
        self.scored = Scored(config, self.ctx.seed, answers, text_of, stops_of(self.folder))
        self.texts = self.scored.prompts
        self.places = max(self.places, max(map(len, self.texts)) + config.accuracy_answer_tokens)

    def _draw(self, training: Context, steps: Steps) -> None:
        """Write initial weights."""
        published.write(distributed.unwrap(parts.build(training, steps, steps).model), self.folder)

    def _train(self, training: Context, steps: Steps) -> None:
        """Write trained weights, and keep what judges their server."""
        built = parts.build(training, steps, steps)
        self.model: Decoder = distributed.unwrap(built.model)
        if self.trained_by:
            checkpoint, record = stored_checkpoint(self.ctx.config.weights_dir, self.trained_by, 1)
            published.load(self.model, model_weights(checkpoint))
            self.model.to(self.ctx.device)
            self.log_perplexity = record["evaluation"]["metrics"]["log_perplexity"]
        else:
            if self.ctx.config.weights:
                published.read(self.model, Path(self.ctx.config.weights))
            else:
                _train(training, steps, built)
            self.log_perplexity = _log_perplexity(training, steps, built)
        self.model.eval().requires_grad_(requires_grad=False)
        length = training.config.max_seq_length
        rows = TextBytes(length, training=False, count=training.config.eval_sequences)
        self.texts = rows[Draw(0, torch.arange(len(rows)).numpy())].tolist()
        self.places = max(self.places, length + 2)
        published.write(self.model, self.folder)

    @torch.no_grad()
    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        counts = []
        for prompt, answer in zip(prompts, answers, strict=True):
            # With the answer as input, each of its tokens is judged after those before it, also after a wrong one.
            tokens = torch.tensor([[*prompt, *answer]], device=self.ctx.device)
            likely = self.model(tokens[:, :-1]).argmax(-1)[0, len(prompt) - 1 :]
            counts.append(int((likely == tokens[0, len(prompt) :]).sum()) if answer else 0)
        return counts


class ContinuouslyBatched(TrainedModel):
    """A model that transformers serves, by ``continuous_batching.py``."""

    def command(self, port: int) -> Sequence[str]:
        return [
            sys.executable, "-m", "common.serving.continuous_batching", str(self.folder), f"--port={port}",
            f"--model={self.name}", f"--device={self.ctx.device}", f"--requests={max(self.ctx.config.concurrencies)}",
            f"--places={self.places}", f"--temperature={self.ctx.config.accuracy_temperature if self.scored else 0}",
        ]  # fmt: skip


def _train(ctx: Context, steps: Steps, built: parts.Parts) -> None:
    """Train for ``max_steps``."""
    prepare = preparation(ctx, steps)
    weights = [parameter for group in built.optimizer.param_groups for parameter in group["params"]]
    step = epoch = 0
    while step < ctx.config.max_steps:
        for batch in epoch_batches(ctx, built.train_data, epoch, 0):
            steps.calculate_loss(ctx, built.model, prepare(batch)).backward()
            distributed.clip_gradients(weights, ctx.config.max_grad_norm)
            built.optimizer.step()
            built.scheduler.step()
            built.optimizer.zero_grad(set_to_none=True)
            step += 1
            if step == ctx.config.max_steps:
                break
        epoch += 1


def _log_perplexity(ctx: Context, steps: Steps, built: parts.Parts) -> float:
    """Return the log perplexity by the evaluation of trainings."""
    marks = ctx.hooks.events(ctx.device)
    result = evaluate(ctx, steps, built.model, built.eval_data, marks, lambda: None)
    return steps.summarize(ctx, distributed.total(result.sums, ctx.device))["log_perplexity"]
