"""The small data: English sentences and their true German translations, from a grammar.

The translation is not word by word: units come before tens (twenty five, fünf und zwanzig), the participle is at the
end of its sentence, and the article depends on the noun.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Translated = tuple[str, str]
ONES = (
    ("one", "ein"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"), ("six", "sechs"),
    ("seven", "sieben"), ("eight", "acht"), ("nine", "neun"), ("ten", "zehn"), ("eleven", "elf"), ("twelve", "zwölf"),
    ("thirteen", "dreizehn"), ("fourteen", "vierzehn"), ("fifteen", "fünfzehn"), ("sixteen", "sechzehn"),
    ("seventeen", "siebzehn"), ("eighteen", "achtzehn"), ("nineteen", "neunzehn"),
)  # fmt: skip
TENS = (
    ("twenty", "zwanzig"), ("thirty", "dreißig"), ("forty", "vierzig"), ("fifty", "fünfzig"), ("sixty", "sechzig"),
    ("seventy", "siebzig"), ("eighty", "achtzig"), ("ninety", "neunzig"),
)  # fmt: skip
DAYS = (
    ("monday", "montag"), ("tuesday", "dienstag"), ("wednesday", "mittwoch"), ("thursday", "donnerstag"),
    ("friday", "freitag"), ("saturday", "samstag"), ("sunday", "sonntag"),
)  # fmt: skip
MONTHS = (
    ("january", "januar"), ("february", "februar"), ("march", "märz"), ("april", "april"), ("may", "mai"),
    ("june", "juni"), ("july", "juli"), ("august", "august"), ("september", "september"), ("october", "oktober"),
    ("november", "november"), ("december", "dezember"),
)  # fmt: skip
THINGS = (
    ("house", "das haus"), ("book", "das buch"), ("dog", "den hund"), ("cat", "die katze"), ("car", "das auto"),
    ("tree", "den baum"), ("child", "das kind"), ("table", "den tisch"),
)  # fmt: skip
MANY = (
    ("houses", "häuser"), ("books", "bücher"), ("dogs", "hunde"), ("cats", "katzen"), ("cars", "autos"),
    ("trees", "bäume"), ("children", "kinder"), ("tables", "tische"),
)  # fmt: skip


def number(value: int) -> Translated:
    """Return a number from 1 to 999 in words."""
    if value < 20:
        return ONES[value - 1]
    if value < 100:
        english, german = TENS[value // 10 - 2]
        if not value % 10:
            return english, german
        one, eins = ONES[value % 10 - 1]
        return f"{english} {one}", f"{eins} und {german}"
    one, eins = ONES[value // 100 - 1]
    if not value % 100:
        return f"{one} hundred", f"{eins} hundert"
    rest, andere = number(value % 100)
    return f"{one} hundred and {rest}", f"{eins} hundert {andere}"


def _counted(draw: random.Random) -> Translated:
    (count, zahl), (things, dinge) = number(draw.randrange(2, 1000)), draw.choice(MANY)
    return f"{count} {things}", f"{zahl} {dinge}"


def _bought(draw: random.Random) -> Translated:
    (day, tag), (month, monat), (things, dinge) = draw.choice(DAYS), draw.choice(MONTHS), _counted(draw)
    return f"on {day} in {month} we have bought {things}", f"am {tag} im {monat} haben wir {dinge} gekauft"


def _seen(draw: random.Random) -> Translated:
    (day, tag), (thing, ding), (hour, stunde) = draw.choice(DAYS), draw.choice(THINGS), number(draw.randrange(1, 13))
    return f"i saw the {thing} on {day} at {hour} o'clock", f"ich habe {ding} am {tag} um {stunde} uhr gesehen"


KINDS: tuple[Callable[[random.Random], Translated], ...] = (_counted, _bought, _seen)


def translations(count: int, seed: int, without: frozenset[str] = frozenset()) -> list[Translated]:
    """Return different sentences with their translations; none of the English sentences ``without``."""
    draw, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        english, german = draw.choice(KINDS)(draw)
        if english not in without:
            found[english] = german
    return list(found.items())


def words() -> set[str]:
    """Return all words of both languages."""
    tables = [*ONES, *TENS, *DAYS, *MONTHS, *THINGS, *MANY]
    english = "hundred and on in we have bought i saw the at o'clock"
    german = "hundert und am im wir haben habe gekauft ich gesehen um uhr"
    return (
        {word for pair in tables for text in pair for word in text.split()} | set(english.split()) | set(german.split())
    )
