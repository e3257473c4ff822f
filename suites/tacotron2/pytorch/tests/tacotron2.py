"""Checks of Tacotron 2: its encoder, its decoder, the texts, the loss and the metric."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import data
import model
import numpy as np
import text
import torch
from checking import context, raises
from common.shares import Draw
from common.speech.audio import AudioError
from torch import nn

TINY = {
    "mels": 3, "encoder_channels": 8, "attention_channels": 4, "location_filters": 2, "location_kernel": 3,
    "prenet_channels": 5, "decoder_channels": 6, "postnet_channels": 4, "dropout": 0.0, "compiled_steps": 4,
}  # fmt: skip


def network(**settings: Any) -> Any:
    """Return a small network; by default without dropout."""
    torch.manual_seed(3)
    return model.create_model(context("small", **{**TINY, **settings})).eval()


def inputs(count: int = 2, length: int = 6, frames: int = 9) -> tuple[torch.Tensor, ...]:
    """Return texts, their lengths and spectrograms."""
    generator = torch.Generator().manual_seed(5)
    characters = torch.randint(1, 50, (count, length), generator=generator)
    return characters, torch.arange(length, length - count, -1), torch.randn(count, 3, frames, generator=generator)


def check_the_encoder_reads_both_ways_within_each_text() -> None:
    encoder = network().encoder
    both = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
    for end, lstm in (("", encoder.forwards), ("_reverse", encoder.backwards)):
        for name, value in lstm.named_parameters():
            getattr(both, name + end).data.copy_(value)
    characters, lengths, _ = inputs()
    features = encoder.convolutions(encoder.embedding(characters))
    packed = nn.utils.rnn.pack_padded_sequence(features, lengths, batch_first=True)
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    read = encoder(characters, lengths, torch.arange(6) >= lengths[:, None])
    assert torch.allclose(read, expected, atol=1e-6)
    assert not torch.allclose(both(features)[0], expected, atol=1e-3), "the control: filler that is read"


def check_how_many_steps_are_one_graph_changes_nothing() -> None:
    one, other, compiled = network(), network(compiled_steps=50), network()
    compiled.steps.compile(backend="aot_eager", fullgraph=True)
    spoken = [again(*inputs()) for again in (one, other, compiled)]
    for which in (1, 2):
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(spoken[0], spoken[which], strict=True))
    assert spoken[0].frames.shape == (2, 3, 9)
    assert spoken[0].ends.shape == (2, 5), "two frames in a step"


def check_cuda_graphs_keep_the_outputs_of_a_whole_forward_pass() -> None:
    marks = {}
    for mode in ("default", "reduce-overhead"):
        some = model.compile_model(context("small", compile_mode=mode), network())
        calls: list[Any] = []
        some.steps.register_forward_pre_hook(lambda *_, calls=calls: calls.append("steps"))
        mark = mock.patch("torch.compiler.cudagraph_mark_step_begin", lambda calls=calls: calls.append("mark"))
        with mark, torch.compiler.set_stance("force_eager"), torch.no_grad():
            some(*inputs())
        marks[mode] = calls
    assert marks["default"] == 2 * ["steps"], "5 steps, 4 in a call; no CUDA graphs"
    assert marks["reduce-overhead"] == ["mark", "steps", "steps"]


def check_a_frame_depends_on_earlier_frames_only() -> None:
    characters, lengths, mel = inputs()
    changed = mel.clone()
    changed[..., 4] += 1
    before, after = (network()(characters, lengths, one).frames for one in (mel, changed))
    differs = (before != after).any(1).any(0).tolist()
    assert differs == 6 * [False] + 3 * [True], "frame 4 is heard before the step that says the frames 6 and 7"


def check_the_attention_reads_the_text_and_not_its_filler() -> None:
    attention = network()(*inputs()).attention
    assert torch.allclose(attention.sum(2), torch.ones(2, 5))
    assert not attention[1, :, 5].any()
    assert attention[0, :, 5].all(), "the control: a longer text"


def check_the_prenet_has_dropout_in_evaluation_too() -> None:
    some = network(dropout=0.5)
    assert not torch.equal(some(*inputs()).frames, some(*inputs()).frames)
    assert torch.equal(*(network()(*inputs()).frames for _ in range(2)))


def batch(ctx: Any, *seconds: float) -> data.Speech:
    """Return noise of these lengths with texts."""
    rng = np.random.default_rng(1)
    clips = [rng.normal(0, 0.1, int(length * ctx.config.rate)).astype(np.float32) for length in seconds]
    texts = [text.encoded(one) for one in ("tabo ki", "mu", "sa")[: len(clips)]]
    return data.batch_of(ctx.config, texts, clips, 50)


def check_a_spectrogram_is_that_of_its_recording_alone() -> None:
    ctx = context("small")
    together = data.prepare_batch(ctx, batch(ctx, 0.4, 0.3))
    frames = 1 + 2400 // 100
    short = data.Speech(*(part[1:] for part in batch(ctx, 0.4, 0.3)))
    samples = torch.from_numpy(short.audio[:, :2400])
    alone = (data.log_mel(ctx)(samples) + 3) / 2
    assert torch.allclose(together.mel[1:, :, :frames], alone, atol=1e-5)
    assert not together.mel[1, :, frames:].any()
    silent = (data.log_mel(ctx)(torch.cat([samples, torch.zeros(1, 400)], 1))[..., :frames] + 3) / 2
    assert not torch.allclose(silent, alone, atol=1e-2), "the control: silence after the end"
    assert together.total == data.count_samples(ctx, batch(ctx, 0.4, 0.3)) == 1 + 3200 // 100 + frames


def check_the_end_is_the_step_that_says_the_last_frame() -> None:
    ctx = context("small")
    ended = data.prepare_batch(ctx, batch(ctx, 0.4, 0.05)).ended
    assert ended[0].tolist() == 16 * [0.0] + 9 * [1.0], "33 frames, two in a step"
    assert ended[1].tolist() == 2 * [0.0] + 23 * [1.0], "5 frames"


def check_the_loss_is_both_errors_and_the_cross_entropy() -> None:
    ctx = context("small")
    prepared = data.Prepared(torch.zeros(1, 1), torch.ones(1), torch.ones(1, 2, 4), torch.tensor([[0.0, 1.0]]), 4)
    says = model.Spoken(torch.zeros(1, 2, 4), 3 * torch.ones(1, 2, 4), torch.zeros(1, 2), torch.zeros(0))
    loss = data.calculate_loss(ctx, lambda *_: says, prepared)  # type: ignore[arg-type]
    assert math.isclose(loss.item(), 1 + 4 + math.log(2), rel_tol=1e-6)


def check_evaluations_agree_and_draw_nothing_from_the_training() -> None:
    ctx = context("small")
    some, prepared = model.create_model(ctx).eval(), data.prepare_batch(ctx, batch(ctx, 0.4, 0.3, 0.2))
    state = torch.get_rng_state()
    first = data.evaluate_batch(ctx, some, prepared)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(1)
    assert torch.equal(first, data.evaluate_batch(ctx, some, prepared))
    assert first[1] == 3
    assert not torch.equal(*(data.calculate_loss(ctx, some, prepared) for _ in range(2))), "the control: dropout"


def check_texts_are_cleaned_as_in_flagperf() -> None:
    assert text.cleaned("Mrs. Ünder  met\nDr. B.") == "misess u\u0308nder met doctor b."
    letters = "".join(text.SYMBOLS[number] for number in text.encoded("Drs. “Ünder” — “it’s”_; [Co]!"))
    assert letters == "doctors under  it's; co!"
    assert [text.NUMBERS[one] for one in "_-! Az"] == [0, 1, 2, 11, 12, 63]
    raises(text.TextError, lambda: text.encoded("in 1852"), "'in 1852' has digits")
    raises(text.TextError, lambda: text.padded([np.ones(3)], 2), "3 characters, but max_symbols = 2; raise")


def check_a_recording_that_is_too_long_is_an_error() -> None:
    ctx = context("small")
    raises(AudioError, lambda: batch(ctx, 0.7), "a recording has 57 frames, but max_frames = 50")


def check_the_control_has_the_words_of_other_recordings() -> None:
    read = {}
    for wrong in (False, True):
        ctx = context("small", shuffle_labels=wrong)
        read[wrong] = [data._source(ctx, training=training)[Draw(0, np.arange(50))] for training in (True, False)]
    train, evaluation = zip(read[False], read[True], strict=True)
    assert np.array_equal(train[0].audio, train[1].audio)
    assert (train[0].text != train[1].text).any(1).mean() > 0.5
    assert all(np.array_equal(one, other) for one, other in zip(*evaluation, strict=True))


def check_evaluation_is_filled_to_its_own_longest_recording() -> None:
    ctx = context("small")
    whole = data._source(ctx, training=False)
    part = data._source(replace(ctx, rank=1, world_size=2), training=False)
    lengths = {source[Draw(0, np.arange(2))].audio.shape[1] for source in (whole, part)}
    frames = max(len(clip) for clip in whole.recordings.clips) // 100 + 1
    assert lengths == {(frames - 1) * 100 + 256}
    assert frames < ctx.config.max_frames
