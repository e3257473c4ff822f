"""Checks of GLM: its model, its pretrained weights, ReCoRD and the questions of the small scale."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import checking
import cloze
import counts
import data
import h5py
import model
import numpy as np
import record
import sparse
import torch
from common.language import networks
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.suites.tiny_data import record as tiny

TINY = model.GLMConfig(50, 32, 2, 4, 24, init_std=0.3, embedding_init_std=0.3)


def hidden_after(change: int | None) -> Tensor:
    """Return the states of 8 tokens of text and 4 tokens of the answer, after changing one token."""
    torch.manual_seed(0)
    glm = model.GLM(TINY).eval()
    tokens = torch.arange(5, 17)[None]
    if change is not None:
        tokens[0, change] = 40
    places = torch.arange(12)[None]
    with torch.no_grad():
        return glm.hidden(tokens, places, torch.zeros_like(places), torch.tensor([8]))[0]


def changed_by(place: int) -> list[int]:
    difference = (hidden_after(place) - hidden_after(None)).abs().amax(1)
    return [token for token, size in enumerate(difference.tolist()) if size > 1e-5]


def check_text_attends_to_the_text_and_the_answer_to_the_text_and_to_earlier_tokens() -> None:
    assert changed_by(0) == changed_by(7) == list(range(12))
    assert changed_by(8) == [8, 9, 10, 11]
    assert changed_by(10) == [10, 11]


def check_the_stream_between_the_layers_has_the_precision_of_the_config() -> None:
    places = torch.arange(12)[None]
    for precision, expected in (("bf16", torch.bfloat16), ("fp16", torch.float32), ("fp32", torch.float32)):
        glm, outputs = model.GLM(replace(TINY, precision=precision)), []
        for layer in glm.transformer.layers:
            layer.register_forward_hook(lambda *passed, outputs=outputs: outputs.append(passed[-1]))
        with torch.autocast("cpu", torch.bfloat16):
            glm.hidden(places, places, torch.zeros_like(places), torch.tensor([8]))
        assert [output.dtype for output in outputs] == [expected] * 2, precision


def one_question() -> cloze.ClozeSet:
    """Return one text of ten symbols with its mask at 6, and answers of 2 and 1 tokens with their end symbols."""
    question = cloze.Example("mary sold books .", "bought", "cats .", ("4 2", "7"), frozenset({1}))
    return cloze.encode([question], counts.Words(), 16, 4)


def check_positions_have_two_dimensions() -> None:
    batch = cloze.collate(one_question(), torch.tensor([0]), 16, 4, 2)
    assert batch["text_length"].tolist() == [[10, 10]]
    assert batch["positions"][0, 0].tolist() == [*range(10), 6, 6, 6, 0, 0, 0]
    assert batch["spans"][0, 0].tolist() == [0] * 10 + [1, 2, 3, 0, 0, 0]
    assert batch["spans"][0, 1].tolist() == [0] * 10 + [1, 2, 0, 0, 0, 0]


def check_padding_is_not_counted_as_tokens() -> None:
    batch = cloze.collate(one_question(), torch.tensor([0]), 16, 4, 3)
    assert data.count_tokens(checking.context(), batch) == (13 + 12, 2 * 16, 3 * 16), "the third is padding"


def check_answer_follows_the_text_and_its_targets_are_one_on() -> None:
    words = counts.Words()
    batch = cloze.collate(one_question(), torch.tensor([0]), 16, 4, 2)
    (four, two), (seven,) = words.encode(["4 2", "7"])
    symbols = words.symbols
    assert batch["tokens"][0, 0, 6] == symbols.mask
    assert batch["tokens"][0, 0, 9:].tolist() == [symbols.pad, symbols.start, four, two, 0, 0, 0]
    assert batch["targets"][0].tolist() == [[four, two, symbols.end, -100], [seven, symbols.end, -100, -100]]
    assert batch["right"].tolist() == [[False, True]]


def check_long_text_keeps_its_query() -> None:
    question = cloze.Example("mary sold books and cats and dogs .", "bought", "cats .", ("4 2", "7"), frozenset({0}))
    encoded = cloze.encode([question], counts.Words(), 12, 4)
    words = counts.Words()
    expected = words.encode(["mary sold books bought"])[0], words.encode(["cats ."])[0]
    symbols = words.symbols
    assert encoded.texts.tolist() == [symbols.cls, *expected[0], symbols.mask, *expected[1], symbols.pad]
    whole = cloze.encode([question], words, 40, 4)
    assert len(whole.texts) == 14  # the control: a text that fits is not shortened


def check_score_is_the_sum_over_its_tokens() -> None:
    torch.manual_seed(1)
    ctx = checking.context()
    glm = model.create_model(ctx).eval()
    batch = next(iter(data.evaluation(ctx)))
    scores = cloze.scores(glm, batch, ctx.config.max_candidates)
    for example, candidate in [(0, 0), (3, 2), (7, 3)]:
        naive = naive_score(glm, batch, example, candidate)
        assert torch.allclose(scores[example, candidate], naive, atol=1e-4), (scores[example, candidate], naive)
    assert not torch.allclose(scores[0, 0], naive_score(glm, batch, 0, 1), atol=1e-4)


def naive_score(glm: Any, batch: dict[str, Any], example: int, candidate: int) -> Tensor:
    """Predict one token at a time, from the text and the earlier tokens only."""
    tokens, positions, spans = (batch[name][example, candidate] for name in ("tokens", "positions", "spans"))
    text = int(batch["text_length"][example, candidate])
    total = torch.zeros(())
    for place, target in enumerate(batch["targets"][example, candidate].tolist()):
        if target >= 0:
            shown = text + place + 1
            with torch.no_grad():
                states = glm.hidden(
                    tokens[None, :shown], positions[None, :shown], spans[None, :shown], torch.tensor([text])
                )
            logits = states[0, -1] @ glm.word_embeddings.weight.T
            total = total + logits.log_softmax(0)[target]
    return total


def check_padding_with_candidates_changes_no_score() -> None:
    torch.manual_seed(1)
    ctx = checking.context()
    glm = model.create_model(ctx).eval()
    questions = data.small(ctx.config, 6, 1, training=False)
    with torch.no_grad():
        narrow, wide = (cloze.collate(questions, torch.arange(6), 24, 3, group) for group in (2, 3))
        scores = [cloze.scores(glm, batch, group) for batch, group in ((narrow, 2), (wide, 3))]
    assert wide["valid"].tolist() == [[True] * 4 + [False] * 2] * 6
    assert torch.isinf(scores[1][:, 4:]).all()
    assert torch.allclose(scores[0], scores[1][:, :4], atol=1e-5)
    losses = [cloze.loss(scored, batch, 1.0) for scored, batch in zip(scores, (narrow, wide), strict=True)]
    assert torch.allclose(*losses, atol=1e-5)
    assert data.count_samples(ctx, wide) == 24


def check_only_attention_computes_padding() -> None:
    ctx = checking.context(synthetic=True, train_batch_size=64)  # texts of different lengths
    glm, batch = model.create_model(ctx), next(iter(data.train(ctx)))
    whole = {name: part for name, part in batch.items() if name != "rows"}
    used, _, computed = data.count_tokens(ctx, batch)
    _, _, padded = data.count_tokens(ctx, whole)
    assert used <= computed < used + cloze.ROUNDED < 0.9 * padded, (used, computed, padded)
    products, scores, gradients = [], [], []
    for given in (batch, whole):
        glm.zero_grad()
        with FlopCounterMode(display=False) as counter:
            scores.append(cloze.scores(glm, given, ctx.config.max_candidates))
        products.append(counter.get_flop_counts()["GLM.transformer"][torch.ops.aten.addmm])
        cloze.loss(scores[-1], given, 1.0).backward()
        gradients.append([parameter.grad for parameter in glm.parameters()])
    assert products[0] * padded == products[1] * computed, (products, computed, padded)
    assert torch.allclose(*scores, atol=1e-5)
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(*gradients, strict=True))
    wrong = {**batch, "rows": batch["rows"][1:]}  # the control: a token is left out
    assert not torch.allclose(cloze.scores(glm, wrong, ctx.config.max_candidates), scores[0], atol=1e-5)


def check_any_right_answer_is_correct_and_a_wrong_answer_is_not() -> None:
    right = torch.tensor([[True, False, True], [False, True, False]])
    batch: cloze.Batch = {"right": right}
    assert cloze.correct(torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]), batch).tolist() == [True, False]


def check_ranks_evaluate_each_example_once() -> None:
    for world_size in (1, 2, 3):
        orders = [data.shared_out(torch.full((400,), 4), 100, rank, world_size)(0) for rank in range(world_size)]
        every = torch.cat([chosen for order in orders for chosen in order])
        assert sorted(every.tolist()) == list(range(400))
    few = [data.shared_out(torch.full((2,), 4), 100, rank, 3)(0) for rank in range(3)]
    assert [len(order) for order in few] == [1, 1, 0]


def check_ranks_train_on_different_examples_in_equal_numbers() -> None:
    orders = [data.shuffled(103, 10, rank, 3, seed=5) for rank in range(3)]
    batches = [order(0) for order in orders]
    assert [len(order) for order in batches] == [3, 3, 3]
    every = torch.cat([chosen for order in batches for chosen in order]).tolist()
    assert len(set(every)) == 90
    assert torch.cat(orders[0](1)).tolist() != torch.cat(batches[0]).tolist()
    assert torch.cat(orders[0](0)).tolist() == torch.cat(batches[0]).tolist()
    checking.raises(ValueError, lambda: data.shuffled(10, 8, 0, 2, seed=5), "10", "8", "2", "train_batch_size")


def numbers_of(questions: cloze.ClozeSet) -> set[frozenset[tuple[int, ...]]]:
    """Return the pairs of numbers in the texts, each number as its two words, at positions 3, 4 and 8, 9."""
    starts = questions.text_start[questions.first[:-1]].tolist()
    texts = [questions.texts[start : start + 12].tolist() for start in starts]
    return {frozenset({tuple(text[3:5]), tuple(text[8:10])}) for text in texts}


def check_training_and_evaluation_share_no_pair_of_numbers() -> None:
    config = checking.context().config
    judged = numbers_of(data.small(config, config.eval_examples, data.EVAL_SEED, training=False))
    for seed in (1, 2):
        learnt = numbers_of(data.small(config, config.train_examples, seed, training=True))
        assert not learnt & judged
        assert len(learnt) > 1500
    assert len(judged) > 200
    again = numbers_of(data.small(config, config.eval_examples, 7, training=False))
    assert again & judged  # the control: the comparison finds common pairs


def check_right_candidate_answers_the_query_and_gives_no_hint() -> None:
    for candidates in (2, 4):
        examples = counts.examples(2000, 3, counts.ALL_PAIRS, candidates)
        for example in examples:
            (right,) = example.right
            number = counts.in_words(int(example.candidates[right].replace(" ", "")))
            verb, thing = example.before.split()[-1], example.after.split()[0]
            assert f" {verb} {number} {thing} " in example.passage, example
            assert len(set(example.candidates)) == candidates
        places = np.bincount([next(iter(example.right)) for example in examples], minlength=candidates) / len(examples)
        assert (np.abs(places - 1 / candidates) < 0.05).all(), places
        largest = np.mean([max(e.candidates) == e.candidates[next(iter(e.right))] for e in examples])
        assert abs(largest - 1 / candidates) < 0.05, largest


def check_same_seed_gives_the_same_data() -> None:
    config = checking.context().config
    first, again, other = (data.small(config, 50, seed, training=True) for seed in (1, 1, 2))
    assert torch.equal(first.texts, again.texts)
    assert torch.equal(first.right, again.right)
    assert not torch.equal(first.texts, other.texts)


def check_wrong_labels_are_those_of_another_example() -> None:
    questions = data.small(checking.context().config, 500, 1, training=True)
    changed = data.with_wrong_labels(questions, 1)
    examples = questions.first[:-1]
    assert (changed.text_start[examples] != questions.text_start[examples]).all()
    assert sorted(changed.text_start.tolist()) == sorted(questions.text_start.tolist())
    assert torch.equal(changed.right, questions.right)
    for pair in changed.text_start.view(500, 2).tolist():
        assert pair[0] == pair[1]  # the candidates of an example still share one text


def check_training_lines_have_few_candidates_and_the_right_one() -> None:
    tiny.write(checking.SCRATCH)
    questions = record.read(checking.SCRATCH / tiny.TRAIN_LINES, training=True, candidates=2, seed=1)
    for question in questions:
        assert len(question.candidates) == 2
        (right,) = question.right
        assert f"{question.before}{question.candidates[right]}" in question.passage
        assert f"{question.before}{question.candidates[1 - right]}" not in question.passage, "the control"


def check_sparse_matrices_are_read_by_columns_and_by_rows() -> None:
    dense = [[0, 5, 0], [7, 0, 8], [0, 0, 0], [1, 2, 3]]
    with h5py.File(checking.SCRATCH / "matrices.hdf5", "w") as file:
        for layout in ("csc", "csr", "coo"):
            tiny.save_matrix(file, layout, dense, layout)
        assert sparse.Rows(file["csc"]).dense().tolist() == sparse.Rows(file["csr"]).dense().tolist() == dense
        assert sparse.Rows(file["csc"]).dense(1, 4, 2).tolist() == dense[1::2]
        checking.raises(record.RecordError, lambda: sparse.Rows(file["coo"]), "/coo", "'coo'", "csc or csr")


def check_first_candidate_of_the_training_file_is_right() -> None:
    tiny.write(checking.SCRATCH)
    questions = sparse.read(checking.SCRATCH / tiny.TRAIN, training=True, vocab_size=30592, length=tiny.LENGTH)
    assert questions.right.nonzero().flatten().tolist() == questions.first[:-1].tolist()


def check_a_checkpoint_with_a_shorter_table_is_loaded() -> None:
    torch.manual_seed(0)
    saved, glm = model.GLM(TINY), model.GLM(TINY)
    weights = saved.state_dict()
    short = {name: table[:20] if name in model.TABLES else table for name, table in weights.items()}
    path = checking.SCRATCH / "model.pt"
    beside = {"iteration": 200000, "args": Namespace(lr=1e-5), "np_rng_state": np.random.get_state()}
    torch.save({"module": short, **beside}, path)
    kept = glm.transformer.position_embeddings.weight[20:].clone()
    networks.load(glm, path, "module", model.TABLES)
    assert torch.equal(glm.word_embeddings.weight, saved.word_embeddings.weight)
    assert torch.equal(glm.transformer.position_embeddings.weight[:20], weights[model.TABLES[0]][:20])
    assert torch.equal(glm.transformer.position_embeddings.weight[20:], kept)


def check_a_checkpoint_that_does_not_fit_is_an_error_with_all_reasons() -> None:
    glm = model.GLM(TINY)
    weights = {**glm.state_dict(), "mixins.weight": torch.zeros(1), "word_embeddings.weight": torch.zeros(9, 32)}
    del weights["transformer.final_layernorm.bias"]
    path = checking.SCRATCH / "wrong.pt"
    torch.save({"module": weights}, path)
    reasons = "missing: transformer.final_layernorm.bias", "unknown: mixins.weight", "[9, 32]", "[50, 32]"
    checking.raises(networks.CheckpointError, lambda: networks.load(glm, path, "module", model.TABLES), *reasons)
    torch.save({"model": {}}, path)
    checking.raises(
        networks.CheckpointError, lambda: networks.load(glm, path, "module", model.TABLES), "module", "model"
    )


def check_names_are_the_published_ones() -> None:
    names = set(model.GLM(TINY).state_dict())
    layer = "transformer.layers.1."
    parts = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    for part in (*parts, "input_layernorm", "post_attention_layernorm"):
        assert {f"{layer}{part}.weight", f"{layer}{part}.bias"} <= names
    assert {"word_embeddings.weight", *model.TABLES, "transformer.final_layernorm.weight"} <= names


def check_small_vocabulary_and_lengths_match_the_data() -> None:
    config = checking.context().config
    questions = data.small(config, 500, 1, training=True)
    assert config.vocab_size == counts.Words().size
    assert int(questions.text_length.max()) + int(questions.answer_length.max()) == config.max_seq_length
    assert int(questions.answer_length.max()) == config.max_answer_length
