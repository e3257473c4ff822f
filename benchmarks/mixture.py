"""Measure training steps of a model like gpt-oss-20b, cut to fit one device, with both ways to compute its experts.

    PYTHONPATH=.:suites TORCH_PYTHON benchmarks/mixture.py --peak=989.5                              # on a GPU
    PYTHONPATH=.:suites TORCH_PYTHON benchmarks/mixture.py --layers 2 --width 64 --hidden 64 --words 500 --length 256

The cut model has the blocks of gpt-oss-20b, but fewer of them, and a smaller vocabulary: it is not gpt-oss-20b. It is
compiled block by block and computes in bf16 on random tokens. The host waits for the device after each step. The first
way computes all experts in one call, the second one expert by expert. The MFU counts active parameters.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path

import torch
from common.language import causal
from common.language.mixture import MixtureShape

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context, optimizers

CONFIG = Path(__file__).resolve().parent.parent / "suites" / "gpt_oss_20b" / "pytorch" / "config" / "_base.py"
WARM_UP = 5


def flops_of_a_token(shape: MixtureShape, length: int) -> float:
    """Return the FLOPs of training: six for each active weight of a product; attention without the causal mask."""
    queries = shape.num_heads * shape.head_size
    attention = shape.hidden_size * 2 * (queries + shape.num_kv_heads * shape.head_size)
    experts = shape.experts_per_token * 3 * shape.hidden_size * shape.intermediate_size
    block = attention + experts + shape.hidden_size * shape.num_experts
    windows = shape.num_layers - shape.num_layers // 2
    places = windows * min(shape.attention_window, length) + (shape.num_layers - windows) * length
    return float(6 * (shape.num_layers * block + shape.hidden_size * shape.vocab_size + 2 * queries * places))


def context(arguments: argparse.Namespace, *, grouped: bool) -> Context:
    """Return the context of the cut model; the suite's config has all other values."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values = {
        **options.values("pytorch", CONFIG), "num_layers": arguments.layers, "hidden_size": arguments.width,
        "intermediate_size": arguments.hidden, "vocab_size": arguments.words, "max_seq_length": arguments.length,
        "train_batch_size": arguments.batch, "compile": device.type == "cuda", "parallel": "ddp",
        "grouped_products": grouped, "checkpoint_activations": False,
    }  # fmt: skip
    return Context(config=Config(values), device=device)


def step_times(ctx: Context, steps: int) -> tuple[list[float], int]:
    """Return the seconds of each step, and the largest number of bytes that tensors used."""
    torch._dynamo.reset()
    gc.collect()
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    parts = causal.MIXTURE_STEPS
    model = parts.convert_model(ctx, parts.create_model(ctx))
    if ctx.config.compile:
        model = parts.compile_model(ctx, model)
    model = parts.model_to_ddp(ctx, model)
    optimizer = optimizers.create(ctx.config, optimizers.parameter_groups(model, ctx.config))
    drawn = torch.randint(ctx.config.vocab_size, (ctx.config.train_batch_size, ctx.config.max_seq_length + 1))
    tokens = drawn.to(ctx.device)
    times = []
    for _ in range(WARM_UP + steps):
        begin = time.perf_counter()
        with torch.autocast(ctx.device.type, torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ctx.config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ctx.hooks.synchronize(ctx.device)
        times.append(time.perf_counter() - begin)
    return times[WARM_UP:], ctx.hooks.memory(ctx.device) or 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps of a cut gpt-oss: all experts in one call, or a loop.")
    for name, value in (("layers", 2), ("width", 2880), ("hidden", 2880), ("words", 32768)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("length", 8192), ("batch", 4), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--peak", type=float, help="the dense bf16 peak of the chip in TFLOPS, for the MFU")
    arguments = parser.parse_args()
    print(f"gpt-oss cut to {arguments.layers} layers and {arguments.words} words: not gpt-oss-20b")
    for name, grouped in (("one call", True), ("loop", False)):
        ctx = context(arguments, grouped=grouped)
        times, memory = step_times(ctx, arguments.steps)
        rate = arguments.batch * arguments.length / statistics.median(times)
        flops = flops_of_a_token(MixtureShape.of(ctx.config), arguments.length)
        utilization = f", MFU {rate * flops / arguments.peak / 1e12:.1%}" if arguments.peak else ""
        print(f"{name}: {rate:.0f} tokens/s{utilization}, {memory / 2**30:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
