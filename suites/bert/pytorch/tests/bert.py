"""Checks of BERT: its model, its checkpoint, MLPerf's shards and the text of the small scale."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import checking
import checkpoint
import h5py
import model
import numpy as np
import torch
from common.language import mlperf_shards as shards
from common.language import pretraining
from common.language import wikipedia as text

from flagperf_driver.pytorch.device import to_device

LENGTH, PREDICTIONS = 12, 3


def write_shard(path: Path, first: int, rows: int, **changed: Any) -> None:
    """Write a shard whose samples are identified by their second token."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids: Any = np.full((rows, LENGTH), 7, np.int32)
    ids[:, 1] = np.arange(first, first + rows)
    arrays = {
        "input_ids": ids, "segment_ids": np.zeros((rows, LENGTH), np.int8),
        "input_mask": np.ones((rows, LENGTH), np.int8),
        "masked_lm_positions": np.tile(np.array([2, 5, 0], np.int32), (rows, 1)),
        "masked_lm_ids": np.tile(np.array([11, 12, 0], np.int32), (rows, 1)),
        "next_sentence_labels": np.zeros(rows, np.int8), **changed,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)


def shard_context(folder: str, **more: Any) -> Any:
    """Return a context that reads the folder's tiny shards."""
    settings = {
        "train_data": folder, "eval_data": folder, "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS, "train_batch_size": 4, "eval_batch_size": 4,
    }  # fmt: skip
    return checking.context("reference", **{**settings, **more})


def numbers(batches: Iterable[pretraining.Batch]) -> list[int]:
    """Return the samples' numbers in order."""
    return [int(number) for batch in batches for number in batch["input_ids"][:, 1]]


# -- masking and the small text


def check_masking_has_berts_statistics() -> None:
    rng = np.random.default_rng(3)
    sequences = rng.integers(text.FIRST, text.VOCABULARY, (20_000, 24))
    sequences[:, [0, 11, 23]] = text.SEP
    inputs, positions, labels = text.mask(sequences, 4, rng)
    seen = np.take_along_axis(inputs, positions, 1)
    assert (np.diff(positions, axis=1) > 0).all(), "a position is masked twice"
    assert not np.isin(positions, [0, 11, 23]).any(), "a special token is masked"
    assert (np.take_along_axis(sequences, positions, 1) == labels).all()
    elsewhere = np.ones_like(sequences, bool)
    np.put_along_axis(elsewhere, positions, False, 1)
    assert (inputs == sequences)[elsewhere].all(), "a token that is not predicted was changed"
    shares = [(seen == text.MASK).mean(), (seen == labels).mean()]
    kept = 0.1 + 0.1 / (text.VOCABULARY - text.FIRST)  # the other character may be the same by chance
    assert np.allclose(shares, [0.8, kept], atol=0.006), shares
    counts = np.bincount(positions.ravel(), minlength=24)[[i for i in range(24) if i not in (0, 11, 23)]]
    assert counts.min() > 0.9 * counts.max(), "positions are not equally likely"


def check_text_is_encoded_to_the_alphabet() -> None:
    ids = text.encode("Ab,  Ç\n1z.")
    plain = "".join(text.ALPHABET[i - text.FIRST] for i in ids)
    assert plain == "ab, z.", plain


def check_train_and_eval_text_do_not_overlap() -> None:
    train, held_out = text.read_text(text.FILE)
    assert train.endswith("\n"), "the text is not split between paragraphs"
    assert 0.09 < len(held_out) / (len(train) + len(held_out)) < 0.11
    paragraphs = {line for line in train.splitlines() if len(line) > 80}
    leaked = [line for line in held_out.splitlines() if line in paragraphs]
    assert not leaked, f"{len(leaked)} paragraphs are in both: {leaked[:2]}"
    assert next(iter(paragraphs)) in train  # the control: the comparison finds paragraphs of the training text


def check_text_shares_are_disjoint_and_repeatable() -> None:
    def rows(rank: int, world: int, epoch: int = 0) -> list[int]:
        part = text.TrainText(checking.context(rank=rank, world_size=world, train_batch_size=512))
        part.rows = np.arange(100, 4100).reshape(-1, 1).repeat(21, 1)  # each row has its own character
        part.set_epoch(epoch)
        batches = list(part)
        assert len(batches) == len(part) == 4000 // (512 * world)
        return [int(row) for batch in batches for row in batch["input_ids"][:, 1:11].max(1)]

    assert len(set(rows(0, 2)) | set(rows(1, 2))) == 2 * 3 * 512
    assert not set(rows(0, 2)) & set(rows(1, 2))
    assert rows(0, 2) == rows(0, 2) != rows(0, 2, epoch=1)
    once, again, other = (next(iter(text.TrainText(checking.context(seed=seed)))) for seed in (1, 1, 2))
    assert all((once[name] == again[name]).all() for name in once)
    assert (once["input_ids"] != other["input_ids"]).any()


def check_eval_text_is_the_same_for_all_seeds_and_world_sizes() -> None:
    def whole(world: int, seed: int) -> Any:
        parts = [text.EvalText(checking.context(rank=rank, world_size=world, seed=seed)) for rank in range(world)]
        return np.concatenate([batch["input_ids"] for part in parts for batch in part])

    one = whole(1, 1)
    assert len(one) == checking.context().config.num_eval_samples
    assert all((one == whole(world, seed)).all() for world, seed in ((2, 2), (3, 3)))


def check_shuffled_text_keeps_letters_and_loses_context() -> None:
    plain = text.TrainText(checking.context()).rows.ravel()
    shuffled = text.TrainText(checking.context(shuffle_labels=True)).rows.ravel()

    t, h = text.encode("th")

    def share_of_th(ids: Any) -> float:
        return float(((ids[:-1] == t) & (ids[1:] == h)).mean())

    histogram, of_shuffled = (np.bincount(ids) / len(ids) for ids in (plain, shuffled))
    assert np.allclose(histogram, of_shuffled, atol=1e-3)
    by_chance = histogram[t] * histogram[h]
    assert abs(share_of_th(shuffled) / by_chance - 1) < 0.1
    assert share_of_th(plain) > 3 * by_chance, "the control"


# -- MLPerf's shards


def check_shards_are_read_once_in_disjoint_equal_shares() -> None:
    for i in range(3):
        write_shard(checking.SCRATCH / "train" / f"part_{i}_of_3.hdf5", 100 * i, 20 + i)
    for world in (1, 2, 3):
        parts = [
            numbers(shards.TrainShards(shard_context("train", rank=rank, world_size=world))) for rank in range(world)
        ]
        together = list(itertools.chain(*parts))
        assert len({len(part) for part in parts}) == 1, "ranks make unequal numbers of steps"
        assert len(set(together)) == len(together), "a sample is read twice"
        assert len(together) > 63 - 7 * world, together


def check_shard_order_follows_seed_and_epoch() -> None:
    def order(epoch: int = 0, **more: Any) -> list[int]:
        reader = shards.TrainShards(shard_context("order", **more))
        reader.set_epoch(epoch)
        return numbers(reader)

    for i in range(3):
        write_shard(checking.SCRATCH / "order" / f"{i}.hdf5", 100 * i, 20)
    assert order() == order()
    assert sorted(order()) == sorted(order(1)) == sorted(order(seed=7))
    assert order() != order(1) != order(seed=7)


def check_blocks_smaller_than_a_file_lose_nothing() -> None:
    write_shard(checking.SCRATCH / "blocks" / "0.hdf5", 0, 40)
    with mock.patch.object(shards, "BLOCK", 7):
        read = numbers(shards.TrainShards(shard_context("blocks")))
    assert sorted(read) == list(range(40)) != read


def check_shard_batches_mark_missing_predictions() -> None:
    write_shard(checking.SCRATCH / "marks" / "0.hdf5", 0, 8)
    batch = next(iter(shards.TrainShards(shard_context("marks"))))
    assert batch["labels"].tolist() == [[11, 12, model.IGNORED]] * 4
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}
    assert batch["next_sentence_labels"].shape == (4,)


def check_eval_shares_contain_each_sample_once() -> None:
    write_shard(checking.SCRATCH / "eval" / "a.hdf5", 0, 9)
    write_shard(checking.SCRATCH / "eval" / "b.hdf5", 9, 9)
    for world in (1, 2, 3, 7, 20):
        parts = [
            shards.EvalShards(shard_context("eval", rank=rank, world_size=world, num_eval_samples=18))
            for rank in range(world)
        ]
        assert list(itertools.chain(*map(numbers, parts))) == list(range(18)), world


def check_shards_of_another_layout_are_errors() -> None:
    wide, ragged = (checking.SCRATCH / name / "0.hdf5" for name in ("wide", "ragged"))
    write_shard(wide, 0, 4, input_ids=np.zeros((4, 99), np.int32))
    write_shard(ragged, 0, 4)
    rows: Any = np.empty(4, object)
    rows[:] = [np.arange(n, dtype=np.int32) for n in (3, 4, 5, 6)]
    with h5py.File(ragged, "a") as file:
        del file["input_ids"]
        file.create_dataset("input_ids", data=rows, dtype=h5py.vlen_dtype(np.int32))
    reads = [functools.partial(list, shards.TrainShards(shard_context(name))) for name in ("wide", "ragged")]
    checking.raises(shards.ShardError, reads[0], "0.hdf5", "input_ids has shape (4, 99)", str(LENGTH))
    checking.raises(shards.ShardError, reads[1], "variable length")


def check_shuffled_shard_labels_belong_to_other_samples() -> None:
    labels: Any = np.arange(1, 1 + 8 * PREDICTIONS, dtype=np.int32).reshape(8, PREDICTIONS)
    write_shard(checking.SCRATCH / "labels" / "0.hdf5", 0, 8, masked_lm_ids=labels)

    def pairs(**more: Any) -> set[tuple[int, int]]:
        batches = shards.TrainShards(shard_context("labels", **more))
        return {
            (int(number), int(label))
            for batch in batches
            for number, row in zip(batch["input_ids"][:, 1], batch["labels"], strict=True)
            for label in row
            if label != model.IGNORED
        }

    true, shuffled = pairs(), pairs(shuffle_labels=True)
    assert len(true) == len(shuffled) == 16
    assert {label for _, label in true} == {label for _, label in shuffled}
    assert len(true & shuffled) < 8


# -- the model


def small_model() -> Any:
    torch.manual_seed(0)
    return model.create_model(checking.context()).eval()


def small_batch() -> dict[str, torch.Tensor]:
    ctx = checking.context()
    batch: dict[str, torch.Tensor] = to_device(next(iter(pretraining.create_train_data(ctx))), ctx.device)
    return batch


def check_only_a_batch_with_padding_has_a_mask() -> None:
    """The loss of full sequences is the same without the mask, which keeps flash kernels away."""
    ctx, net = checking.context(), small_model()
    full = next(iter(pretraining.create_train_data(ctx)))
    padded = {**full, "input_mask": full["input_mask"].copy()}
    padded["input_mask"][-1, -1] = 0
    prepared = [model.prepare_batch(ctx, batch) for batch in (full, padded)]
    assert ["input_mask" in batch for batch in prepared] == [False, True]
    tokens = full["input_mask"].size
    counted = [pretraining.count_tokens(ctx, batch) for batch in (full, padded)]
    assert counted == [(tokens, tokens, tokens), (tokens - 1, tokens, tokens)]
    with torch.no_grad():
        without, with_mask, with_padding = (
            net(batch) for batch in (prepared[0], to_device(full, ctx.device), prepared[1])
        )
    torch.testing.assert_close(without, with_mask)
    assert not torch.equal(with_padding, with_mask), "the control: the mask of a padded batch is used"
    assert "input_mask" in full, "prepare_batch does not change the batch of the data"


def check_the_stream_between_the_layers_has_the_precision_of_the_config() -> None:
    for precision, expected in (("bf16", torch.bfloat16), ("fp16", torch.float32), ("fp32", torch.float32)):
        outputs, net = [], model.create_model(checking.context(precision=precision))
        for layer in net.net.bert.encoder.layer:
            layer.register_forward_hook(lambda *passed, outputs=outputs: outputs.append(passed[-1]))
        with torch.autocast("cpu", torch.bfloat16):
            net(small_batch())
        assert {output.dtype for output in outputs} == {expected}, precision


def check_gathered_head_equals_the_full_head() -> None:
    net, batch = small_model(), small_batch()
    with torch.no_grad():
        hidden = net.net.bert(batch["input_ids"], token_type_ids=batch["segment_ids"]).last_hidden_state
        rows = torch.arange(len(hidden))[:, None]
        full = net.net.cls.predictions(hidden)[rows, batch["positions"]]
        gathered = net.net.cls.predictions(model.gather(hidden, batch["positions"]))
        elsewhere = net.net.cls.predictions(model.gather(hidden, batch["positions"] - 1))
        right = int((full.argmax(-1) == batch["labels"]).sum())
        sums = net(batch, counting=True).tolist()
    torch.testing.assert_close(gathered, full)
    assert not torch.allclose(gathered, elsewhere)
    assert sums == [right, batch["labels"].numel()]


def check_padding_is_not_attended_to() -> None:
    net, batch = small_model(), small_batch()
    batch["input_mask"][:, 20:] = 0
    batch["positions"].clamp_(max=19)
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][:, 20:] = text.PAD
    with torch.no_grad():
        torch.testing.assert_close(net(batch), net(other))
        full = torch.ones_like(batch["input_mask"])
        assert abs(float(net({**batch, "input_mask": full}) - net({**other, "input_mask": full}))) > 1e-4


def check_ignored_predictions_do_not_count() -> None:
    net, batch = small_model(), small_batch()
    fewer = {**batch, "positions": batch["positions"].clone(), "labels": batch["labels"].clone()}
    fewer["labels"][:, 2:] = model.IGNORED
    with torch.no_grad():
        assert int(net(fewer, counting=True)[1]) == 2 * len(batch["labels"])
        before = net(fewer)
        fewer["positions"][:, 2:] = 0
        torch.testing.assert_close(net(fewer), before)
        assert not torch.allclose(net(batch), before)


# -- initial weights


def saved(name: str, content: object) -> Path:
    path = checking.SCRATCH / name
    torch.save(content, path)
    return path


def with_original_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    places = {
        "intermediate.dense.": "intermediate.dense_act.", "transform.dense.": "transform.dense_act.",
        "pooler.dense.": "pooler.dense_act.", "self.query.weight": "multi_head_attention.q_weight",
        "attention.output.LayerNorm": "attention.layer_norm",
    }  # fmt: skip

    def name(old: str) -> str:
        for ours, theirs in places.items():
            old = old.replace(ours, theirs)
        return ("module.bert_model_segment." if old.startswith("bert") else "module.heads_only_segment.") + old

    return {name(key): tensor for key, tensor in weights.items()}


def check_both_checkpoint_layouts_load() -> None:
    weights = small_model().net.state_dict()
    layouts = {
        "plain.pt": weights,
        "original.pt": {"model": with_original_names(weights), "epoch": 3},
        "unrounded.pt": {key: tensor[:33] if tensor.shape[0] == 40 else tensor for key, tensor in weights.items()},
    }
    for name, content in layouts.items():
        saved(name, content)
        torch.manual_seed(1)
        loaded = model.create_model(checking.context(init_checkpoint=name)).net
        assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
        for key, tensor in loaded.state_dict().items():
            theirs = weights[key]
            assert (tensor[:33] == theirs[:33]).all() if theirs.shape[0] == 40 else (tensor == theirs).all(), key


def check_checkpoints_that_do_not_fit_are_errors_with_reasons() -> None:
    net = small_model().net
    weights = dict(net.state_dict())
    incomplete = {key: tensor for key, tensor in weights.items() if "layer.1" not in key}
    cases: list[tuple[object, list[str]]] = [
        (incomplete, ["16 missing", "bert.encoder.layer.1", "8 more"]),
        ({**weights, "bert.extra.weight": torch.zeros(1)}, ["1 unexpected: bert.extra.weight"]),
        ({**weights, "bert.pooler.dense.bias": torch.zeros(65)}, ["another shape", "(65,), expected (64,)"]),
        ([1, 2], ["got a list"]),
    ]
    for content, words in cases:
        path = saved("misfit.pt", content)
        checking.raises(
            checkpoint.BertCheckpointError,
            functools.partial(checkpoint.load_checkpoint, net, path),
            "misfit.pt",
            *words,
        )


def check_a_checkpoint_runs_no_code() -> None:
    path = saved("code.pt", {"model": SimpleNamespace(weights=1)})
    checking.raises(Exception, lambda: checkpoint.load_checkpoint(small_model().net, path), "weights_only")
