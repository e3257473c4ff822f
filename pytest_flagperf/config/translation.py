"""Translate vendors' config files with FlagPerf's names to our keys.

A suite's ``config/original.toml`` and the ``original.toml`` beside this module list the names. A file is translated if
at least one of its names is in these tables and is not one of our keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ..catalog.toml_reader import CatalogError, read, where
from ..problems import kind, near, shown
from .module import Assigned, Unread

SHARED = Path(__file__).parent / "original.toml"
APPLIED, SAME, WITHOUT_EFFECT = "applied", "same as ours", "without effect"
OUTCOMES = (APPLIED, SAME, WITHOUT_EFFECT)
_COUNTS = ("", "samples", "micro-steps")
_PER_STEP = ("train_batch_size", "gradient_accumulation_steps")
_NONE = "FlagPerf reads None as not set"


@dataclass(frozen=True)
class Rule:
    """A name of FlagPerf and the key of ours that it sets; several rules may have the same name or the same key."""

    theirs: str
    ours: str
    counts: str = ""
    """The unit in FlagPerf if our key counts optimizer steps: samples over all cards, or micro-steps."""
    share_of: str = ""
    """The name of FlagPerf whose value this value is a fraction of."""
    factor: float = 1.0
    values: Mapping[str, str] = field(default_factory=dict)
    """Our value for each value of FlagPerf."""
    note: str = ""


@dataclass(frozen=True)
class Idle:
    """Names of FlagPerf without effect here, and the reason."""

    keys: tuple[str, ...]
    reason: str
    only: str = ""
    """The only allowed value, which is our behaviour; any other value is a problem."""


@dataclass(frozen=True)
class _File:
    """The contents of an original.toml."""

    applied: tuple[Rule, ...] = ()
    without_effect: tuple[Idle, ...] = ()
    base: Mapping[str, float] = field(default_factory=dict)
    """FlagPerf's default values for names that a vendor's file does not set."""


@dataclass(frozen=True)
class TranslationTable:
    """FlagPerf's names in one suite; if several rules set the same key, the order of the file counts."""

    applied: tuple[Rule, ...]
    idle: Mapping[str, Idle]
    """Names without effect."""
    base: Mapping[str, Assigned]

    @property
    def names(self) -> frozenset[str]:
        """All names of FlagPerf."""
        return frozenset([*(rule.theirs for rule in self.applied), *self.idle])

    def without(self, names: Collection[str]) -> TranslationTable:
        """Return the table without these names."""
        applied = tuple(rule for rule in self.applied if rule.theirs not in names)
        return replace(
            self, applied=applied, idle={name: entry for name, entry in self.idle.items() if name not in names}
        )


@dataclass(frozen=True)
class Translated:
    """The outcome of one name in a file: applied, same as ours or without effect."""

    key: str
    value: str
    where: str
    outcome: str
    effect: str
    """The keys of ours that the name sets, or why it has no effect."""


@dataclass(frozen=True)
class Setting:
    """A key of ours and its value; ``theirs`` is FlagPerf's name, from the file or from FlagPerf's defaults."""

    ours: str
    theirs: str
    given: Assigned
    value: object
    note: str = ""
    from_base: bool = False


@dataclass(frozen=True)
class Translation:
    """A translated file: the values to set, the outcome and reason of each other name, and the problems."""

    settings: tuple[Setting, ...]
    others: Mapping[str, tuple[str, str]]
    problems: tuple[str, ...]


def translation_table(folder: Path, keys: Collection[str] = ()) -> TranslationTable:
    """Return FlagPerf's names for the suite with this config folder and these keys.

    The table of all suites applies to names that are neither a key of the suite nor in its own table.
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
    idle = {key: entry for entry in table.without_effect for key in entry.keys}
    lines = {name: int(where(file, "base", name).rpartition(":")[2]) for name in table.base}
    base = {name: Assigned(_as_whole(value), file, lines[name]) for name, value in table.base.items()}
    return TranslationTable(table.applied, idle, base)


def concerns(table: TranslationTable, names: Iterable[str], ours: Collection[str]) -> bool:
    """Return True if a file with these names contains FlagPerf's names."""
    theirs = table.names
    return any(name in theirs and name not in ours for name in names)


@dataclass
class Translator:
    """Translates a file; ``lower`` has the values of the layers below, ``place`` returns a file's path for messages."""

    table: TranslationTable
    given: Mapping[str, Assigned]
    unread: Mapping[str, Unread]
    lower: Mapping[str, object]
    cards: int
    place: Callable[[Path], str]
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        everything: dict[str, Assigned | Unread] = {**self.given, **self.unread}
        self.others = {name: (WITHOUT_EFFECT, _NONE) for name, given in self.given.items() if given.value is None}
        idle = self.table.idle
        self.others |= {name: self._idle(name, given, idle[name]) for name, given in everything.items() if name in idle}
        self.names = {name: given for name, given in self.given.items() if name not in self.others}

    def translate(self) -> Translation:
        self._check_unread()
        rules: dict[str, list[Rule]] = {}
        for rule in self.table.applied:
            rules.setdefault(rule.ours, []).append(rule)
        ruled = {rule.theirs for rule in self.table.applied}
        direct = {name: given for name, given in self.names.items() if name not in ruled}
        settings = [setting for ours, candidates in rules.items() for setting in self._settle(ours, candidates)]
        settings = [setting for setting in settings if not setting.from_base or setting.ours not in direct]
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
        """Report each name whose value is needed but unknown."""
        known = self.table.names | self.lower.keys()
        for name, given in self.unread.items():
            if name not in self.others and (name in known or not given.imported):
                self._problem(given, f"{name}: {given.reason}")

    def _settle(self, ours: str, rules: Sequence[Rule]) -> Iterator[Setting]:
        """Yield the value of one key of ours; if several names set it, the first that is not 0 or False decides."""
        in_file = [rule for rule in rules if rule.theirs in self.names]
        known = [rule for rule in rules if rule.theirs in self.names or rule.theirs in self.table.base]
        if not known:
            return
        last = (in_file or known)[-1]
        rule = next((rule for rule in known if self._given(rule.theirs).value), last)
        given = self._given(rule.theirs)
        for other in in_file:
            if other.theirs != rule.theirs:
                reason = f"{rule.theirs} = {shown(given.value)} decides ({self._at(given)})"
                self.others[other.theirs] = (WITHOUT_EFFECT, reason)
        value = self._value(rule, given)
        if isinstance(value, _Invalid):
            self._problem(given, f"{rule.theirs} = {shown(given.value)}: {value.text}")
        else:
            yield Setting(ours, rule.theirs, given, value, rule.note, rule.theirs not in self.names)

    def _set_twice(self, setting: Setting, own: Assigned) -> None:
        other = f"{setting.theirs} also sets this key, to {shown(setting.value)} ({self._at(setting.given)})"
        self._problem(own, f"{setting.ours} = {shown(own.value)}: {other}; keep one of the two")

    def _given(self, theirs: str) -> Assigned:
        return self.names[theirs] if theirs in self.names else self.table.base[theirs]

    def _at(self, given: Assigned | Unread) -> str:
        return f"{self.place(given.file)}:{given.line}"

    def _problem(self, given: Assigned | Unread, text: str) -> None:
        self.problems.append(f"{self._at(given)}: {text}")

    # -- values ----------------------------------------------------------------------------------------------

    def _value(self, rule: Rule, given: Assigned) -> object:
        """Return our value for a value of FlagPerf, or its problem."""
        if rule.values:
            return rule.values.get(repr(given.value), _Invalid(f"expected {' or '.join(rule.values)}"))
        if not (rule.counts or rule.share_of or rule.factor != 1.0):
            value = given.value
            # A list with one value, as in lr = [1e-3]: fairseq has a learning rate for each epoch.
            return self._unconverted(rule.ours, value[0] if isinstance(value, list) and len(value) == 1 else value)
        number = _number(given.value)
        if number is None:
            return _Invalid(f"expected a number, got {kind(given.value)}")
        if number < 0:
            return _Invalid("expected 0 or more")
        if rule.share_of:
            whole = _number(self._given(rule.share_of).value) if self._knows(rule.share_of) else None
            if whole is None:
                return _Invalid(f"a fraction of {rule.share_of}; also write {rule.share_of} as a number in this file")
            return round(number * (whole // self._per_step(rule)))
        if rule.counts:
            return max(1 if number > 0 else 0, int(number // self._per_step(rule)))
        return self._unconverted(rule.ours, number * rule.factor)

    def _knows(self, theirs: str) -> bool:
        return theirs in self.names or theirs in self.table.base

    def _per_step(self, rule: Rule) -> int:
        """Return the number of FlagPerf's units in one optimizer step."""
        if not rule.counts:
            return 1
        batch, accumulation = (self._count(key) for key in _PER_STEP)
        return accumulation if rule.counts == "micro-steps" else batch * accumulation * self.cards

    def _count(self, key: str) -> int:
        value = self.names[key].value if key in self.names else self.lower.get(key)
        return value if isinstance(value, int) and value > 0 else 1

    def _unconverted(self, ours: str, value: object) -> object:
        """Return a value in our form: 4.5e6 samples become 4500000."""
        counted = isinstance(self.lower.get(ours), int) or ours.endswith(("_steps", "_samples", "_epochs"))
        return _as_whole(value) if counted and isinstance(value, float) else value


@dataclass(frozen=True)
class _Invalid:
    text: str


def unknown(name: str, given: Assigned, suite: str, table: TranslationTable, ours: Collection[str]) -> str:
    """Return the problem of a name that is neither a key of ours nor in the table."""
    value = f" = {shown(given.value)}" if isinstance(given.value, (bool, int, float)) else f" ({kind(given.value)})"
    return (
        f"{name}{value}: {suite} has no such key, and its config/{SHARED.name} has no such name;"
        f" remove the line, or add the name to that table{near(name, sorted({*ours, *table.names}))}"
    )


def _as_whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
