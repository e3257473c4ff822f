"""STC as CPM reads it: ``train.txt`` and ``valid.txt``, one dialogue per line, and the folder ``bpe_3w_new``.

The model has the symbols of the published one, in its order, and is trained on the lines themselves. Among them are a
line that is longer than a sample, an empty line, and a line with a space and a separator that ends no line.
"""

from __future__ import annotations

import io
import random
from pathlib import Path

import jieba
import sentencepiece

TRAIN, EVAL, MODEL = "train.txt", "valid.txt", "bpe_3w_new/chinese_vocab.model"
TRAIN_LINES, EVAL_LINES = 48, 12
LONG = 3
"""The line that is longer than a sample of the tests."""
SYMBOLS = ["\u2583", "<sep>", "<pad>", "<mask>", "<eod>"]
SIZE = 54
GREETINGS = ["今天天气很好", "我们去吃饭吧", "你喜欢看电影吗", "明天一起去爬山"]
ANSWERS = ["是啊，出去玩吧", "好的，吃什么呢", "喜欢，一起看吧", "太远了，不想去"]


def lines(count: int, seed: int) -> list[str]:
    """Return dialogues; the answer follows from the greeting."""
    rng = random.Random(seed)
    chosen = [rng.randrange(len(GREETINGS)) for _ in range(count)]
    texts = [f"{GREETINGS[index]}\t{ANSWERS[index]}\n" for index in chosen]
    texts[1], texts[2] = "\n", "你好 你好\u2028你好\n"
    texts[LONG] = "今天天气很好，" * 12 + "\n"
    return texts


def write(folder: Path) -> None:
    """Write both files of dialogues, and the tokenizer's model."""
    (folder / MODEL).parent.mkdir(parents=True, exist_ok=True)
    texts = {TRAIN: lines(TRAIN_LINES, 1), EVAL: lines(EVAL_LINES, 2)}
    for name, content in texts.items():
        (folder / name).write_text("".join(content), encoding="utf-8")
    words = (" ".join(jieba.cut(line.replace(" ", "\u2582").strip("\n"))) for line in texts[TRAIN])
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=words, model_writer=trained, vocab_size=SIZE, user_defined_symbols=SYMBOLS, minloglevel=2,
    )  # fmt: skip
    (folder / MODEL).write_bytes(trained.getvalue())
