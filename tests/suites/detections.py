"""Train a small detector for some steps: ``detections.py SUITE_DIR FOLDER`` writes truth, predictions and metrics.

They are JSON files in COCO's formats, for another library to judge. The program runs in the suite's environment.
"""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.suites.children import use_modules_of
from tests.suites.flops import context
from tests.suites.trainers import steps_of

STEPS = 70


def with_the_parts_of_the_library(net: Any) -> Any:
    """Return the same detector with torchvision's methods; its samples are drawn from the same random numbers."""
    from torchvision.models.detection import _utils, roi_heads, rpn

    library = deepcopy(net)
    parts = [(library.rpn, rpn.RegionProposalNetwork), (library.roi_heads, roi_heads.RoIHeads)]
    for part, kind in parts:
        part.__class__ = kind
        part.proposal_matcher.__class__ = _utils.Matcher
        part.box_coder.__class__ = _utils.BoxCoder
    return library


def main() -> None:
    suite, folder = (Path(argument).resolve() for argument in sys.argv[1:])
    use_modules_of(suite)

    import torch
    from common.detection import metric, scenes

    from flagperf_driver.pytorch.evaluation import evaluate
    from flagperf_driver.pytorch.parts import build
    from flagperf_driver.training.timeline import HostMarks

    torch.set_num_threads(1)
    steps = steps_of(suite)
    ctx = context(suite, "small", "cpu", batch=None, synthetic=False)
    parts = build(ctx, steps, steps)
    done = 0
    while done < STEPS:
        for raw in parts.train_data:
            steps.calculate_loss(ctx, parts.model, steps.prepare_batch(ctx, raw)).backward()
            torch.nn.utils.clip_grad_norm_(list(parts.model.parameters()), ctx.config.max_grad_norm)
            parts.optimizer.step()
            parts.optimizer.zero_grad()
            parts.scheduler.step()
            done += 1
    predictions = evaluate(ctx, steps, parts.model, parts.eval_data, HostMarks(), lambda: None).predictions
    index = scenes.load(train=False).index
    contents = {
        "metrics": steps.summarize(ctx, predictions),
        "truth": metric.ground_truth(index),
        "found": metric.results(index, predictions),
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main()
