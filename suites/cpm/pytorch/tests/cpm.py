"""Checks of CPM: its model, its metric, and the questions of the small scale."""

from __future__ import annotations

import checking
import data
import lines
import model
import numpy as np
import questions
import torch
from common.shares import Draw
from lines import IGNORED
from torch import Tensor

from flagperf_driver.pytorch import device as devices

PAD, ANSWER, END = 0, 1, 2
ROWS = [[5, 6, ANSWER, 7, END], [8, ANSWER, 9, 10, END]]
TEXTS = lines.join(ROWS, [3, 2], 6, PAD)


def tiny(**settings: object) -> model.CPM:
    torch.manual_seed(0)
    return model.CPM(checking.context(init_std=0.3, embedding_init_std=0.3, **settings).config)


def states(tokens: list[int]) -> Tensor:
    """Return what the head reads."""
    network, read = tiny().eval(), []
    network.transformer.register_forward_hook(lambda *given: read.append(given[-1]))
    with torch.no_grad():
        network(torch.tensor([tokens]), torch.tensor([tokens]))
    return read[0][0]


def check_a_token_changes_only_what_follows() -> None:
    tokens = list(range(5, 15))
    other = [*tokens[:6], 30, *tokens[7:]]
    changed = (states(tokens) - states(other)).abs().amax(1) > 1e-5
    assert changed.tolist() == [place >= 6 for place in range(10)]


def check_padding_changes_no_loss() -> None:
    network = tiny()
    one = TEXTS[Draw(0, np.array([0]))]
    tokens, targets = torch.from_numpy(one.tokens), torch.from_numpy(one.targets)
    padded = network(tokens, targets)
    assert torch.allclose(padded, network(tokens[:, :4], targets[:, :4]))
    assert not torch.allclose(padded, network(tokens[:, :3], targets[:, :3]))  # the control: a target is missing


def check_only_answers_are_targets() -> None:
    batch = TEXTS[Draw(0, np.array([1, 0]))]
    assert batch.tokens.tolist() == [[8, ANSWER, 9, 10, END, PAD], [5, 6, ANSWER, 7, END, PAD]]
    i = IGNORED
    assert batch.targets.tolist() == [[i, 9, 10, END, i, i], [i, i, 7, END, i, i]]


def check_other_targets_are_those_of_another_text() -> None:
    other = TEXTS.with_other_targets(1)[Draw(0, np.array([1, 0]))]
    i = IGNORED
    assert other.tokens.tolist() == TEXTS[Draw(0, np.array([1, 0]))].tokens.tolist()
    assert other.targets.tolist() == [[i, 7, END, i, i, i], [i, i, 9, 10, i, i]]


def check_the_metric_is_computed_as_by_hand() -> None:
    """The control: the same by hand for each text, with a text whose answer is right and one whose answer is wrong."""
    ctx, network = checking.context(), tiny().eval()
    batch = devices.to_device(TEXTS[Draw(0, np.array([0, 1]))], ctx.device)
    table = network.word_embeddings.weight.detach()
    logits = torch.randn(2, 6, len(table), generator=torch.Generator().manual_seed(1))
    logits[0].scatter_(1, batch.targets[0].clamp(min=0)[:, None], 99.0)
    with torch.no_grad():
        sums = network._judge(logits, batch.targets).tolist()
    cosines, losses = [], 0.0
    for scores, targets in zip(logits, batch.targets, strict=True):
        counted = targets != IGNORED
        guessed, meant = (table[chosen[counted]].sum(0) for chosen in (scores.argmax(1), targets))
        cosines.append(float(guessed @ meant / guessed.norm() / meant.norm()))
        losses -= float(scores.log_softmax(1)[counted].gather(1, targets[counted][:, None]).sum())
    assert abs(cosines[0] - 1) < 1e-5
    assert cosines[1] < 0.9
    metrics = model.summarize(ctx, sums)
    assert abs(metrics["embedding_average"] - sum(cosines) / 2) < 1e-5, (metrics, cosines)
    assert abs(metrics["token_loss"] - losses / 5) < 1e-4
    assert (metrics["exact_answers"], metrics["texts"]) == (0.5, 2)


def check_ranks_evaluate_each_question_once() -> None:
    found = []
    for rank in range(3):
        ctx = checking.context(rank=rank, world_size=3, eval_batch_size=40)
        found += [tuple(row) for batch in data.create_eval_data(ctx) for row in batch.tokens.tolist()]
    assert len(found) == len(set(found)) == checking.context().config.eval_questions


def check_training_and_evaluation_share_no_question() -> None:
    ctx = checking.context()
    train, evaluation = (
        {tuple(row) for batch in create(ctx) for row in batch.tokens.tolist()}
        for create in (data.create_train_data, data.create_eval_data)
    )
    assert len(train) > 4000
    assert not train & evaluation


def check_answers_are_right() -> None:
    sums, greater, days, months = map(dict, questions.everything())
    assert sums["十七加八等于几"] == "二十五"
    assert greater["九十和十九哪个大"] == "九十"
    assert days["今天星期三，五天后星期几"] == "星期一"
    assert months["现在是十一月，三个月后是几月"] == "二月"


def check_small_vocabulary_and_length_match_the_questions() -> None:
    config, characters = checking.context().config, questions.Characters()
    longest = max(len(characters.encode(question)) for kind in questions.everything() for question in kind)
    assert config.vocab_size == characters.size
    assert config.seq_length == config.positions == longest - 1
