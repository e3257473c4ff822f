"""The server of the config's words answers as the model that it got, and other weights are detected."""

import copy

import checking
import torch
from common.serving import published
from common.serving.any_server import ServedByAny

from flagperf_driver.pytorch import Context
from tests.suites import served


class Served(ServedByAny):
    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.name = "served"


def check_the_engine_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, Served, checking.SCRATCH / "server.log")


def check_written_weights_are_read_again() -> None:
    """The weights that judge a server that runs already."""
    model = served.trained(checking.SUITE, Served)
    other = copy.deepcopy(model.model)
    with torch.no_grad():
        other.head.weight.zero_()
    published.read(other, model.folder)
    assert all(value.equal(other.state_dict()[name]) for name, value in model.model.state_dict().items())
