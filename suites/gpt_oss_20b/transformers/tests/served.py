"""The engine answers as the model that it got, and other weights are detected."""

import checking
from common.serving.trained import ContinuouslyBatched

from tests.suites import served


def check_the_engine_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, ContinuouslyBatched, checking.SCRATCH / "server.log")
