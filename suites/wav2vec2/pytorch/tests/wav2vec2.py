"""Checks of Wav2Vec2: masks, the choice between frames, the codes, the loss and the metrics."""

from __future__ import annotations

import math
from typing import Any

import data
import loss
import masks
import model
import numpy as np
import torch
from checking import context, raises
from common.shares import Draw
from common.speech.audio import AudioError
from common.speech.recordings import Memory
from torch.nn import functional

COLD = torch.tensor(1e-3)
"""A temperature at which the choice of codes is nearly certain."""


def network(**settings: Any) -> Any:
    """Return the small network."""
    torch.manual_seed(3)
    return model.create_model(context("small", **settings))


def batch(count: int = 3) -> Any:
    """Return noise with masks, as tensors."""
    made = data._noise(context("small").config, count, np.random.default_rng(1))
    return data.Masked(*map(torch.from_numpy, made))


def check_masks_are_spans_and_always_as_many() -> None:
    rng = np.random.default_rng(1)
    for frames, share, span in ((781, 0.49, 10), (59, 0.49, 5), (99, 0.3, 10)):
        drawn = [masks.masked(frames, share, span, rng) for _ in range(50)]
        assert {len(one) for one in drawn} == {round(share * frames)}
        assert all((np.diff(one) > 0).all() and one[0] >= 0 and one[-1] < frames for one in drawn)
        runs = [part for one in drawn for part in np.split(one, np.flatnonzero(np.diff(one) > 1) + 1)]
        assert sum(len(run) < span for run in runs) <= 2 * len(drawn), "the last span may be cut, and be cut in two"
        assert len({tuple(one) for one in drawn}) == 50


def check_a_frame_is_never_among_its_others() -> None:
    others = masks.others(7, 2000, np.random.default_rng(1))
    assert [set(row) for row in others] == [set(range(7)) - {number} for number in range(7)]


def check_the_convolutions_make_the_frames_that_are_counted() -> None:
    for samples in (4800, 4801, 8000):
        features = network().convolutions(torch.zeros(1, samples))
        assert features.shape == (1, data.frames(context("small").config, samples), 48)
    assert data.frames(context("reference").config, 250_000) == 781


def check_a_masked_frame_is_unknown_to_the_encoder() -> None:
    """What lies behind a mask changes its right answer, not what is told about it."""
    some, given, seen = network().eval(), batch(1), []
    some.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        some(*given, COLD)
    hidden = seen[0]
    assert torch.equal(hidden[0, given.masked[0]], some.mask.expand(given.masked.shape[1], -1))
    free = torch.ones(hidden.shape[1], dtype=torch.bool).index_fill(0, given.masked[0], value=False)
    assert not (hidden[0, free] == some.mask).all(1).any()


def check_logits_are_cosines_with_the_right_frame_first() -> None:
    rng = torch.Generator().manual_seed(1)
    told, right = torch.randn(2, 5, 8, generator=rng), torch.randn(2, 5, 8, generator=rng)
    others = torch.from_numpy(np.stack([masks.others(5, 3, np.random.default_rng(seed)) for seed in (1, 2)]))
    found = model._similarities(told, right, others)
    for n in range(2):
        for m in range(5):
            frames = right[n, [m, *others[n, m].tolist()]]
            assert torch.allclose(found[n, m], functional.cosine_similarity(told[n, m][None], frames), atol=1e-6)
    same = model._same(torch.tensor([[[1, 2], [1, 2], [1, 3]]]), torch.tensor([[[1, 2], [0, 2], [0, 1]]]))
    assert same.tolist() == [[[True, False], [True, False], [False, False]]], "both codes must be equal"


def check_codes_are_those_of_the_greatest_chance() -> None:
    quantizer, features = network().quantizer.eval(), torch.randn(2, 6, 48)
    codes, choice, chances = quantizer(features, COLD)
    logits = quantizer.choose(features).view(2, 6, 2, 16)
    assert torch.equal(choice, logits.argmax(3))
    by_hand = torch.cat([quantizer.codes[book][choice[..., book]] for book in (0, 1)], 2)
    assert torch.allclose(codes, by_hand)
    assert torch.allclose(chances, logits.softmax(3).mean((0, 1)))
    torch.manual_seed(1)
    hot = [quantizer.train()(features, torch.tensor(2.0))[1] for _ in range(2)]
    assert not torch.equal(*hot), "training draws codes"


def check_the_gumbel_temperature_falls_to_its_last_value() -> None:
    ctx = context("small", gumbel_decay=0.5)
    values = []
    for step in (0, 1, 9):
        ctx.progress.step = step
        values.append(loss._gumbel(ctx).item())
    assert values == [2.0, 1.0, 0.5]


def check_the_loss_is_the_cross_entropy_plus_diversity_and_penalty() -> None:
    ctx, chances = context("small", penalty_weight=10.0), torch.full((2, 16), 1 / 16)
    answers = model.Answers(torch.zeros(1, 4, 21), torch.tensor(0.3), chances, chances)
    value = loss.calculate_loss(ctx, lambda *_: answers, batch(1))  # type: ignore[arg-type]
    assert math.isclose(value.item(), math.log(21) + 10 * 0.3, rel_tol=1e-5), "all codes are in use"
    collapsed = functional.one_hot(torch.zeros(2, dtype=torch.long), 16).float()
    value = loss.calculate_loss(ctx, lambda *_: answers._replace(chances=collapsed), batch(1))  # type: ignore[arg-type]
    assert math.isclose(value.item(), math.log(21) + 3 + 0.1 * (1 - 2 / 32), rel_tol=1e-5)


def check_the_metrics_do_not_depend_on_the_batches() -> None:
    ctx, some = context("small"), network().eval()
    parts = [batch(count) for count in (3, 1)]
    whole = data.Masked(*(torch.cat(part) for part in zip(*parts, strict=True)))
    sums = [loss.evaluate_batch(ctx, some, part) for part in (*parts, whole)]
    apart, together = (loss.summarize(ctx, total.tolist()) for total in (sums[0] + sums[1], sums[2]))
    assert apart.keys() == {"acc", "val_loss", "code_use"}
    assert all(math.isclose(apart[name], together[name], rel_tol=1e-4) for name in apart)


def check_collapsed_codes_are_seen() -> None:
    """With one code for all frames every answer counts as right: only the codes in use tell that nothing is learnt."""
    ctx, some = context("small"), network().eval()
    some.quantizer.choose.weight.data.zero_()
    some.quantizer.choose.bias.data[::16] = 1
    result = loss.summarize(ctx, loss.evaluate_batch(ctx, some, batch()).tolist())
    assert result["acc"] == 1, "as in FlagPerf: the others are no wrong answers"
    assert result["code_use"] == 2 / 32
    healthy = loss.summarize(ctx, loss.evaluate_batch(ctx, network().eval(), batch()).tolist())
    assert healthy["acc"] < 0.5, "the control"
    assert healthy["code_use"] > 0.1, "the control"


def check_recordings_are_cut_to_a_length_and_too_short_ones_left_out() -> None:
    config = context("small", lengths=[4800, 6000]).config
    clips = [np.arange(size, dtype=np.float32) for size in (4799, 4800, 5999, 6000, 9000)]
    reader = data.Reader(Memory(clips), config, seed=1)
    assert reader.lengths.tolist() == [4800, 4800, 6000, 6000]
    first, again, other = (reader[Draw(epoch, np.array([3]))].audio[0] for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert first[0] != other[0]
    assert (np.diff(first) == 1).all()
    raises(AudioError, lambda: data.Reader(Memory(clips[:1]), config, seed=1), "no recording has 4800 samples or more")


def check_the_control_trains_on_noise_and_evaluates_speech() -> None:
    honest, control = (context("small", shuffle_labels=on) for on in (False, True))
    speech, noise = (next(iter(data.create_train_data(ctx))).audio for ctx in (honest, control))
    assert 0.7 < noise.std() / speech.std() < 1.4
    assert not np.array_equal(speech, noise)
    evaluations = [next(iter(data.create_eval_data(ctx))) for ctx in (honest, control)]
    assert all(np.array_equal(*pair) for pair in zip(*evaluations, strict=True))
