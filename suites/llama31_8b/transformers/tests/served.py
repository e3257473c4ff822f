"""The engine answers as the model that it got, and other weights are detected."""

import copy

import checking
import torch
from common.serving import published
from common.serving.trained import ContinuouslyBatched

from tests.suites import served


def check_the_engine_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, ContinuouslyBatched, checking.SCRATCH / "server.log")


def check_weights_of_too_few_bits_are_detected() -> None:
    """Rounded to 4 bits the model has nearly the same log perplexity: only its tokens are others."""
    model = served.trained(checking.SUITE, ContinuouslyBatched)
    for bits, accurate in ((12, True), (4, False)):
        rounded = copy.deepcopy(model.model)
        with torch.no_grad():
            for weights in rounded.parameters():
                step = weights.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
                weights.copy_((weights / step).round() * step)
        published.write(rounded, model.folder)
        right, _ = served.served(model, model.texts[:8], checking.SCRATCH / "server.log")
        assert (right >= 0.99) == accurate, (bits, right)
