"""The small data: questions in the form of ReCoRD, generated from a seed.

A passage says in words how many things a person sold and bought. The query repeats the sentence with one number masked.
The candidates are numbers in digits, one token per digit: both numbers of the passage, and for each a number that
differs in one digit. A model that looks only at the candidates is right in one of four cases; a model that only finds
the numbers of the passage is right in one of two cases. To be always right, the model must use the position of the mask
in the query and translate the number from words to digits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from cloze import Example, Symbols

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
THINGS = ["books", "houses", "dogs", "cats", "cars", "trees", "tables", "chairs"]
PEOPLE = ["mary", "john", "sandra", "daniel", "bill", "fred", "julie", "jeff"]
NUMBERS = tuple(10 * tens + ones for tens in range(2, 10) for ones in range(1, 10))
"""Numbers with two digits that are both spoken, such as "twenty one", but not "twelve" or "twenty"."""


def in_words(number: int) -> str:
    return f"{TENS[number // 10 - 2]} {ONES[number % 10 - 1]}"


def near_miss(number: int, draw: random.Random) -> int:
    """Return another number of ``NUMBERS`` that differs in one digit."""
    tens, ones = divmod(number, 10)
    if draw.random() < 0.5:
        return 10 * draw.choice([other for other in range(2, 10) if other != tens]) + ones
    return 10 * tens + draw.choice([other for other in range(1, 10) if other != ones])


def example(sold: int, bought: int, draw: random.Random, candidates: int) -> Example:
    first, second = draw.sample(THINGS, 2)
    who = draw.choice(PEOPLE)
    before, after, number = draw.choice(
        [
            ("sold", f"{first} and bought some {second} .", sold),
            (f"sold some {first} and bought", f"{second} .", bought),
        ]
    )
    wrong = sorted(_candidates(sold, bought, draw) - {number})
    numbers = draw.sample([number, *draw.sample(wrong, candidates - 1)], candidates)
    return Example(
        passage=f"{who} sold {in_words(sold)} {first} and bought {in_words(bought)} {second} .",
        before=before,
        after=after,
        candidates=[" ".join(str(candidate)) for candidate in numbers],
        right=frozenset({numbers.index(number)}),
    )


def _candidates(sold: int, bought: int, draw: random.Random) -> set[int]:
    candidates: set[int] = set()
    while len(candidates) < 4:
        candidates = {sold, bought, near_miss(sold, draw), near_miss(bought, draw)}
    return candidates


Pair = frozenset[int]
ALL_PAIRS = frozenset(frozenset(pair) for pair in itertools.combinations(NUMBERS, 2))


def pairs(count: int, seed: int) -> frozenset[Pair]:
    """Choose ``count`` of all pairs of numbers at random."""
    return frozenset(random.Random(seed).sample(sorted(ALL_PAIRS, key=sorted), count))


def examples(count: int, seed: int, allowed: frozenset[Pair], candidates: int = 4) -> list[Example]:
    """Make examples from the allowed pairs, with this number of candidates."""
    draw = random.Random(seed)
    drawn = [draw.sample(sorted(pair), 2) for pair in draw.choices(sorted(allowed, key=sorted), k=count)]
    return [example(sold, bought, draw, candidates) for sold, bought in drawn]


class Words:
    """A tokenizer whose vocabulary is all words of the small data."""

    def __init__(self) -> None:
        self.symbols = Symbols(pad=0, cls=1, mask=2, start=3, end=4)
        others = ["and", "sold", "bought", "some", "."]
        words = [*map(str, range(10)), *ONES, *TENS, *THINGS, *PEOPLE, *others]
        self.ids = {word: place for place, word in enumerate(words, start=5)}
        self.size = 5 + len(self.ids)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.ids[word] for word in text.split()] for text in texts]
