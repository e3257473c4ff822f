"""A data directory of the reference scale of serving, in the published formats, with weights that a check trained."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nltk
import torch
from common.serving import summaries
from common.serving.measurement import Serving
from common.serving.published import write
from common.serving.scored import LENGTH, WEIGHTS, Scored
from nltk.tokenize import punkt
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits
from flagperf_driver.training.timeline import HostMarks
from tests.suites import served

_PROMPT, _END = 48, ord(".")
ANSWER = 48
"""The most tokens of an answer; some end before, with a sentence."""


def write_set(model: Any, folder: Path, questions: int) -> None:
    """Write the model's weights, a tokenizer of bytes, and questions with its own answers and more as the summaries."""
    weights = folder / WEIGHTS
    write(model.model, weights)
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**config, "eos_token_id": _END}))
    characters = {number: chr(number) if 33 <= number < 127 else chr(256 + number) for number in range(256)}
    characters[ord(" ")] = "\u0120"  # as byte-level tokenizers write a space
    bytes_ = Tokenizer(models.WordLevel({text: number for number, text in characters.items()}, characters[0]))
    bytes_.decoder = decoders.Sequence([decoders.Replace("\u0120", " "), decoders.Fuse()])
    PreTrainedTokenizerFast(tokenizer_object=bytes_).save_pretrained(weights)
    samples = []
    for text in model.texts[:questions]:
        own = bytes(greedy(model, text[:_PROMPT])).decode("latin-1")
        output = f"{own} {bytes(text[_PROMPT:]).decode('latin-1')}"
        samples.append({"instruction": "", "input": "", "tok_input": text[:_PROMPT], "output": output})
    (folder / summaries.FILE).write_text(json.dumps(samples))
    nltk.data.path.insert(0, str(folder / summaries.SENTENCES))
    trainer = punkt.PunktTrainer(" ".join(str(sample["output"]) for sample in samples))
    english = folder / summaries.SENTENCES / "tokenizers" / "punkt_tab" / "english"
    english.parent.mkdir(parents=True)
    punkt.save_punkt_params(trainer.get_params(), dir=str(english))


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return the answer of the model itself, without an engine."""
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + ANSWER and (len(tokens) == len(prompt) or tokens[-1] != _END):
            tokens.append(int(model.model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def reference(model: Any, scored: Scored) -> Mapping[str, float]:
    """Return the scores and the length of the model's own answers, without an engine."""
    scores = [scored.score(number, greedy(model, list(prompt))) for number, prompt in enumerate(scored.prompts)]
    return {name: sum(score[name] for score in scores) / len(scores) for name in (*scores[0], LENGTH)}


def measured(
    suite: Path, engine: type[Any], folder: Path, last: str = "", **settings: Any
) -> tuple[Scored, dict[str, Measured]]:
    """Return the set, and the points of a measurement at the reference scale up to ``last``, with a short load."""
    short = {
        "concurrencies": [8], "prompt_tokens": 16, "answer_tokens": 16, "point_least_s": 0.5, "point_most_s": 6.0,
        "rate_most_s": 0.0, "accuracy_answer_tokens": ANSWER, "data_dir": str(folder),
    }  # fmt: skip
    ctx = served.context(suite, "_base.py", **{**short, **settings})
    os.environ["FLAGPERF_LOG_DIR"] = str(folder)
    model = engine(ctx)
    loop = Loop(Serving(ctx, model, lambda value: [value]), HostMarks(), PointLimits())
    points: dict[str, Measured] = {}
    for one in loop.measure():
        assert isinstance(one, Measured)
        points[one.point.name] = one
        if one.point.name == last:
            break
    return model.scored, points
