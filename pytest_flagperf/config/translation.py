"""A vendor's config file with the original's names: what each name is here.

A suite's ``config/original.toml`` and ``original.toml`` beside this file hold the names. A file has the original's
names where at least one of its names is in these tables and not among our keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ..catalog.toml_reader import CatalogError, read, where
from ..problems import kind, near, shown
from .assignments import Assigned, Unread

SHARED = Path(__file__).parent / "original.toml"
APPLIED, SAME, WITHOUT_EFFECT = "applied", "same as ours", "without effect"
OUTCOMES = (APPLIED, SAME, WITHOUT_EFFECT)
_COUNTS = ("", "samples", "micro-steps")
_PER_STEP = ("train_batch_size", "gradient_accumulation_steps")
_NONE = "FlagPerf reads None as not set"
UNREAD = (
    "its value is unknown, because a file that imports a framework is not run; write the value itself, or remove the"
    " line"
)


@dataclass(frozen=True)
class Rule:
    """One name of the original, and the key of ours that it sets; several rules may share either."""

    theirs: str
    ours: str
    counts: str = ""
    """What the original counts where ours counts optimizer steps: samples over all cards, or micro-steps."""
    share_of: str = ""
    """The name of the original of which this one is a share."""
    factor: float = 1.0
    values: Mapping[str, str] = field(default_factory=dict)
    """Our value for each value of the original."""
    note: str = ""


@dataclass(frozen=True)
class Idle:
    """Names of the original without an effect here, and why."""

    keys: tuple[str, ...]
    reason: str
    only: str = ""
    """The one value that is the same as ours; another value would have an effect, and is a problem."""


@dataclass(frozen=True)
class _File:
    """What an original.toml holds."""

    applied: tuple[Rule, ...] = ()
    without_effect: tuple[Idle, ...] = ()
    base: Mapping[str, float] = field(default_factory=dict)
    """Values that hold in the original where a vendor's file has none."""


@dataclass(frozen=True)
class TranslationTable:
    """The original's names in one suite; where several rules set one key of ours, the first comes first."""

    applied: tuple[Rule, ...]
    idle: Mapping[str, Idle]
    """Names without effect."""
    base: Mapping[str, Assigned]

    @property
    def names(self) -> frozenset[str]:
        """Every name of the original."""
        return frozenset([*(rule.theirs for rule in self.applied), *self.idle])

    def without(self, names: Collection[str]) -> TranslationTable:
        """Return the table without these names."""
        applied = tuple(rule for rule in self.applied if rule.theirs not in names)
        return replace(self, applied=applied, idle={name: one for name, one in self.idle.items() if name not in names})


@dataclass(frozen=True)
class Translated:
    """What became of one name of a file: applied, the same as ours or without effect."""

    key: str
    value: str
    where: str
    outcome: str
    effect: str
    """The keys of ours that it set, or why it has no effect."""


@dataclass(frozen=True)
class Setting:
    """A key of ours and its value; ``theirs`` gave it, in the file or in the original's own base."""

    ours: str
    theirs: str
    given: Assigned
    value: object
    note: str = ""
    from_base: bool = False


@dataclass(frozen=True)
class Translation:
    """A whole file: what to set; of each other name the outcome and why; what is wrong."""

    settings: tuple[Setting, ...]
    others: Mapping[str, tuple[str, str]]
    problems: tuple[str, ...]


def translation_table(folder: Path, keys: Collection[str] = ()) -> TranslationTable:
    """Return the names of a suite, whose config folder and keys these are, and those of all suites.

    A name that all suites share means nothing where the suite has it as a key or in a table of its own.
    """
    file = folder / SHARED.name
    shared = _read(SHARED, SHARED.stat().st_mtime_ns).without(keys)
    if not file.is_file():
        return shared
    own = _read(file, file.stat().st_mtime_ns)
    shared = shared.without(own.names)
    return TranslationTable((*own.applied, *shared.applied), {**shared.idle, **own.idle}, own.base)


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int) -> TranslationTable:
    table = read(_File, file)
    problems = [
        f"{where(file, 'applied', str(number), 'counts')}: counts is {rule.counts!r}; expected samples or micro-steps"
        for number, rule in enumerate(table.applied)
        if rule.counts not in _COUNTS
    ]
    if problems:
        raise CatalogError(problems)
    idle = {key: one for one in table.without_effect for key in one.keys}
    lines = {name: int(where(file, "base", name).rpartition(":")[2]) for name in table.base}
    base = {name: Assigned(_as_whole(value), file, lines[name]) for name, value in table.base.items()}
    return TranslationTable(table.applied, idle, base)


def concerns(table: TranslationTable, names: Iterable[str], ours: Collection[str]) -> bool:
    """Return whether a file with these names is written with the original's."""
    theirs = table.names
    return any(name in theirs and name not in ours for name in names)


def translate(
    table: TranslationTable,
    names: Mapping[str, Assigned],
    unread: Mapping[str, Unread],
    lower: Mapping[str, object],
    cards: int,
    place: Callable[[Path], str],
) -> Translation:
    """Translate a file; ``lower`` holds the values of the layers below, ``place`` shows where a file is."""
    return _Translator(table, names, unread, lower, cards, place).whole()


class _Translator:
    def __init__(
        self,
        table: TranslationTable,
        names: Mapping[str, Assigned],
        unread: Mapping[str, Unread],
        lower: Mapping[str, object],
        cards: int,
        place: Callable[[Path], str],
    ) -> None:
        self.table, self.unread, self.lower, self.cards, self.place = table, unread, lower, cards, place
        self.problems: list[str] = []
        everything: dict[str, Assigned | Unread] = {**names, **unread}
        self.others = {name: (WITHOUT_EFFECT, _NONE) for name, given in names.items() if given.value is None}
        self.others |= {
            name: self._idle(name, given, table.idle[name]) for name, given in everything.items() if name in table.idle
        }
        self.names = {name: given for name, given in names.items() if name not in self.others}

    def whole(self) -> Translation:
        self._check_unread()
        rules: dict[str, list[Rule]] = {}
        for rule in self.table.applied:
            rules.setdefault(rule.ours, []).append(rule)
        ruled = {rule.theirs for rule in self.table.applied}
        direct = {name: given for name, given in self.names.items() if name not in ruled}
        settings = [setting for ours, held in rules.items() for setting in self._settle(ours, held)]
        settings = [one for one in settings if not one.from_base or one.ours not in direct]
        for setting in settings:
            if setting.ours in direct and setting.value != direct[setting.ours].value:
                self._set_twice(setting, direct[setting.ours])
        settings += [Setting(name, name, given, given.value) for name, given in direct.items()]
        applied = {setting.theirs for setting in settings}
        others = {name: other for name, other in self.others.items() if name not in applied}
        return Translation(tuple(settings), others, tuple(self.problems))

    def _idle(self, name: str, given: Assigned | Unread, idle: Idle) -> tuple[str, str]:
        value = given.source if isinstance(given, Unread) else shown(given.value)
        if not idle.only or value == "None":
            return WITHOUT_EFFECT, idle.reason
        if value != idle.only:
            self._problem(given, f"{name} = {value}: expected {idle.only}: {idle.reason}")
        return SAME, idle.reason

    def _check_unread(self) -> None:
        """Note each name whose value is needed and unknown."""
        known = self.table.names | self.lower.keys()
        for name, given in self.unread.items():
            if name not in self.others and (name in known or not given.imported):
                self._problem(given, f"{name} = {given.source}: {UNREAD}")

    def _settle(self, ours: str, rules: Sequence[Rule]) -> Iterator[Setting]:
        """Yield the value of one key of ours; of several names the first that is not 0 or False decides."""
        in_file = [rule for rule in rules if rule.theirs in self.names]
        known = [rule for rule in rules if rule.theirs in self.names or rule.theirs in self.table.base]
        if not known:
            return
        last = (in_file or known)[-1]
        rule = next((rule for rule in known if self._given(rule.theirs).value), last)
        given = self._given(rule.theirs)
        for other in in_file:
            if other.theirs != rule.theirs:
                why = f"{rule.theirs} = {shown(given.value)} decides ({self._at(given)})"
                self.others[other.theirs] = (WITHOUT_EFFECT, why)
        value = self._value(rule, given)
        if isinstance(value, _Wrong):
            self._problem(given, f"{rule.theirs} = {shown(given.value)}: {value.text}")
        else:
            yield Setting(ours, rule.theirs, given, value, rule.note, rule.theirs not in self.names)

    def _set_twice(self, setting: Setting, own: Assigned) -> None:
        also = f"{setting.theirs} sets it too, to {shown(setting.value)} ({self._at(setting.given)})"
        self._problem(own, f"{setting.ours} = {shown(own.value)}: {also}; keep one of the two")

    def _given(self, theirs: str) -> Assigned:
        return self.names[theirs] if theirs in self.names else self.table.base[theirs]

    def _at(self, given: Assigned | Unread) -> str:
        return f"{self.place(given.file)}:{given.line}"

    def _problem(self, given: Assigned | Unread, text: str) -> None:
        self.problems.append(f"{self._at(given)}: {text}")

    # -- values ----------------------------------------------------------------------------------------------

    def _value(self, rule: Rule, given: Assigned) -> object:
        """Return our value for one of the original's, or what is wrong with it."""
        if rule.values:
            return rule.values.get(repr(given.value), _Wrong(f"expected {' or '.join(rule.values)}"))
        if not (rule.counts or rule.share_of or rule.factor != 1.0):
            return self._unconverted(rule.ours, given.value)
        number = _number(given.value)
        if number is None:
            return _Wrong(f"expected a number, got {kind(given.value)}")
        if number < 0:
            return _Wrong("expected 0 or more")
        if rule.share_of:
            whole = _number(self._given(rule.share_of).value) if self._knows(rule.share_of) else None
            if whole is None:
                return _Wrong(f"it is a share of {rule.share_of}; write {rule.share_of} as a number in this file too")
            return round(number * (whole // self._per_step(rule)))
        if rule.counts:
            return max(1 if number > 0 else 0, int(number // self._per_step(rule)))
        return number * rule.factor

    def _knows(self, theirs: str) -> bool:
        return theirs in self.names or theirs in self.table.base

    def _per_step(self, rule: Rule) -> int:
        """Return how many of what the original counts make one optimizer step."""
        if not rule.counts:
            return 1
        batch, accumulation = (self._count(key) for key in _PER_STEP)
        return accumulation if rule.counts == "micro-steps" else batch * accumulation * self.cards

    def _count(self, key: str) -> int:
        value = self.names[key].value if key in self.names else self.lower.get(key)
        return value if isinstance(value, int) and value > 0 else 1

    def _unconverted(self, ours: str, value: object) -> object:
        """Return a value as ours is written: 4.5e6 samples are 4500000."""
        counted = isinstance(self.lower.get(ours), int) or ours.endswith(("_steps", "_samples", "_epochs"))
        return _as_whole(value) if counted and isinstance(value, float) else value


@dataclass(frozen=True)
class _Wrong:
    text: str


def unknown(name: str, given: Assigned, suite: str, table: TranslationTable, ours: Collection[str]) -> str:
    """Return the problem of a name that is neither a key of ours nor in the table."""
    value = f" = {shown(given.value)}" if isinstance(given.value, (bool, int, float)) else f" ({kind(given.value)})"
    return (
        f"{name}{value}: {suite} has no such key, and its config/{SHARED.name} has no such name of FlagPerf's;"
        f" remove the line, or add the name to that table{near(name, sorted({*ours, *table.names}))}"
    )


def _as_whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
