"""Checks of the Transformer: its model, its search, BLEU, the weights of tokens and the small scale's sentences."""

from __future__ import annotations

import itertools
from typing import Any

import bleu
import checking
import data
import model
import sacrebleu
import search
import sentences
import torch
from common.language.buckets import bucket_of
from torch import Tensor
from words import EOS, FIRST, PAD, WholeWords


def tiny(seed: int) -> model.Transformer:
    """Return a model with random weights, whose words depend on each other."""
    torch.manual_seed(seed)
    made = model.Transformer(model.TransformerConfig(9, 16, 32, 2, 2, 0.0, 0.0, 0.0, 0.1, 40)).eval()
    for parameter in made.parameters():
        parameter.data.mul_(1.5)
    return made


def sources(*lengths: int) -> Tensor:
    rows = [torch.tensor([*torch.randint(FIRST, 9, (length - 1,)).tolist(), EOS]) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


# -- the model


def check_loss_is_the_smoothed_cross_entropy_of_tokens_only() -> None:
    made, source, target = tiny(0), sources(5, 3), sources(4, 6)
    with torch.no_grad():
        previous = torch.cat([torch.full((2, 1), EOS), target[:, :-1]], dim=1)
        logs = made.scores(source, previous).log_softmax(-1)
        expected = -(0.9 * logs.gather(2, target[:, :, None])[..., 0] + 0.1 * logs.mean(-1))[target != PAD].sum()
        assert torch.allclose(made(source, target), expected, atol=1e-5)
        longer = torch.nn.functional.pad(target, (0, 3), value=PAD)
        wider = torch.nn.functional.pad(source, (0, 2), value=PAD)
        assert torch.allclose(made(wider, longer), expected, atol=1e-5), "padding changes the loss"
        target[0, 3] = FIRST
        assert not torch.allclose(made(source, target), expected, atol=1e-3), "the control: another token"


def check_a_word_depends_on_the_source_and_on_earlier_words_only() -> None:
    made, source = tiny(0), sources(5)
    previous = torch.tensor([[EOS, 4, 5, 6, 7]])
    with torch.no_grad():
        before = made.scores(source, previous)
        previous[0, 3] = 8
        changed = (made.scores(source, previous) - before).abs().amax(2)[0] > 1e-5
        assert changed.tolist() == [False, False, False, True, True]
        previous[0, 3], source[0, 4] = 6, 8
        assert ((made.scores(source, previous) - before).abs().amax(2) > 1e-5).all()


# -- the search


def plain_search(made: model.Transformer, source: Tensor, beam: int, penalty: float, longest: int) -> list[int]:
    """Search for one sentence with lists, and with the whole hypotheses at every step."""
    alive: list[tuple[float, list[int]]] = [(0.0, [EOS])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(longest + 1):
        scores = [made.scores(source, torch.tensor([words]))[0, -1].log_softmax(0).tolist() for _, words in alive]
        if length == longest:
            ended += [
                ((score + of[EOS]) / (length + 1) ** penalty, words)
                for (score, words), of in zip(alive, scores, strict=True)
            ]
            break
        candidates = sorted(
            (-(score + of[token]), words, token)
            for (score, words), of in zip(alive, scores, strict=True)
            for token in range(len(of))
            if token != PAD and (length or token != EOS)
        )[: 2 * beam]
        best = candidates[:beam]
        ended += [(-cost / (length + 1) ** penalty, words) for cost, words, token in best if token == EOS]
        if len(ended) >= beam:
            break
        alive = [(-cost, [*words, token]) for cost, words, token in candidates if token != EOS][:beam]
    return max(ended)[1][1:]


def check_search_with_its_cache_finds_what_a_plain_search_finds() -> None:
    results = set()
    for seed, (beam, penalty) in itertools.product(range(4), ((1, 1.0), (4, 1.0), (3, 0.3))):
        made, source = tiny(seed), sources(3, 7, 5, 2)
        with torch.no_grad():
            found = search.translate(made, source, beam=beam, length_penalty=penalty, max_length=8)
            lengths = (source != PAD).sum(1).tolist()
            plain = [
                plain_search(made, row[None, :length], beam, penalty, 8)
                for row, length in zip(source, lengths, strict=True)
            ]
        assert found == plain, (seed, beam, penalty, found, plain)
        results |= {tuple(words) for words in found}
    assert len(results) > 12, "the control: the translations must differ"
    assert {len(words) for words in results} > {1, 8}, "short and longest translations"


# -- BLEU


def check_bleu_of_batches_is_that_of_the_whole_corpus() -> None:
    references = [german for _, german in sentences.translations(50, 1)]
    found = [text.replace("und", "Und").replace("vier", "fünf") for text in references]
    found[7], found[8] = "", "ganz anderer satz !"
    expected = sacrebleu.corpus_bleu(found, [references], lowercase=True).score
    parts = [bleu.sums(found[i:j], references[i:j]) for i, j in itertools.pairwise([0, 1, 8, 20, 21, 50])]
    assert bleu.score([sum(column) for column in zip(*parts, strict=True)]) == expected
    assert bleu.score(bleu.sums(references, references)) == 100, "more than 100 is out of the metric's range"
    cased = sacrebleu.corpus_bleu(found, [references]).score
    mean = sum(bleu.score(part) for part in parts) / len(parts)
    assert min(abs(cased - expected), abs(mean - expected)) > 1, "the control: cased BLEU, and the mean over batches"


def check_all_ranks_together_score_each_sentence_once() -> None:
    torch.manual_seed(1)
    made = model.create_model(checking.context()).eval()

    def result(ranks: int) -> dict[str, float]:
        total = torch.zeros(11)
        with torch.no_grad():
            for rank in range(ranks):
                ctx = checking.context(rank=rank, world_size=ranks, eval_batch_size=64, max_output_length=4)
                total += sum(data.evaluate_batch(ctx, made, batch) for batch in data.create_eval_data(ctx))
        return data.summarize(ctx, total.tolist())

    one = result(1)
    assert one["sentences"] == checking.context().config.eval_sentences
    assert result(3) == one


# -- the weights of tokens


def gradients(contexts: list[Any], *, plain: bool = False) -> list[Tensor]:
    """Return loss and gradient of an optimizer step: of the mean over the ranks, as DDP computes it."""
    torch.manual_seed(3)
    made = model.create_model(checking.context(dropout=0.0))
    batches = [(ctx, batch) for ctx in contexts for batch in itertools.islice(data.create_train_data(ctx), 2)]
    losses = [
        made(batch.source, batch.target) / batch.tokens if plain else data.calculate_loss(ctx, made, batch)
        for ctx, batch in batches
    ]
    loss = torch.stack(losses).mean()
    loss.backward()
    return [loss.detach(), made.embedding.weight.grad]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True))


def check_ranks_and_micro_steps_weigh_all_tokens_alike() -> None:
    settings = {"train_batch_size": 12, "gradient_accumulation_steps": 2}
    contexts = [checking.context(rank=rank, world_size=2, **settings) for rank in range(2)]
    batches = [batch for ctx in contexts for batch in itertools.islice(data.create_train_data(ctx), 2)]
    torch.manual_seed(3)
    made = model.create_model(checking.context(dropout=0.0))
    loss = torch.stack([made(batch.source, batch.target) for batch in batches]).sum()
    (loss / sum(batch.tokens for batch in batches)).backward()
    expected = [loss.detach() / sum(batch.tokens for batch in batches), made.embedding.weight.grad]
    assert same(gradients(contexts), expected)
    assert not same(gradients(contexts, plain=True), expected), "the control: the mean of the batches' means"


# -- the small scale


def check_sentences_are_translated() -> None:
    assert sentences.number(7) == ("seven", "sieben")
    assert sentences.number(21) == ("twenty one", "ein und zwanzig")
    assert sentences.number(305) == ("three hundred and five", "drei hundert fünf")
    assert sentences.number(480) == ("four hundred and eighty", "vier hundert achtzig")
    whole = dict(sentences.translations(3000, 2))
    assert len(whole) == 3000
    assert whole["i saw the dog on friday at one o'clock"] == "ich habe den hund am freitag um ein uhr gesehen"


def check_no_sentence_of_the_evaluation_is_trained() -> None:
    ctx = checking.context()
    words = WholeWords(sentences.words())
    assert len(words) == ctx.config.vocab_size
    trained = data.create_train_data(ctx)
    evaluated = data.create_eval_data(ctx)

    def texts(part: data.Sentences) -> set[str]:
        rows = torch.arange(len(part.sizes)).numpy()
        return set(words.texts(row[row >= FIRST].tolist() for row in part.padded(rows, 16, len(words))))

    assert not texts(trained._source) & texts(evaluated._source)
    assert int(bucket_of(trained._source.sizes, ctx.config.bucket_lengths).max()) < len(ctx.config.bucket_lengths)
    held_out = {english for english, _ in sentences.translations(ctx.config.eval_sentences, data.EVAL_SEED)}
    drawn = {english for english, _ in sentences.translations(ctx.config.train_sentences, ctx.seed)}
    assert held_out == texts(evaluated._source)
    assert drawn & held_out, "the control: training sentences that are drawn from all sentences"


def check_wrong_labels_are_translations_of_other_sentences() -> None:
    right, wrong = (data.create_train_data(checking.context(shuffle_labels=on)) for on in (False, True))
    moved = right._target.starts != wrong._target.starts
    assert moved.all()
    assert sorted(right._target.starts) == sorted(wrong._target.starts)
    assert (right._source.starts == wrong._source.starts).all()
