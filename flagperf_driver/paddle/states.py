"""The state of a training in Paddle: weights, optimizer and loss scaler."""

from __future__ import annotations

from typing import Any, Mapping

import paddle

from flagperf_driver.training.base import Arrays


class PaddleStates:
    """The values of a training that a checkpoint keeps."""

    def __init__(self, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer, scaler: Any) -> None:
        self._model, self._optimizer, self._scaler = model, optimizer, scaler

    def weights(self) -> Arrays:
        # A batch norm's running statistics are parameters too, which Paddle does not train.
        return {name: value.numpy() for name, value in self._model.named_parameters() if not value.stop_gradient}

    def arrays(self) -> Arrays:
        return {
            **{f"model/{name}": value.numpy() for name, value in self._model.state_dict().items()},
            **{
                f"optimizer/{name}": value.numpy()
                for name, value in self._optimizer.state_dict().items()
                if isinstance(value, paddle.Tensor)
            },
            **{f"scaler/{name}": value for name, value in (self._scaler.state_dict() if self._scaler else {}).items()},
        }

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        parts: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "scaler": {}}
        for name, value in arrays.items():
            part, _, own = name.partition("/")
            parts[part][own] = value
        self._model.set_state_dict(parts["model"])
        self._optimizer.set_state_dict({name: paddle.to_tensor(value) for name, value in parts["optimizer"].items()})
        if self._scaler:
            self._scaler.load_state_dict(parts["scaler"])

    def statistics(self) -> Arrays:
        return {
            f"{name}.{part}": getattr(layer, part).numpy()
            for name, layer in self._model.named_sublayers()
            if isinstance(layer, paddle.nn.layer.norm._BatchNormBase)
            for part in ("_mean", "_variance")
        }

    def set_statistics(self, arrays: Mapping[str, Any]) -> None:
        layers = dict(self._model.named_sublayers())
        for name, value in arrays.items():
            layer, _, part = name.rpartition(".")
            getattr(layers[layer], part).set_value(value)
