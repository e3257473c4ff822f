"""Checks of BERT in Paddle: its heads, its mask and its checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checking
import checkpoint
import model
import numpy as np
import paddle
from common.language import bert_weights, pretraining
from common.language import wikipedia as text

from flagperf_driver.paddle.steps import prepare_batch


def small_model() -> Any:
    paddle.seed(0)
    net = model.create_model(checking.context())
    net.eval()
    return net


def small_batch() -> dict[str, Any]:
    ctx = checking.context()
    batch: dict[str, Any] = prepare_batch(ctx, next(iter(pretraining.create_train_data(ctx))))
    return batch


def value(tensor: Any) -> Any:
    return tensor.detach().numpy()


def check_gathered_head_equals_the_full_head() -> None:
    net, batch = small_model(), small_batch()
    hidden = net.encode(batch)
    places = value(batch["positions"])
    full = value(net.scores(hidden))[np.arange(len(places))[:, None], places]
    gathered = value(net.scores(model.gather(hidden, batch["positions"])))
    np.testing.assert_allclose(gathered, full, atol=1e-5)
    assert not np.allclose(value(net.scores(model.gather(hidden, batch["positions"] - 1))), full)
    right = int((full.argmax(-1) == value(batch["labels"])).sum())
    assert value(net(batch, counting=True)).tolist() == [right, places.size]


def check_padding_is_not_attended_to() -> None:
    net, batch = small_model(), small_batch()
    batch["input_mask"][:, 20:] = 0
    batch["positions"] = batch["positions"].clip(max=19)
    tokens = batch["input_ids"].clone()
    tokens[:, 20:] = text.PAD
    other = {**batch, "input_ids": tokens}
    np.testing.assert_allclose(value(net(batch)), value(net(other)), rtol=1e-5)
    full = paddle.ones_like(batch["input_mask"])
    difference = value(net({**batch, "input_mask": full})) - value(net({**other, "input_mask": full}))
    assert abs(float(difference)) > 1e-4


def check_ignored_predictions_do_not_count() -> None:
    net, batch = small_model(), small_batch()
    fewer = {**batch, "positions": batch["positions"].clone(), "labels": batch["labels"].clone()}
    fewer["labels"][:, 2:] = model.IGNORED
    assert int(net(fewer, counting=True)[1]) == 2 * len(batch["labels"])
    before = value(net(fewer))
    fewer["positions"][:, 2:] = 0
    np.testing.assert_allclose(value(net(fewer)), before, rtol=1e-6)
    assert not np.allclose(value(net(batch)), before)


def check_dropout_is_for_training_only() -> None:
    paddle.seed(0)
    net = model.create_model(checking.context(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    batch = small_batch()
    net.train()
    assert float(net(batch)) != float(net(batch))
    net.eval()
    assert float(net(batch)) == float(net(batch))


# -- initial weights


def saved(name: str, weights: Any) -> Path:
    path = checking.SCRATCH / name
    np.savez(path, **weights)
    return path


def stored(net: Any) -> dict[str, Any]:
    linear = {f"{name}.weight" for name, layer in net.named_sublayers() if isinstance(layer, paddle.nn.Linear)}
    return {name: value(one).T if name in linear else value(one) for name, one in net.state_dict().items()}


def with_original_names(weights: dict[str, Any]) -> dict[str, Any]:
    places = {
        "intermediate.dense.": "intermediate.dense_act.", "transform.dense.": "transform.dense_act.",
        "self.query.weight": "multi_head_attention.q_weight", "attention.output.LayerNorm": "attention.layer_norm",
    }  # fmt: skip

    def name(old: str) -> str:
        for ours, theirs in places.items():
            old = old.replace(ours, theirs)
        return ("module.bert_model_segment." if old.startswith("bert") else "module.heads_only_segment.") + old

    return {name(key): array for key, array in weights.items()}


def check_both_checkpoint_layouts_load() -> None:
    weights = stored(small_model())
    layouts = {
        "plain.npz": weights,
        "original.npz": with_original_names(weights),
        "unrounded.npz": {key: array[:33] if array.shape[0] == 40 else array for key, array in weights.items()},
    }
    for name, content in layouts.items():
        saved(name, content)
        paddle.seed(1)
        loaded = stored(model.create_model(checking.context(init_checkpoint=name)))
        for key, array in loaded.items():
            rows = 33 if array.shape[0] == 40 else len(array)
            assert (array[:rows] == weights[key][:rows]).all(), key
        assert not (
            stored(model.create_model(checking.context()))["bert.pooler.dense.weight"]
            == loaded["bert.pooler.dense.weight"]
        ).all(), "the control: without a checkpoint"


def check_checkpoints_that_do_not_fit_are_errors_with_reasons() -> None:
    net = small_model()
    weights = stored(net)
    incomplete = {key: array for key, array in weights.items() if "layer.1" not in key}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (incomplete, ["16 missing", "bert.encoder.layer.1", "8 more"]),
        ({**weights, "bert.extra.weight": np.zeros(1)}, ["1 unexpected: bert.extra.weight"]),
        ({**weights, "bert.pooler.dense.bias": np.zeros(65)}, ["another shape", "(65,), expected (64,)"]),
    ]
    for content, words in cases:
        path = saved("misfit.npz", content)
        call = functools.partial(checkpoint.load_checkpoint, net, path)
        checking.raises(bert_weights.BertCheckpointError, call, "misfit.npz", *words)


def check_a_checkpoint_runs_no_code() -> None:
    path = checking.SCRATCH / "code.npz"
    np.savez(path, model=np.array([SimpleNamespace(weights=1)], dtype=object))
    checking.raises(
        bert_weights.BertCheckpointError, lambda: checkpoint.load_checkpoint(small_model(), path), "allow_pickle"
    )
