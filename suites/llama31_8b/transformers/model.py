"""The Llama that is served: trained in the round, or random; written as transformers and other engines read it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from common.language import causal
from common.language.decoder import Decoder
from common.language.text_bytes import TextBytes
from common.shares import Draw
from safetensors.torch import save_file

from flagperf_driver.pytorch import Context, distributed, parts
from flagperf_driver.pytorch.evaluation import evaluate
from flagperf_driver.pytorch.feed import epoch_batches, preparation

_NAMES = {
    "embedding": "embed_tokens", "blocks": "layers", "attention_norm": "input_layernorm", "attention": "self_attn",
    "feed_forward": "mlp", "q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj", "gate": "gate_proj",
    "up": "up_proj", "down": "down_proj",
}  # fmt: skip
"""The names that published weights have for the parts of our decoder."""


class TrainedLlama:
    """A model of a serving suite."""

    name = "llama31_8b"

    def __init__(self, ctx: Context) -> None:
        """Train the model, as llama31_8b:pytorch does, or draw it with ``--synthetic``; write it to a folder."""
        self._ctx, config = ctx, ctx.config
        built = parts.build(ctx, causal.STEPS, causal.STEPS)
        self.log_perplexity = None if ctx.synthetic else _train(ctx, built)
        model = distributed.unwrap(built.model)
        self._model: Decoder = model.eval().requires_grad_(requires_grad=False)
        self.vocabulary: int = config.vocab_size
        rows = TextBytes(config.max_seq_length, training=False, count=config.eval_sequences)
        self.texts: list[list[int]] = rows[Draw(0, torch.arange(len(rows)).numpy())].tolist()
        self._folder = Path(tempfile.mkdtemp(prefix="served-"))
        write(self._model, self._folder)

    def command(self, port: int) -> Sequence[str]:
        program = Path(__file__).with_name("serve.py")
        config = self._ctx.config
        places = config.prompt_tokens + config.answer_tokens
        return [
            sys.executable, str(program), str(self._folder), f"--port={port}", f"--model={self.name}",
            f"--device={self._ctx.device}", f"--requests={max(config.concurrencies)}",
            f"--places={max(places, config.max_seq_length + 2)}",
        ]  # fmt: skip

    @torch.no_grad()
    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        counts = []
        for prompt, answer in zip(prompts, answers, strict=True):
            # With the answer as input, each of its tokens is judged after those before it, also after a wrong one.
            tokens = torch.tensor([[*prompt, *answer]], device=self._ctx.device)
            likely = self._model(tokens[:, :-1]).argmax(-1)[0, len(prompt) - 1 :]
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


def write(model: Decoder, folder: Path) -> None:
    """Write the weights as safetensors with their published names, and the config that describes them."""
    shape = model.shape
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_size, "rms_norm_eps": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_embeddings,
        "max_position_embeddings": round(shape.rope_old_context * shape.rope_factor),
        "torch_dtype": "bfloat16" if shape.precision == "bf16" else "float32",
        "rope_theta": shape.rope_theta, "rope_scaling": {
            "rope_type": "llama3", "factor": shape.rope_factor, "low_freq_factor": shape.rope_low,
            "high_freq_factor": shape.rope_high, "original_max_position_embeddings": shape.rope_old_context,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {published_name(name): value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def published_name(name: str) -> str:
    if name.startswith("head."):
        return name.replace("head", "lm_head")
    if name.startswith("norm."):
        return f"model.{name}"
    renamed = name.replace(".norm.", ".post_attention_layernorm.").split(".")
    return ".".join(["model", *(_NAMES.get(part, part) for part in renamed)])
