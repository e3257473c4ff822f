"""Checks of BERT in MindSpore: its heads, its mask and its checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import checking
import checkpoint
import mindspore as ms
import model
import numpy as np
from common.language import bert_weights, pretraining
from common.language import wikipedia as text

from flagperf_driver.mindspore.steps import prepare_batch


def small_model(**settings: Any) -> Any:
    ms.set_seed(0)
    net = model.create_model(checking.context(**settings))
    net.set_train(False)
    return net


def small_batch() -> dict[str, Any]:
    return dict(next(iter(pretraining.create_train_data(checking.context()))))


def result(step: Any, net: Any, arrays: dict[str, Any]) -> Any:
    ctx = checking.context()
    return step(ctx, net, prepare_batch(ctx, arrays)).asnumpy()


loss = functools.partial(result, model.calculate_loss)
counts = functools.partial(result, model.evaluate_batch)


def scores(net: Any, arrays: dict[str, Any]) -> Any:
    batch = prepare_batch(checking.context(), arrays)
    of_words, _ = net(batch["input_ids"], batch["segment_ids"], batch["input_mask"], batch["positions"])
    return of_words.asnumpy().reshape(*arrays["positions"].shape, -1)


def check_gathered_scores_are_those_of_all_positions() -> None:
    net, batch = small_model(), small_batch()
    places = batch["positions"]
    all_places = np.arange(batch["input_ids"].shape[1])[None].repeat(len(places), 0)
    full = scores(net, {**batch, "positions": all_places})[np.arange(len(places))[:, None], places]
    np.testing.assert_allclose(scores(net, batch), full, atol=1e-5)
    assert not np.allclose(scores(net, {**batch, "positions": places - 1}), full)
    assert counts(net, batch).tolist() == [int((full.argmax(-1) == batch["labels"]).sum()), places.size]


def check_padding_is_not_attended_to() -> None:
    net, batch = small_model(), small_batch()
    mask, tokens = batch["input_mask"].copy(), batch["input_ids"].copy()
    mask[:, 20:], tokens[:, 20:] = 0, text.PAD
    batch["positions"] = batch["positions"].clip(max=19)
    other = {**batch, "input_ids": tokens}
    masked = [loss(net, {**each, "input_mask": mask}) for each in (batch, other)]
    np.testing.assert_allclose(*masked, rtol=1e-5)
    assert abs(float(loss(net, batch) - loss(net, other))) > 1e-4


def check_ignored_predictions_do_not_count() -> None:
    net, batch = small_model(), small_batch()
    fewer = {**batch, "positions": batch["positions"].copy(), "labels": batch["labels"].copy()}
    fewer["labels"][:, 2:] = model.IGNORED
    assert int(counts(net, fewer)[1]) == 2 * len(batch["labels"])
    before = loss(net, fewer)
    fewer["positions"][:, 2:] = 0
    np.testing.assert_allclose(loss(net, fewer), before, rtol=1e-6)
    assert not np.allclose(loss(net, batch), before)


def check_dropout_is_for_training_only() -> None:
    net = small_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    batch = small_batch()
    assert loss(net, batch) == loss(net, batch)
    net.set_train(True)
    assert loss(net, batch) != loss(net, batch)


# -- initial weights


def saved(name: str, weights: dict[str, Any]) -> Path:
    path = checking.SCRATCH / name
    ms.save_checkpoint([{"name": key, "data": ms.Tensor(array)} for key, array in weights.items()], str(path))
    return path


def stored(net: Any) -> dict[str, Any]:
    return {checkpoint.standard(weight.name): weight.asnumpy().copy() for weight in net.trainable_params()}


def with_makers_names(weights: dict[str, Any], *, new: bool) -> dict[str, Any]:
    after = "bert.bert.bert_embedding_postprocessor."
    places = {
        "bert.embeddings.word_embeddings.weight": "bert.bert.bert_embedding_lookup.embedding_table",
        "bert.embeddings.token_type_embeddings.weight": after
        + ("token_type_embedding.embedding_table" if new else "embedding_table"),
        "bert.embeddings.position_embeddings.weight": after
        + ("full_position_embedding.embedding_table" if new else "full_position_embeddings"),
        "bert.embeddings.": after, "bert.encoder.layer.": "bert.bert.bert_encoder.layers.",
        "attention.self.query": "attention.attention.query_layer",
        "attention.self.key": "attention.attention.key_layer",
        "attention.self.value": "attention.attention.value_layer", "intermediate.dense.": "intermediate.",
        "cls.predictions.transform.": "bert.cls1.", "cls.predictions.bias": "bert.cls1.output_bias",
        "cls.seq_relationship.": "bert.cls2.dense.", "bert.pooler.": "bert.bert.",
        "LayerNorm.weight": "layernorm.gamma", "LayerNorm.bias": "layernorm.beta",
    }  # fmt: skip

    def name(old: str) -> str:
        for ours, theirs in places.items():
            old = old.replace(ours, theirs)
        return old

    return {name(key): array for key, array in weights.items()}


def check_all_checkpoint_layouts_load() -> None:
    weights = stored(small_model())
    state = {"global_step": np.zeros(1, np.float32), "lamb_m.bert.bert.dense.weight": np.zeros((64, 64), np.float32)}
    layouts = {
        "plain.ckpt": weights,
        "maker.ckpt": {**with_makers_names(weights, new=True), **state},
        "maker_old.ckpt": with_makers_names(weights, new=False),
        "unrounded.ckpt": {key: array[:33] if array.shape[0] == 40 else array for key, array in weights.items()},
    }
    for name, content in layouts.items():
        saved(name, content)
        ms.set_seed(1)
        ctx = checking.context(init_checkpoint=name)
        loaded = stored(model.create_model(ctx))
        for key, array in loaded.items():
            rows = 33 if array.shape[0] == 40 else len(array)
            assert (array[:rows] == weights[key][:rows]).all(), key
    ms.set_seed(1)
    other = stored(model.create_model(checking.context()))["bert.pooler.dense.weight"]
    assert not (other == weights["bert.pooler.dense.weight"]).all(), "the control: without a checkpoint"


def check_checkpoints_that_do_not_fit_are_errors_with_reasons() -> None:
    net = small_model()
    weights = stored(net)
    incomplete = {key: array for key, array in weights.items() if "layer.1" not in key}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (incomplete, ["16 missing", "bert.encoder.layer.1", "8 more"]),
        ({**weights, "bert.extra.weight": np.zeros(1, np.float32)}, ["1 unexpected: bert.extra.weight"]),
        ({**weights, "bert.pooler.dense.bias": np.zeros(65, np.float32)}, ["another shape", "(65,), expected (64,)"]),
    ]
    for content, words in cases:
        path = saved("misfit.ckpt", content)
        call = functools.partial(checkpoint.load_checkpoint, net, path)
        checking.raises(bert_weights.BertCheckpointError, call, "misfit.ckpt", *words)
