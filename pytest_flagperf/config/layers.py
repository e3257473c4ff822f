"""Merge the layers of a case's config, lowest first, and keep the origin of each value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import flagperf_driver
from flagperf_driver import options
from flagperf_driver.training.parallel import OF_SUITE, Parallel, ParallelError

from ..case import Case
from ..catalog import REFERENCE, Catalog, Scale, Suite, Vendor
from ..problems import near, shown
from ..stored.plan import Deviation, Value
from . import translation
from .module import Assigned, ConfigError, Module, Unread, load, load_partly
from .translation import APPLIED, SAME, Setting, Translated, TranslationTable
from .value_types import ValueType, not_json, out_of_range, plain, value_type_of
from .values import CASES_OWN, Resolved

DEFAULTS = Path(flagperf_driver.__file__).parent / "defaults.py"
REQUIRED = ("vendor", "data_dir")
DATA_KEYS = ("train_data", "eval_data", "init_checkpoint")
"""Keys whose values are paths below ``data_dir``."""
NO_DEVIATION = (*CASES_OWN, "expected_time_s")
"""The case's own keys, and keys that do not change the training."""
SUITES_OWN = ("defaults", "suite", "scale")
"""The layers that a suite's author writes."""
SAVING = ("checkpoint_steps", "failure_interval_s")
"""The keys that decide when a training saves a checkpoint, each alone."""
PER_STEP = ("train_batch_size", "gradient_accumulation_steps", "samples_per_item")
"""The keys whose product is the largest number of samples of a step on one card."""
# What a vendor's config file may not weaken: how a case is judged, and the bounds by which it is judged.
_JUDGED = "a vendor's config cannot choose how a case is judged; pass it with --set"
_NOT_VENDORS: Mapping[str, str] = {
    "checkpoint_dir": "a vendor's config cannot continue from a checkpoint; pass it with --set",
    "data_dir": "a vendor's config cannot choose the data; pass it with --data-dir",
    "parity_samples": _JUDGED,
    "scaling": _JUDGED,
    "throughput_only": _JUDGED,
}
"""Keys whose value stays the suite's, each with the reason and the user's own way to change it."""
_FIXED = "the suite fixes it (fixed_params in mutable_params.py)"
_AT_LEAST = ("min_efficiency", "throughput_steps", "point_least_s", "point_most_s", "point_warmup_s")
"""Keys that a vendor may only raise."""
_AT_MOST: Mapping[str, float] = {"log_freq": 100, "timing_warmup_steps": 50, "point_interval": 0}
"""Keys that a vendor may raise to this value or the suite's: steps without a record, steps that p_core leaves out."""


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
    """Merge all layers of a case; raise one ConfigError with all problems."""
    resolver = _Resolver(suite, vendor, case, suite.scales[scale], settings, catalog, defaults)
    resolver.merge()
    if check_data:
        resolver.check_data()
    if resolver.problems:
        raise ConfigError(resolver.problems)
    translated = tuple(resolver.translated)
    return Resolved(resolver.values, tuple(resolver.deviations()), tuple(resolver.files), translated)


def keys_of(suite: Suite) -> frozenset[str]:
    """Return the config keys of a suite, as far as its files can be read."""
    defaults = options.files(suite.framework, DEFAULTS.parent, measures=not suite.is_training)
    keys: set[str] = set()
    for file in (*defaults, suite.path / "config" / "_base.py"):
        with suppress(ConfigError, OSError):
            keys.update(load(file).names)
    return frozenset(keys)


@dataclass
class _Resolver:
    """Merges the layers in order, and continues after a problem to collect all of them."""

    suite: Suite
    vendor: Vendor
    case: Case
    scale: Scale
    settings: Mapping[str, Value]
    catalog: Catalog
    defaults: Path
    values: dict[str, Value] = field(default_factory=dict)
    reference: dict[str, Value] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    translated: list[Translated] = field(default_factory=list)
    broken: set[Path] = field(default_factory=set)
    """Unreadable files: no problem is reported for keys that these files may define."""

    def __post_init__(self) -> None:
        self.folder, self.data_ranks = self.suite.path / "config", self.case.shape.cards

    def merge(self) -> None:
        for file in self._defaults:
            self._define_keys(self._load(file), "defaults")
        self._define_keys(self._load(self.folder / "_base.py"), "suite")
        self._require()
        if self.scale.name != REFERENCE:
            self._apply(self._load(self.folder / f"_{self.scale.name}.py"), "scale", allowed=None)
        self.reference = dict(self.values)
        if self.scale.name == REFERENCE:
            config = self.catalog.configs(self.suite, self.vendor).get((self.case.hardware, self.case.shape))
            if config is not None:
                self._apply_vendor(self._load(config, load_partly))
        given = {key: value for key, value in self.settings.items() if value.layer == "setting"}
        self._set(given, self.mutable)
        self._set({key: value for key, value in self.settings.items() if key not in given}, None)
        self._set({"vendor": Value(self.vendor.name, f"case {self.case}", 0, "case")}, None)
        self._check_parallel()
        self._limit_evaluations()
        self._check_checkpoints()

    @cached_property
    def _defaults(self) -> list[Path]:
        """The files with the keys of every framework and, if it exists, with those of the suite's framework."""
        return options.files(self.suite.framework, self.defaults.parent, measures=not self.suite.is_training)

    @cached_property
    def mutable(self) -> frozenset[str]:
        """The keys that a vendor's file and ``--set`` may set."""
        common = [name for defaults in self._defaults for name in self._names_in(self._load(defaults), "MUTABLE")]
        return frozenset([*common, *self._suites_lists["mutable_params"]]) - self.fixed

    @property
    def fixed(self) -> frozenset[str]:
        """The keys of ``MUTABLE`` that the suite fixes, such as hyper-parameters of a rule book."""
        return frozenset(self._suites_lists["fixed_params"])

    @cached_property
    def _suites_lists(self) -> Mapping[str, list[str]]:
        file = self.folder / "mutable_params.py"
        module = self._load(file) if file.exists() else Module(file, {})
        return {variable: self._names_in(module, variable) for variable in ("mutable_params", "fixed_params")}

    def check_data(self) -> None:
        """Check that data_dir and the paths below it exist; a small scale may include its data in the suite."""
        data_dir = self.values.get("data_dir")
        if data_dir is None or not self.suite.reads_data(self.scale.name):
            return
        if not data_dir.value:
            self.problems += [self._no_data_dir()] if self.scale.data else []
            return
        folder = Path(str(data_dir.value))
        if not folder.is_dir():
            self.problems.append(f"{data_dir.where}: data_dir = {str(folder)!r}: no such folder")
            return
        for key in DATA_KEYS:
            value = self.values.get(key)
            if value and value.value and not (folder / str(value.value)).exists():
                self._problem(value, key, f"{folder / str(value.value)} does not exist")

    def _no_data_dir(self) -> str:
        readme = self.shown(self.suite.path / "README.md")
        return (
            f"{self.suite.name} needs its data at scale {self.scale.name}: pass their folder with --data-dir or --case"
            f" CASE=DATA_DIR ({readme} lists the required files), or measure only throughput with --synthetic"
        )

    def deviations(self) -> Iterator[Deviation]:
        for key, value in self.values.items():
            reference = self.reference[key]
            own = key in NO_DEVIATION or value.layer in SUITES_OWN
            if not own and not _same(value.value, reference.value):
                yield Deviation(key, value.value, reference.value, value.file, value.line)

    # -- files -------------------------------------------------------------------------------------------

    def _load(self, file: Path, read: Callable[[Path], Module] = load) -> Module:
        if not file.is_file():
            self.problems.append(f"{self.shown(file)}: no such file")
            self.broken.add(file)
            return Module(file, {})
        self.files.append(file)
        try:
            module = read(file)
        except ConfigError as error:
            self.broken.add(file)
            module = Module(file, {}, problems=tuple(error.problems))
        absolute, relative = f"{file.parent}/", f"{self.shown(file.parent)}/"
        self.problems += [problem.replace(absolute, relative) for problem in module.problems]
        return module

    def _names_in(self, module: Module, variable: str) -> list[str]:
        """Return a list of keys; each must exist."""
        given, file = module.names.get(variable), module.file
        names = given.value if given else []
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            self.problems.append(f"{self.shown(file)}: {variable} is {shown(names)}; expected a list of keys")
            return []
        for name in names:
            if name not in self.values and not self._keys_unknown:
                line = f"{self.shown(file)}:{given.line if given else 1}"
                self.problems.append(f"{line}: {variable} contains {name!r}: {self._unknown(name)}")
        return list(names)

    def shown(self, file: Path) -> str:
        """Return the path of a file relative to its root, which is the same on every machine."""
        for root in (*self.catalog.roots, self.defaults.parent.parent):
            if file.is_relative_to(root):
                return file.relative_to(root).as_posix()
        return str(file)

    @property
    def _keys_unknown(self) -> bool:
        """Return True if a file that defines the existing keys is unreadable."""
        return not self.broken.isdisjoint({*self._defaults, self.folder / "_base.py"})

    @property
    def _mutable_unknown(self) -> bool:
        return not self.broken.isdisjoint({*self._defaults, self.folder / "mutable_params.py"})

    # -- layers ------------------------------------------------------------------------------------------

    def _define_keys(self, module: Module, layer: str) -> None:
        """Add a layer whose names define the existing keys."""
        for key, given in module.names.items():
            if layer == "defaults" and key == "MUTABLE":
                continue
            if _names_target(key):
                self._check_target(key, self._value(given, layer))
                continue
            if key not in self.types or (layer == "suite" and key in module.annotations):
                # A key of defaults.py may be None only if its annotation allows it; a suite's own key always may.
                # A suite's annotation of such a key allows values that only this suite supports.
                self.types[key] = value_type_of(given.value, module.annotations.get(key), none=layer == "suite")
            self._put(key, self._value(given, layer))

    def _apply(self, module: Module, layer: str, *, allowed: frozenset[str] | None) -> None:
        self._set({key: self._value(given, layer) for key, given in module.names.items()}, allowed)

    def _apply_vendor(self, module: Module) -> None:
        """Apply a vendor's file, which may contain FlagPerf's names."""
        table = translation.translation_table(self.folder, self.values.keys() - set(CASES_OWN))
        if translation.concerns(table, (*module.names, *module.unread), self.values):
            self._apply_translated(module, table)
            return
        for name, given in module.unread.items():
            if name in self.values or not given.imported:
                self.problems.append(f"{self.shown(given.file)}:{given.line}: {name}: {given.reason}")
        self._apply(module, "vendor", allowed=self.mutable)

    def _apply_translated(self, module: Module, table: TranslationTable) -> None:
        """Apply a file with FlagPerf's names, and note the outcome of each name."""
        lower = {key: value.value for key, value in self.values.items()}
        cards = self.case.shape.cards
        result = translation.Translator(table, module.names, module.unread, lower, cards, self.shown).translate()
        self.problems += result.problems
        effects: dict[str, list[str]] = {}
        changed = set()
        for setting in result.settings:
            if not self._is_same(setting):
                changed.add(setting.theirs)
                self._apply_setting(setting, table)
            effect = f"{setting.ours} = {shown(setting.value)}"
            effects.setdefault(setting.theirs, []).append(f"{effect}; {setting.note}" if setting.note else effect)
        everything: dict[str, Assigned | Unread] = {**module.names, **module.unread}
        for name, given in everything.items():
            value = given.source if isinstance(given, Unread) else shown(given.value)
            at = f"{self.shown(given.file)}:{given.line}"
            if name in effects:
                outcome = APPLIED if name in changed else SAME
                self.translated.append(Translated(name, value, at, outcome, ", ".join(effects[name])))
            elif name in result.others:
                self.translated.append(Translated(name, value, at, *result.others[name]))

    def _is_same(self, setting: Setting) -> bool:
        """Return True if the layers below already have the value, or if it repeats the target."""
        if _names_target(setting.ours):
            before = len(self.problems)
            self._check_target(setting.theirs, self._value(replace(setting.given, value=setting.value), "vendor"))
            return len(self.problems) == before
        lower = self.values.get(setting.ours)
        return lower is not None and _same(plain(setting.value), lower.value)

    def _apply_setting(self, setting: Setting, table: TranslationTable) -> None:
        """Apply one translated value; problems also contain FlagPerf's name."""
        if _names_target(setting.ours):
            return
        if setting.ours not in self.values and not self._keys_unknown:
            problem = translation.unknown(setting.theirs, setting.given, self.suite.name, table, self.values)
            self.problems.append(f"{self.shown(setting.given.file)}:{setting.given.line}: {problem}")
            return
        before = len(self.problems)
        self._set({setting.ours: self._value(replace(setting.given, value=setting.value), "vendor")}, self.mutable)
        if setting.theirs != setting.ours:
            names = f": {setting.theirs} = {shown(setting.given.value)}, here {setting.ours} ="
            self.problems[before:] = [
                problem.replace(f": {setting.ours} =", names, 1) for problem in self.problems[before:]
            ]

    def _set(self, given: Mapping[str, Value], allowed: Iterable[str] | None) -> None:
        for key, value in given.items():
            if _names_target(key):
                self._check_target(key, value)
            elif key not in self.values:
                if not self._keys_unknown:
                    # Without the value, which may be a password.
                    where = value.where.partition("=")[0] if value.layer == "setting" else f"{value.where}: {key}"
                    self.problems.append(f"{where}: {self._unknown(key)}")
            elif value.layer == "vendor" and key in DATA_KEYS and not _same(value.value, self.values[key].value):
                # --set may change these keys if they are mutable: a user's data may be in other files.
                expected = f"expected the suite's {self.values[key].value!r}"
                self._problem(value, key, f"{expected}; a vendor's config cannot change the data or initial weights")
            elif allowed is not None and key not in allowed and not self._mutable_unknown:
                names = f"it is not in mutable_params{near(key, sorted(allowed))}"
                self._problem(value, key, f"cannot be set here: {_FIXED if key in self.fixed else names}")
            elif value.layer == "vendor" and (problem := _weakening(key, value.value, self._suites(key))):
                self._problem(value, key, problem)
            else:
                self._put(key, value)

    def _suites(self, key: str) -> object:
        """Return the value of a key without the vendor's config; the required efficiency has a default by device."""
        value = self.reference[key].value
        if key != "min_efficiency":
            return value
        return self.vendor.min_efficiency(self.suite.framework, value if isinstance(value, (int, float)) else None)

    def _put(self, key: str, value: Value) -> None:
        kind = self.types.setdefault(key, ValueType())
        value = replace(value, value=kind.read(value.value))
        expected = kind.expectation(value.value)
        problem = not_json(value.value) or out_of_range(key, value.value)
        if expected:
            self._problem(value, key, _type_problem(value.value, kind, expected))
        elif problem:
            self._problem(value, key, problem)
        self.values[key] = Value(plain(value.value), value.file, value.line, value.layer)

    def _value(self, given: Assigned, layer: str) -> Value:
        return Value(given.value, self.shown(given.file), given.line, layer)

    def _require(self) -> None:
        if self._keys_unknown:
            return
        place = f"{self.shown(self.folder / '_base.py')}: "
        self.problems += [f"{place}{key} is missing; set a value" for key in REQUIRED if key not in self.values]

    # -- targets -----------------------------------------------------------------------------------------

    def _check_target(self, key: str, value: Value) -> None:
        """Check that a config does not change the suite's target; repeating its value has no effect."""
        target = self._target_at(value)
        number = value.value
        if math.isnan(target):
            self._problem(value, key, "a measurement has no target; remove the key")
            return
        if isinstance(number, (int, float)) and math.isclose(number, target, rel_tol=1e-9):
            return
        self._problem(
            value,
            key,
            f"expected the suite's target {target:g} at scale {self.scale.name} (suite.toml); "
            "a config cannot change the target",
        )

    def _target_at(self, value: Value) -> float:
        """Return the target to compare with; a suite's _base.py is for the reference scale at any scale."""
        of_base = value.file == self.shown(self.folder / "_base.py") and REFERENCE in self.suite.scales
        return self.suite.scales[REFERENCE].target if of_base else self.scale.target

    # -- the ranks ---------------------------------------------------------------------------------------

    def _check_parallel(self) -> None:
        """Check how the ranks share the model: against the shape, and the sizes that the suite's model has."""
        value = self.values.get("parallel")
        if self.problems or value is None:
            return
        try:
            parallel = Parallel.of(value.value, self.case.shape.cards)
        except ParallelError as error:
            self._problem(value, "parallel", str(error))
            return
        self.data_ranks = parallel.data_ranks
        for axis in OF_SUITE:
            size, keys = getattr(parallel, axis), self.suite.ranks.parallel.get(axis)
            if size > 1 and keys is None:
                self._problem(value, "parallel", f"{self.suite.name} does not support {axis}; expected {axis} = 1")
            for key in keys or ():
                self._check_divides(value, axis, size, key)

    def _check_divides(self, parallel: Value, axis: str, size: int, key: str) -> None:
        """Check that the size of an axis divides the value of a key that suite.toml names."""
        value = self.values.get(key)
        if value is None or not isinstance(value.value, int):
            got = "no such key" if value is None else f"its value is {shown(value.value)}, expected a whole number"
            file = self.shown(self.suite.path / "suite.toml")
            self.problems.append(f"{file}: parallel.{axis} contains {key!r}: {got}")
        elif value.value % size:
            divided = f"{key} = {value.value} ({value.where})"
            self._problem(parallel, "parallel", f"{axis} = {size} does not divide {divided}")

    # -- evaluations -------------------------------------------------------------------------------------

    def _limit_evaluations(self) -> None:
        """Evaluate as often as the suite's ``eval_samples`` requires, at this shape and batch."""
        limit, per_step = self.values.get("eval_samples"), self.data_ranks
        for key in PER_STEP:
            size = self.values[key].value if key in self.values else 1
            per_step *= size if isinstance(size, int) else 1
        if self.problems or limit is None or not isinstance(limit.value, int):
            return
        maximum = max(1, limit.value // per_step)
        for key, minimum in (("eval_steps", 1), ("eval_start_steps", 0)):
            value = self.values[key]
            steps = value.value
            if isinstance(steps, int) and minimum <= steps <= maximum:
                maximum = steps or maximum
            elif value.layer in SUITES_OWN:
                self.values[key] = replace(limit, value=maximum)
            else:
                self._problem(value, key, _long_interval(steps, per_step, limit, f"{minimum} to {maximum} steps"))

    # -- checkpoints -------------------------------------------------------------------------------------

    def _check_checkpoints(self) -> None:
        """Check that checkpoints have a folder that a later run finds."""
        folder = self.values.get("checkpoint_dir")
        if self.problems or folder is None:
            return
        if folder.value and not Path(str(folder.value)).is_absolute():
            self._problem(
                folder, "checkpoint_dir", "expected an absolute path, so that a later run finds the checkpoint"
            )
        for key in SAVING:
            value = self.values[key]
            if value.value and not folder.value:
                self._problem(value, key, "a checkpoint needs a folder; pass --set=checkpoint_dir=DIR")

    # -- problems ----------------------------------------------------------------------------------------

    def _problem(self, value: Value, key: str, reason: str) -> None:
        assignment = "" if value.layer == "setting" else f"{key} = {shown(value.value)}: "
        self.problems.append(f"{value.where}: {assignment}{reason}")

    def _unknown(self, key: str) -> str:
        for file in sorted(self.defaults.parent.glob("*/defaults.py")):
            if file not in self._defaults and key in load(file).names:
                others = "measurements" if file.parent.name == "measuring" else f"suites of {file.parent.name}"
                return f"{self.suite.name} has no such key; only {others} have it"
        return f"{self.suite.name} has no such key{near(key, sorted(self.values))}"


def _names_target(key: str) -> bool:
    return key == "target" or key.startswith("target_")


def _long_interval(steps: object, per_step: int, limit: Value, allowed: str) -> str:
    interval = (
        f"{steps} steps are {steps * per_step:,} samples" if isinstance(steps, int) and steps else "no fixed interval"
    )
    required = f"the suite requires an evaluation every {limit.value:,} samples (eval_samples, {limit.where})"
    return f"{interval}; {required}; expected {allowed}"


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _type_problem(value: object, kind: ValueType, expected: str) -> str:
    """Return the problem of a value that is not a choice, or has another type."""
    if kind.choices and isinstance(value, str):
        return f"expected {expected}{near(value, [choice for choice in kind.choices if isinstance(choice, str)])}"
    return f"is {_type_name(value)}; expected {expected}"


def _type_name(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _weakening(key: str, value: object, suites: object) -> str | None:
    """Return what is allowed instead if a vendor's value weakens the judgement; ``suites``: the value without it."""
    if value == suites:
        return None
    if key in _NOT_VENDORS:
        return f"expected the suite's {suites!r}; {_NOT_VENDORS[key]}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isinstance(suites, (int, float)):
        return f"expected at least {suites!r}" if key in _AT_LEAST and value is None else None
    if key in _AT_LEAST and value < suites:
        return f"expected at least {suites!r}; a vendor's config may ask for more, not for less"
    if key in _AT_MOST and value > (most := max(suites, _AT_MOST[key])):
        return f"expected at most {most!r} in a vendor's config"
    return None
