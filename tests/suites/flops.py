"""Count the forward passes of suites: print the FLOPs per sample by suite and scale, as JSON.

    python -m tests.suites.flops '{"SUITE_DIR": [{"SCALE": "DEVICE"}, "CONFIG_DIR", ...]}'

The configs are those of the suite, and of the suites of other frameworks with the same model; the printed FLOPs are by
the folder of the configs, too.
For each scale the program runs one micro-step of the suite's own steps on synthetic data, on the device meta (the
shapes of tensors without their values) or cpu (the mean of several micro-steps). It counts only the forward pass,
because torch's counter counts the weight gradient of a grouped convolution once for each group: a depthwise
convolution's backward pass would count as hundreds of forward passes.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.suites import children
from tests.suites.trainers import steps_of

BATCH = 2
DRAWS = 4
"""How many batches are counted where the shapes depend on the values."""


def context(
    suite: Path,
    scale: str,
    device: str,
    batch: int | None = BATCH,
    *,
    synthetic: bool = True,
    config: str = "",
    **settings: Any,
) -> Any:
    """Return the context of a step; without a batch size, it has that of the suite's own config."""
    from flagperf_driver import options
    from flagperf_driver.driver import Config
    from flagperf_driver.pytorch import Context

    names = ["_base.py", *([] if scale == "reference" else [f"_{scale}.py"])]
    folder = Path(config) if config else suite / "config"
    values = options.values("pytorch", *(folder / name for name in names))
    # Initial weights do not change the count, and are not available here.
    values.update({"init_checkpoint": None} if "init_checkpoint" in values else {})
    values.update({} if batch is None else {"train_batch_size": batch})
    values.update(settings)
    return Context(
        config=Config(values), device=torch.device(device), scale=scale, synthetic=synthetic, suite_dir=suite
    )


def product_of_groups(rows: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a grouped product, which torch counts as none: each row is multiplied by one matrix."""
    return int(2 * rows[0] * rows[1] * weights[-1])


GROUPED = {
    getattr(torch.ops.aten, name): product_of_groups for name in ("_grouped_mm",) if hasattr(torch.ops.aten, name)
}


def attention_by_definition(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """Multiply each query with as many keys, and its weights with as many values, as its window has places.

    What an implementation adds, for sinks or for whole blocks of a window, is no work of the model.
    """
    seen = q.shape[2] if window is None else min(window, q.shape[2])
    k, v = (part[:, :, :seen].repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    return (q @ k.transpose(2, 3)) @ v


@contextlib.contextmanager
def by_definition() -> Iterator[None]:
    """Count the attention of a model with sinks and windows by its definition."""
    module = sys.modules.get("common.language.sink_attention")
    if module is None:
        yield
        return
    with mock.patch.object(module, "attend", attention_by_definition):
        yield


def counted(steps: Any, suite: Path, scale: str, device: str, config: str) -> float:
    torch.manual_seed(0)  # shapes may depend on the initial weights
    on_host, ctx = (
        context(suite, scale, place, config=config, pack_tokens=False)  # the FLOPs are those of full samples
        for place in ("cpu", device)
    )
    batches = [*itertools.islice(steps.create_train_data(on_host), 1 if device == "meta" else DRAWS)]
    with ctx.device:
        model = steps.create_model(ctx).train()
    samples: int = sum(steps.count_samples(ctx, batch) for batch in batches)
    prepared = [steps.prepare_batch(ctx, batch) for batch in batches]  # not counted: it is no work of the model
    with FlopCounterMode(display=False, custom_mapping=GROUPED) as counter, by_definition(), torch.no_grad():
        for batch in prepared:
            steps.calculate_loss(ctx, model, batch)
    return float(counter.get_total_flops()) / samples


def forward_passes(suite: Path, scales: dict[str, str], *configs: str) -> dict[str, dict[str, float]]:
    """Return the FLOPs by folder of the configs and by scale; ``scales`` has the device of each."""
    steps = steps_of(suite)
    return {
        config: {scale: counted(steps, suite, scale, device, config) for scale, device in scales.items()}
        for config in configs
    }


if __name__ == "__main__":
    children.print_results(forward_passes, sys.argv[1])
