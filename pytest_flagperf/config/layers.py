"""The layers of a case's config, lowest first, and where each value came from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import flagperf_driver

from ..case import Case
from ..catalog import REFERENCE, Catalog, Scale, Suite, Vendor
from ..problems import near, shown
from . import translation
from .assignments import Assigned, Unread
from .module import ConfigError, Module, load
from .translation import APPLIED, SAME, UNREAD, Setting, Translated, TranslationTable
from .value_types import ValueType, out_of_range, plain, unsayable, value_type_of
from .values import CASES_OWN, Deviation, Resolved, Value

DEFAULTS = Path(flagperf_driver.__file__).parent / "defaults.py"
REQUIRED = ("vendor", "data_dir")
DATA_KEYS = ("train_data", "eval_data", "init_checkpoint")
"""Keys that name something below ``data_dir``."""
NO_DEVIATION = (*CASES_OWN, "expected_time_s")
"""The case's own keys, and keys that change nothing of the training."""
SUITES_OWN = ("defaults", "suite", "scale")
"""The layers that a suite's author writes."""
PER_STEP = ("train_batch_size", "gradient_accumulation_steps", "samples_per_item")
"""The keys whose product is the largest number of samples of a step on one card."""


def resolve(
    suite: Suite,
    vendor: Vendor,
    case: Case,
    scale: str,
    settings: Mapping[str, Value],
    *,
    catalog: Catalog,
    check_data: bool = True,
    defaults: Path = DEFAULTS,
) -> Resolved:
    """All layers of a case in one; raises one ConfigError with everything that is wrong in them."""
    resolver = _Resolver(suite, vendor, case, suite.scales[scale], settings, catalog, defaults)
    resolver.merge()
    if check_data:
        resolver.check_data()
    if resolver.problems:
        raise ConfigError(resolver.problems)
    translated = tuple(resolver.translated)
    return Resolved(resolver.values, tuple(resolver.deviations()), tuple(resolver.files), translated)


class _Resolver:
    """Merges the layers in order; goes on after a problem, so that all are told at once."""

    def __init__(
        self,
        suite: Suite,
        vendor: Vendor,
        case: Case,
        scale: Scale,
        settings: Mapping[str, Value],
        catalog: Catalog,
        defaults: Path,
    ) -> None:
        self.suite, self.vendor, self.case, self.scale = suite, vendor, case, scale
        self.settings, self.catalog, self.defaults = settings, catalog, defaults
        self.folder = suite.path / "config"
        self.values: dict[str, Value] = {}
        self.reference: dict[str, Value] = {}
        self.types: dict[str, ValueType] = {}
        self.files: list[Path] = []
        self.problems: list[str] = []
        self.translated: list[Translated] = []
        self.broken: set[Path] = set()
        """Files of which nothing is known: nobody is blamed for what only they could say."""

    def merge(self) -> None:
        self._lay_ground(self._load(self.defaults), "defaults")
        self._lay_ground(self._load(self.folder / "_base.py"), "suite")
        self._require()
        if self.scale.name != REFERENCE:
            self._lay(self._load(self.folder / f"_{self.scale.name}.py"), "scale", allowed=None)
        self.reference = dict(self.values)
        if self.scale.name == REFERENCE:
            config = self.catalog.configs(self.suite, self.vendor)[self.case.hardware, self.case.shape]
            self._lay_vendors(self._load(config, frameworks=True))
        given = {key: value for key, value in self.settings.items() if value.layer == "setting"}
        self._set(given, self.mutable)
        self._set({key: value for key, value in self.settings.items() if key not in given}, None)
        self._set({"vendor": Value(self.vendor.name, f"case {self.case}", 0, "case")}, None)
        self._limit_evaluations()

    @cached_property
    def mutable(self) -> frozenset[str]:
        """What a vendor's file and ``--set`` may set."""
        file = self.folder / "mutable_params.py"
        common = self._names_in(self.defaults, "MUTABLE")
        own = self._names_in(file, "mutable_params") if file.exists() else []
        return frozenset([*common, *own])

    def check_data(self) -> None:
        """What the config names below data_dir must be there; a small scale brings its data along."""
        data_dir = self.values.get("data_dir")
        if data_dir is None or not (self.scale.data or self.scale.name == REFERENCE):
            return
        if not data_dir.value:
            self.problems += [self._no_data_dir()] if self.scale.data else []
            return
        folder = Path(str(data_dir.value))
        if not folder.is_dir():
            self.problems.append(f"{data_dir.where}: data_dir = {str(folder)!r}: there is no such folder")
            return
        for key in DATA_KEYS:
            value = self.values.get(key)
            if value and value.value and not (folder / str(value.value)).exists():
                self._problem(value, key, f"there is no {folder / str(value.value)}")

    def _no_data_dir(self) -> str:
        needs = f"{self.suite.name} needs its data at scale {self.scale.name}"
        held = f"{self.shown(self.suite.path / 'README.md')} says what it must hold"
        return (
            f"{needs}: name their folder with --data-dir or --case CASE=DATA_DIR ({held}), or measure throughput alone "
            "with --synthetic"
        )

    def deviations(self) -> Iterator[Deviation]:
        for key, value in self.values.items():
            reference = self.reference[key]
            own = key in NO_DEVIATION or value.layer in SUITES_OWN
            if not own and not _same(value.value, reference.value):
                yield Deviation(key, value.value, reference.value, value.file, value.line)

    # -- files -------------------------------------------------------------------------------------------

    def _load(self, file: Path, *, frameworks: bool = False) -> Module:
        if not file.is_file():
            self.problems.append(f"{self.shown(file)}: there is no such file")
            self.broken.add(file)
            return Module(file, {})
        self.files.append(file)
        try:
            return load(file, frameworks=frameworks)
        except ConfigError as error:
            self.broken.add(file)
            here, there = f"{file.parent}/", f"{self.shown(file.parent)}/"
            self.problems += [problem.replace(here, there) for problem in error.problems]
            return Module(file, {})

    def _names_in(self, file: Path, variable: str) -> list[str]:
        """A list of keys; each must exist."""
        given = self._load(file).names.get(variable)
        names = given.value if given else []
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            self.problems.append(f"{self.shown(file)}: {variable} is {shown(names)}; write a list of keys")
            return []
        for name in names:
            if name not in self.values and not self._keys_unknown:
                line = f"{self.shown(file)}:{given.line if given else 1}"
                self.problems.append(f"{line}: {variable} names {name!r}: {self._unknown(name)}")
        return list(names)

    def shown(self, file: Path) -> str:
        """A file by its place in the tree it is in, the same on every machine."""
        for root in (*self.catalog.roots, self.defaults.parent.parent):
            if file.is_relative_to(root):
                return file.relative_to(root).as_posix()
        return str(file)

    @property
    def _keys_unknown(self) -> bool:
        """Whether a file broke whose names are the keys that exist."""
        return not self.broken.isdisjoint({self.defaults, self.folder / "_base.py"})

    @property
    def _mutable_unknown(self) -> bool:
        return not self.broken.isdisjoint({self.defaults, self.folder / "mutable_params.py"})

    # -- layers ------------------------------------------------------------------------------------------

    def _lay_ground(self, module: Module, layer: str) -> None:
        """A layer whose names are the keys that exist."""
        for key, given in module.names.items():
            if layer == "defaults" and key == "MUTABLE":
                continue
            if _names_target(key):
                self._check_target(key, self._value(given, layer))
                continue
            if key not in self.types:
                # An option of every training is None only where it says so; a suite's own key may be.
                self.types[key] = value_type_of(given.value, module.annotations.get(key), none=layer == "suite")
            self._put(key, self._value(given, layer))

    def _lay(self, module: Module, layer: str, *, allowed: frozenset[str] | None) -> None:
        self._set({key: self._value(given, layer) for key, given in module.names.items()}, allowed)

    def _lay_vendors(self, module: Module) -> None:
        """Lay a vendor's file, which may have the original's names."""
        table = translation.translation_table(self.folder, self.values.keys() - set(CASES_OWN))
        if translation.concerns(table, (*module.names, *module.unread), self.values):
            self._lay_originals(module, table)
            return
        for name, given in module.unread.items():
            if name in self.values or not given.imported:
                self.problems.append(f"{self.shown(given.file)}:{given.line}: {name} = {given.source}: {UNREAD}")
        self._lay(module, "vendor", allowed=self.mutable)

    def _lay_originals(self, module: Module, table: TranslationTable) -> None:
        """Lay a file with the original's names, and note what became of each."""
        lower = {key: value.value for key, value in self.values.items()}
        cards = self.case.shape.cards
        found = translation.translate(table, module.names, module.unread, lower, cards, self.shown)
        self.problems += found.problems
        effects: dict[str, list[str]] = {}
        changed = set()
        for setting in found.settings:
            if not self._is_same(setting):
                changed.add(setting.theirs)
                self._lay_one(setting, table)
            effect = f"{setting.ours} = {shown(setting.value)}"
            effects.setdefault(setting.theirs, []).append(f"{effect}; {setting.note}" if setting.note else effect)
        everything: dict[str, Assigned | Unread] = {**module.names, **module.unread}
        for name, given in everything.items():
            value = given.source if isinstance(given, Unread) else shown(given.value)
            at = f"{self.shown(given.file)}:{given.line}"
            if name in effects:
                outcome = APPLIED if name in changed else SAME
                self.translated.append(Translated(name, value, at, outcome, ", ".join(effects[name])))
            elif name in found.others:
                self.translated.append(Translated(name, value, at, *found.others[name]))

    def _is_same(self, setting: Setting) -> bool:
        """Whether the layers below have the value already, or it repeats the target."""
        if _names_target(setting.ours):
            before = len(self.problems)
            self._check_target(setting.theirs, self._value(replace(setting.given, value=setting.value), "vendor"))
            return len(self.problems) == before
        lower = self.values.get(setting.ours)
        return lower is not None and _same(plain(setting.value), lower.value)

    def _lay_one(self, setting: Setting, table: TranslationTable) -> None:
        """Lay one key of ours; problems name the original's name too."""
        if _names_target(setting.ours):
            return
        if setting.ours not in self.values and not self._keys_unknown:
            problem = translation.unknown(setting.theirs, setting.given, self.suite.name, table, self.values)
            self.problems.append(f"{self.shown(setting.given.file)}:{setting.given.line}: {problem}")
            return
        before = len(self.problems)
        self._set({setting.ours: self._value(replace(setting.given, value=setting.value), "vendor")}, self.mutable)
        if setting.theirs != setting.ours:
            theirs = f": {setting.theirs} = {shown(setting.given.value)}, here {setting.ours} ="
            self.problems[before:] = [
                problem.replace(f": {setting.ours} =", theirs, 1) for problem in self.problems[before:]
            ]

    def _set(self, given: Mapping[str, Value], allowed: Iterable[str] | None) -> None:
        for key, value in given.items():
            if _names_target(key):
                self._check_target(key, value)
            elif key not in self.values:
                if not self._keys_unknown:
                    # Without its value, which may be anything, a password too.
                    where = value.where.partition("=")[0] if value.layer == "setting" else f"{value.where}: {key}"
                    self.problems.append(f"{where}: {self._unknown(key)}")
            elif value.layer == "vendor" and key in DATA_KEYS and not _same(value.value, self.values[key].value):
                # Whoever runs a case may, where the suite says so: their data lie elsewhere, their weights are none.
                whose = "the data and the weights to begin with are the suite's"
                self._problem(value, key, f"{whose}, {self.values[key].value!r}; no vendor's config may set others")
            elif allowed is not None and key not in allowed and not self._mutable_unknown:
                self._problem(
                    value, key, f"cannot be set here: it is not in mutable_params{near(key, sorted(allowed))}"
                )
            else:
                self._put(key, value)

    def _put(self, key: str, value: Value) -> None:
        kind = self.types.setdefault(key, ValueType())
        wrong = kind.refusal(value.value)
        fault = unsayable(value.value)
        if wrong:
            self._problem(value, key, _refused(value.value, kind, wrong))
        elif fault:
            self._problem(value, key, fault)
        elif outside := out_of_range(key, value.value):
            self._problem(value, key, outside)
        self.values[key] = Value(plain(value.value), value.file, value.line, value.layer)

    def _value(self, given: Assigned, layer: str) -> Value:
        return Value(given.value, self.shown(given.file), given.line, layer)

    def _require(self) -> None:
        if self._keys_unknown:
            return
        place = f"{self.shown(self.folder / '_base.py')}: "
        self.problems += [f"{place}{key} is missing: give it a value" for key in REQUIRED if key not in self.values]

    # -- targets -----------------------------------------------------------------------------------------

    def _check_target(self, key: str, value: Value) -> None:
        """The suite's own target may be repeated, and then means nothing."""
        target = self._target_at(value)
        number = value.value
        if isinstance(number, (int, float)) and math.isclose(number, target, rel_tol=1e-9):
            return
        self._problem(
            value,
            key,
            f"the quality target is the suite's, {target:g} at scale {self.scale.name} (suite.toml); "
            "no config may set another",
        )

    def _target_at(self, value: Value) -> float:
        """A suite's _base.py speaks of the reference scale, whatever scale is run."""
        of_base = value.file == self.shown(self.folder / "_base.py") and REFERENCE in self.suite.scales
        return self.suite.scales[REFERENCE].target if of_base else self.scale.target

    # -- evaluations -------------------------------------------------------------------------------------

    def _limit_evaluations(self) -> None:
        """Evaluate as often as the suite's ``eval_samples`` requires, at this shape and batch."""
        limit, per_step = self.values.get("eval_samples"), self.case.shape.cards
        for key in PER_STEP:
            size = self.values[key].value if key in self.values else 1
            per_step *= size if isinstance(size, int) else 1
        if self.problems or limit is None or not isinstance(limit.value, int):
            return
        most = max(1, limit.value // per_step)
        for key, least in (("eval_steps", 1), ("eval_start_steps", 0)):
            value = self.values[key]
            steps = value.value
            if isinstance(steps, int) and least <= steps <= most:
                most = steps or most
            elif value.layer in SUITES_OWN:
                self.values[key] = replace(limit, value=most)
            else:
                self._problem(value, key, _long_interval(steps, per_step, limit, f"{least} to {most} steps"))

    # -- words -------------------------------------------------------------------------------------------

    def _problem(self, value: Value, key: str, reason: str) -> None:
        what = "" if value.layer == "setting" else f"{key} = {shown(value.value)}: "
        self.problems.append(f"{value.where}: {what}{reason}")

    def _unknown(self, key: str) -> str:
        return f"{self.suite.name} has no such key{near(key, sorted(self.values))}"


def _names_target(key: str) -> bool:
    return key == "target" or key.startswith("target_")


def _long_interval(steps: object, per_step: int, limit: Value, allowed: str) -> str:
    gap = f"{steps} steps are {steps * per_step:,} samples" if isinstance(steps, int) and steps else "no fixed interval"
    required = f"the suite requires an evaluation in every {limit.value:,} samples (eval_samples, {limit.where})"
    return f"{gap}; {required}; allowed: {allowed}"


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _refused(value: object, kind: ValueType, wanted: str) -> str:
    """Of choices the word is wrong, else its type."""
    if kind.choices and isinstance(value, str):
        return f"allowed is {wanted}{near(value, [each for each in kind.choices if isinstance(each, str)])}"
    return f"is {_type_name(value)}; allowed is {wanted}"


def _type_name(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"
