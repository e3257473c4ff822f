"""Translate vendors' config files with FlagPerf's names to our keys.

A suite's ``config/original.toml`` and the ``original.toml`` beside this module list the names. A file is translated if
at least one of its names is in these tables and is not one of our keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ..catalog.toml_reader import CatalogError, read, where
from ..problems import kind, near, shown
from ..stored.plan import Value
from .module import Module, Unread
from .value_types import plain

SHARED = Path(__file__).parent / "original.toml"
APPLIED, SAME, WITHOUT_EFFECT = "applied", "same as ours", "without effect"
OUTCOMES = (APPLIED, SAME, WITHOUT_EFFECT)
_COUNTS = ("", "samples", "micro-steps")
_PER_STEP = ("train_batch_size", "gradient_accumulation_steps")
_NONE = "FlagPerf reads None as not set"


@dataclass(frozen=True)
class TranslationRule:
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

    applied: tuple[TranslationRule, ...] = ()
    without_effect: tuple[Idle, ...] = ()
    base: Mapping[str, float] = field(default_factory=dict)
    """FlagPerf's default values for names that a vendor's file does not set."""


@dataclass(frozen=True)
class TranslationTable:
    """FlagPerf's names in one suite."""

    applied: tuple[TranslationRule, ...]
    idle: Mapping[str, Idle]
    """Names without effect."""
    base: Mapping[str, Value]

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
class TranslatedName:
    """The outcome of one name in a file: applied, same as ours or without effect."""

    key: str
    value: str
    where: str
    outcome: str
    effect: str
    """The keys of ours that the name sets, or why it has no effect."""


@dataclass(frozen=True)
class Setting:
    """A value of ours, and the name of FlagPerf that sets it, as a file or FlagPerf's defaults give it."""

    rule: TranslationRule
    given: Value
    value: object

    @property
    def effect(self) -> str:
        effect = f"{self.rule.ours} = {shown(self.value)}"
        return f"{effect}; {self.rule.note}" if self.rule.note else effect


def translation_table(folder: Path, keys: Collection[str] = (), place: Path | None = None) -> TranslationTable:
    """Return FlagPerf's names for the suite with this config folder and these keys; ``place`` is shown for the folder.

    The table of all suites applies to names that are neither a key of the suite nor in its own table.
    """
    file = folder / SHARED.name
    shared = _read(SHARED, SHARED.stat().st_mtime_ns, SHARED.name).without(keys)
    if not file.is_file():
        return shared
    own = _read(file, file.stat().st_mtime_ns, ((place or folder) / file.name).as_posix())
    shared = shared.without(own.names)
    return TranslationTable((*own.applied, *shared.applied), {**shared.idle, **own.idle}, own.base)


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int, name: str) -> TranslationTable:
    table = read(_File, file)
    problems = [
        f"{where(file, 'applied', str(number), 'counts')}: counts is {rule.counts!r}; expected samples or micro-steps"
        for number, rule in enumerate(table.applied)
        if rule.counts not in _COUNTS
    ]
    if problems:
        raise CatalogError(problems)
    idle = {key: entry for entry in table.without_effect for key in entry.keys}
    lines = {key: int(where(file, "base", key).rpartition(":")[2]) for key in table.base}
    base = {key: Value(_as_whole(value), name, lines[key], "vendor") for key, value in table.base.items()}
    return TranslationTable(table.applied, idle, base)


def concerns(table: TranslationTable, module: Module, ours: Collection[str]) -> bool:
    """Return True if a file contains FlagPerf's names."""
    theirs = table.names
    return any(name in theirs and name not in ours for name in (*module.names, *module.unread))


def names_target(key: str) -> bool:
    return key == "target" or key.startswith("target_")


def translate(
    table: TranslationTable, module: Module, lower: Mapping[str, object], cards: int
) -> tuple[list[Setting], list[TranslatedName], list[str]]:
    """Return the keys that a file changes or whose target it repeats, the outcome of each of its names, and problems.

    ``lower`` has the values of the layers below.
    """
    everything: dict[str, Value | Unread] = {**module.names, **module.unread}
    outcomes: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    names = dict(_with_effect(table, everything, lower, outcomes, problems))
    settings = _settings(table, names, lower, cards, outcomes, problems)
    changes = [one for one in settings if not _is_same(one, lower)]
    changed = {one.rule.theirs for one in changes if not names_target(one.rule.ours)}
    for name in {setting.rule.theirs for setting in settings}:
        effects = [setting.effect for setting in settings if setting.rule.theirs == name]
        outcomes[name] = APPLIED if name in changed else SAME, ", ".join(effects)
    translated = [
        TranslatedName(name, _text(given), given.where, *outcomes[name])
        for name, given in everything.items()
        if name in outcomes
    ]
    return changes, translated, problems


def _with_effect(
    table: TranslationTable,
    names: Mapping[str, Value | Unread],
    lower: Mapping[str, object],
    outcomes: dict[str, tuple[str, str]],
    problems: list[str],
) -> Iterator[tuple[str, Value]]:
    """Yield the names that have an effect, with their values; note the outcome of the others."""
    for name, given in names.items():
        if (idle := table.idle.get(name)) is not None:
            value = _text(given)
            outcomes[name] = SAME if idle.only and value != "None" else WITHOUT_EFFECT, idle.reason
            if idle.only and value not in ("None", idle.only):
                problems.append(f"{given.where}: {name} = {value}: expected {idle.only}: {idle.reason}")
        elif isinstance(given, Unread):
            if name in table.names or name in lower or not given.imported:
                problems.append(f"{given.where}: {name}: {given.reason}")
        elif given.value is None:
            outcomes[name] = WITHOUT_EFFECT, _NONE
        else:
            yield name, given


def _settings(
    table: TranslationTable,
    names: Mapping[str, Value],
    lower: Mapping[str, object],
    cards: int,
    outcomes: dict[str, tuple[str, str]],
    problems: list[str],
) -> list[Setting]:
    """Return the values of ours: those of FlagPerf's names, then those of our names in the same file."""
    ruled = {rule.theirs for rule in table.applied}
    direct = {name: given for name, given in names.items() if name not in ruled}
    known = {**table.base, **names}
    settings = []
    for rule in _deciding(table, names, outcomes):
        given, own = known[rule.theirs], direct.get(rule.ours)
        if own is not None and rule.theirs not in names:
            continue  # the file's value replaces FlagPerf's default
        try:
            setting = Setting(rule, given, plain(_our_value(rule, known, names, lower, cards)))
        except ValueError as error:
            problems.append(f"{given.where}: {rule.theirs} = {shown(given.value)}: {error}")
            continue
        settings.append(setting)
        if own is not None and setting.value != own.value:
            other = f"{rule.theirs} also sets this key, to {shown(setting.value)} ({given.where})"
            problems.append(f"{own.where}: {rule.ours} = {shown(own.value)}: {other}; keep one of the two")
    return settings + [
        Setting(TranslationRule(name, name), given, plain(given.value)) for name, given in direct.items()
    ]


def _is_same(setting: Setting, lower: Mapping[str, object]) -> bool:
    ours = setting.rule.ours
    return not names_target(ours) and ours in lower and same(setting.value, lower[ours])


def _deciding(
    table: TranslationTable, names: Mapping[str, Value], outcomes: dict[str, tuple[str, str]]
) -> Iterator[TranslationRule]:
    """Yield the rule of each key of ours that has one; the file's other names of the key have no effect.

    FlagPerf's programs ask one name after the other, in the table's order, whether it is set: ``if warmup_proportion:
    ... elif warmup_steps: ...``. So the first value that is not 0 or False decides; if all are, the file's last one.
    """
    rules: dict[str, list[TranslationRule]] = {}
    known = {**table.base, **names}
    for rule in table.applied:
        if rule.theirs in known:
            rules.setdefault(rule.ours, []).append(rule)
    for candidates in rules.values():
        in_file = [rule for rule in candidates if rule.theirs in names]
        decides = next((rule for rule in candidates if known[rule.theirs].value), (in_file or candidates)[-1])
        given = known[decides.theirs]
        others = [rule.theirs for rule in in_file if rule.theirs != decides.theirs]
        reason = f"{decides.theirs} = {shown(given.value)} decides ({given.where})"
        outcomes |= dict.fromkeys(others, (WITHOUT_EFFECT, reason))
        yield decides


def _our_value(
    rule: TranslationRule,
    known: Mapping[str, Value],
    names: Mapping[str, Value],
    lower: Mapping[str, object],
    cards: int,
) -> object:
    """Return our value for a value of FlagPerf; raise ValueError with the expectation that it does not meet."""
    value = known[rule.theirs].value
    if rule.values:
        if repr(value) not in rule.values:
            raise ValueError(f"expected {' or '.join(rule.values)}")
        return rule.values[repr(value)]
    if rule.counts or rule.share_of or rule.factor != 1.0:
        number = _number(value)
        if number is None:
            raise ValueError(f"expected a number, got {kind(value)}")
        if number < 0:
            raise ValueError("expected 0 or more")
        if rule.share_of:
            whole = _number(known[rule.share_of].value) if rule.share_of in known else None
            if whole is None:
                fix = f"also write {rule.share_of} as a number in this file"
                raise ValueError(f"a fraction of {rule.share_of}; {fix}")
            return round(number * (whole // _per_step(rule, names, lower, cards)))
        if rule.counts:
            return max(1 if number > 0 else 0, int(number // _per_step(rule, names, lower, cards)))
        value = number * rule.factor
    elif isinstance(value, list) and len(value) == 1:
        value = value[0]  # lr = [1e-3]: fairseq has a learning rate for each epoch
    # 4.5e6 samples become 4500000.
    is_count = isinstance(lower.get(rule.ours), int) or rule.ours.endswith(("_steps", "_samples", "_epochs"))
    return _as_whole(value) if is_count and isinstance(value, float) else value


def _per_step(rule: TranslationRule, names: Mapping[str, Value], lower: Mapping[str, object], cards: int) -> int:
    """Return the number of FlagPerf's units in one optimizer step."""
    counts = {key: names[key].value if key in names else lower.get(key) for key in _PER_STEP}
    batch, accumulation = (value if isinstance(value, int) and value > 0 else 1 for value in counts.values())
    return {"": 1, "samples": batch * accumulation * cards, "micro-steps": accumulation}[rule.counts]


def unknown(name: str, given: Value, suite: str, table: TranslationTable, ours: Collection[str]) -> str:
    """Return the problem of a name that is neither a key of ours nor in the table."""
    value = f" = {shown(given.value)}" if isinstance(given.value, (bool, int, float)) else f" ({kind(given.value)})"
    return (
        f"{given.where}: {name}{value}: {suite} has no such key, and its config/{SHARED.name} has no such name;"
        f" remove the line, or add the name to that table{near(name, sorted({*ours, *table.names}))}"
    )


def same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _text(given: Value | Unread) -> str:
    return given.source if isinstance(given, Unread) else shown(given.value)


def _as_whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
