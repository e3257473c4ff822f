"""Several ranks: gradients are averaged by TensorFlow's collectives, inside the step's graph.

Keras 3 cannot be used under a strategy of several workers. Here the strategy only carries the collectives.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Sequence

import tensorflow as tf

_STRATEGIES: list[tf.distribute.Strategy] = []
"""The strategy of this process; TensorFlow allows one."""


def connect(backend: str, addresses: Sequence[str], rank: int) -> None:
    """Connect all ranks; ``backend`` is ring or nccl."""
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation[backend.upper()]
    )
    cluster = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    _STRATEGIES.append(tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))


def replicated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a context where ``mean`` works."""
    return _STRATEGIES[0].run(function, args=arguments) if _STRATEGIES else function(*arguments)


def mean(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the means over all ranks."""
    if not _STRATEGIES:
        return list(values)
    reduced: list[tf.Tensor] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, list(values))
    return reduced
