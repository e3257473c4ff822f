"""Chinese questions with their answers: sums, the greater of two numbers, weekdays and months.

十七加八等于几 二十五
今天星期三，五天后星期几 星期一
"""

from __future__ import annotations

import random

DIGITS = "零一二三四五六七八九"
DAYS = "一二三四五六日"

Question = tuple[str, str]
"""A question and its answer."""


def number(value: int) -> str:
    """Return a number below 100 in Chinese."""
    tens, ones = divmod(value, 10)
    if not tens:
        return DIGITS[ones]
    return (DIGITS[tens] if tens > 1 else "") + "十" + (DIGITS[ones] if ones else "")


def everything() -> list[list[Question]]:
    """Return all questions of each kind."""
    return [
        [(f"{number(x)}加{number(y)}等于几", number(x + y)) for x in range(90) for y in range(10)],
        [(f"{number(x)}和{number(y)}哪个大", number(max(x, y))) for x in range(100) for y in range(100) if x != y],
        [
            (f"今天星期{DAYS[x]}，{number(y)}天后星期几", "星期" + DAYS[(x + y) % 7])
            for x in range(7)
            for y in range(1, 7)
        ],
        [
            (f"现在是{number(x)}月，{number(y)}个月后是几月", number((x + y - 1) % 12 + 1) + "月")
            for x in range(1, 13)
            for y in range(1, 12)
        ],
    ]


def draw(count: int, seed: int) -> list[Question]:
    """Return different questions in a random order."""
    rng = random.Random(seed)
    kinds = everything()
    drawn: dict[str, str] = {}
    while len(drawn) < count:
        question, answer = rng.choice(rng.choice(kinds))
        drawn[question] = answer
    return rng.sample(list(drawn.items()), count)


class Characters:
    """Each character is a token, after the symbols."""

    pad, answer, end = range(3)

    def __init__(self) -> None:
        used = {character for kind in everything() for question in kind for character in "".join(question)}
        self._tokens = {character: 3 + place for place, character in enumerate(sorted(used))}
        self.size = 3 + len(used)

    def encode(self, question: Question) -> list[int]:
        """Return question, the answer's symbol, answer and the symbol of the end."""
        asked, answered = ([self._tokens[character] for character in part] for part in question)
        return [*asked, self.answer, *answered, self.end]
