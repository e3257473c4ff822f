"""Merge the layers of a case's config, lowest first, and keep the origin of each value."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import flagperf_driver
from flagperf_driver.training.parallel import OF_SUITE, Parallel, ParallelError

from .. import redaction
from ..case import Case, case_of
from ..catalog import REFERENCE, Catalog, Scale, Suite, Vendor, framework_of
from ..kind import kind_of
from ..problems import near, shown
from ..stored.plan import EACH, PEAKS, Deviation, Value, config_of
from ..typed import Rule
from . import translation
from .module import ConfigError, Module, load, load_partly
from .translation import TranslatedName, names_target, same
from .value_types import is_size, kind_of_key, kind_problem, not_json, out_of_range, plain, read_value

DEFAULTS = Path(flagperf_driver.__file__).parent / "defaults.py"
CASES_OWN = ("vendor", "data_dir")
"""Keys that a case always sets; each has its own option."""
DATA_KEYS = ("train_data", "eval_data", "init_checkpoint")
"""Keys whose values are paths below ``data_dir``."""
_FORMER = {"float8=True": "precision=float8"}
"""Settings that earlier versions had, by their form today."""
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
_KEYS = Annotated[list[str], Rule("a list of keys", lambda _: True)]
_PUBLIC = (
    "an address with a user name, a password or a token is not accepted: parameters are stored in the report; set an"
    " environment variable of the ranks instead"
)


@dataclass(frozen=True)
class Resolved:
    """A config whose layers are merged and whose values are checked."""

    values: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    translated: tuple[TranslatedName, ...]
    """The outcome of each FlagPerf name in the vendor's file."""

    @property
    def config(self) -> dict[str, Any]:
        return config_of(self.values)


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
    draft = _Draft(suite, vendor, case, suite.scales[scale], catalog, defaults)
    _define_keys(draft)
    _apply_scale(draft)
    draft.suites = dict(draft.values)
    _apply_vendor(draft)
    given = {**settings, **values_of_variant(case)}
    for key, value in {**given, "vendor": Value(vendor.name, f"case {case}", 0, "case")}.items():
        draft.set(key, value)
    # The values are complete: what follows compares them with each other.
    if not draft.problems:
        data_ranks = _data_ranks(draft)
        _limit_evaluations(draft, data_ranks)
        _check_checkpoints(draft)
        _check_chip(draft)
    if check_data:
        _check_data(draft)
    if draft.problems:
        raise ConfigError(draft.problems)
    return Resolved(draft.values, tuple(_deviations(draft)), tuple(draft.translated))


def keys_of(suite: Suite) -> frozenset[str]:
    """Return the config keys of a suite, as far as its files can be read."""
    keys: set[str] = set()
    for file in (*_defaults_of(suite, DEFAULTS), suite.path / "config" / "_base.py"):
        with suppress(ConfigError, OSError):
            keys.update(load(file).names)
    return frozenset(keys)


def parse_settings(items: Sequence[str], source: str = "") -> dict[str, Value]:
    """Parse ``key=value`` items; a value is a Python literal, else a string. ``source`` is the file with the items."""
    where = f"{source}: --set" if source else "--set"
    problems = []
    values = {}
    for item in (_FORMER.get(item, item) for item in items):
        key, _, text = item.partition("=")
        problems += _problem_of_item(item, where, "key=value")
        values[key] = Value(_literal(text), f"{where} {item}", 0, "setting")
    if problems:
        raise ConfigError(problems)
    return values


def parse_sweep(items: Sequence[str], source: str, settings: Collection[str]) -> list[tuple[tuple[str, str], ...]]:
    """Return the variants of a case, one for each combination of the values in ``key=value,value`` items.

    ``source`` is the file with the items, ``settings`` are the keys that --set sets.
    """
    where = f"{source}: {EACH}" if source else EACH
    problems: list[str] = []
    values: dict[str, list[str]] = {}
    for item in items:
        key, _, text = item.partition("=")
        texts = [value.strip() for value in text.split(",")]
        place, repeated = f"{where} {key}", _repeated(texts)
        unnamed = next((text for text in texts if "+" in text or not case_of(f"m:f:h:1:1:1:{key}-{text}")), None)
        if problem := _problem_of_item(item, where, "key=value,value"):
            problems += problem
        elif key in values or key in settings:
            problems.append(f"{place}: {'already in another --each' if key in values else 'also in --set'}; remove one")
        elif "" in texts:
            problems.append(f"{place}: value {texts.index('') + 1} of {len(texts)} is empty; expected key=value,value")
        elif repeated:
            problems.append(f"{place}: value {repeated} is listed twice")
        elif unnamed:
            expected = "expected letters, digits and . _ -"
            problems.append(f"{place}: value {unnamed!r} cannot be in the name of a case; {expected}")
        values.setdefault(key, texts)
    if problems:
        raise ConfigError(problems)
    # Where memory ends, the smaller sizes have run.
    for key, texts in values.items():
        values[key] = sorted(texts, key=int) if all(is_size(key, text) for text in texts) else texts
    pairs = [[(key, text) for text in texts] for key, texts in values.items()]
    return [tuple(sorted(variant)) for variant in product(*pairs)]


def _problem_of_item(item: str, where: str, expected: str) -> list[str]:
    """Return the problem of an item of --set or --each that no config is needed for."""
    key, equals, _ = item.partition("=")
    public = redaction.assignment(item)
    if not equals or not key.isidentifier():
        return [f"{where} {public}: expected {expected}"]
    if public != item:
        return [f"{where} {public}: {_PUBLIC}"]
    if key in CASES_OWN:
        return [f"{where} {key}: cannot be set; use --{key.replace('_', '-')}"]
    return []


def _repeated(texts: Sequence[str]) -> str | None:
    """Return a text whose value an earlier text has, such as 8.0 after 8 or 1e-3 after 0.001."""
    values = [_literal(text) for text in texts]
    return next((text for number, text in enumerate(texts) if values[number] in values[:number]), None)


def values_of_variant(case: Case) -> dict[str, Value]:
    """Return the values that the variant of a case sets."""
    return {key: Value(_literal(text), f"{EACH} {key}={text}", 0, "setting") for key, text in case.variant}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


@dataclass
class _Draft:
    """The config of a case while its layers are merged, which go on after a problem to collect all of them."""

    suite: Suite
    vendor: Vendor
    case: Case
    scale: Scale
    catalog: Catalog
    defaults: Path
    values: dict[str, Value] = field(default_factory=dict)
    kinds: dict[str, Any] = field(default_factory=dict)
    """The kind of each key's values, as ``typed`` describes it."""
    mutable: frozenset[str] = frozenset()
    """The keys that a vendor's file and ``--set`` may set."""
    fixed: frozenset[str] = frozenset()
    """Of the defaults' ``MUTABLE``, the keys that the suite fixes, such as hyper-parameters of a rule book."""
    suites: Mapping[str, Value] = field(default_factory=dict)
    """The values without the vendor's and the case's."""
    translated: list[TranslatedName] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    keys_known: bool = True
    """False if a file that defines the existing keys is unreadable: then no problem is reported for unknown keys."""
    mutable_known: bool = True

    @property
    def folder(self) -> Path:
        return self.suite.path / "config"

    def load(self, file: Path, layer: str, read: Callable[[Path, str, str], Module] = load) -> Module | None:
        """Return the names of a file, with its path relative to its root; None if it is unreadable."""
        if not file.is_file():
            self.problems.append(f"{self.shown(file)}: no such file")
            return None
        try:
            module = read(file, layer, self.shown(file.parent))
        except ConfigError as error:
            self.problems += error.problems
            return None
        self.problems += module.problems
        return module

    def shown(self, file: Path) -> str:
        """Return the path of a file relative to its root, which is the same on every machine."""
        for root in (*self.catalog.roots, self.defaults.parent.parent):
            if file.is_relative_to(root):
                return file.relative_to(root).as_posix()
        return str(file)

    def set(self, key: str, value: Value, assignment: str = "") -> None:
        """Set a key in a layer above the suite's, if it exists and the layer may set it.

        ``assignment`` is what problems show, as in ``key = value``.
        """
        if names_target(key):
            self.check_target(key, value, assignment)
        elif key not in self.values:
            if self.keys_known:
                # Without the value, which may be a password.
                where = value.where.partition("=")[0] if value.layer == "setting" else f"{value.where}: {key}"
                self.problems.append(f"{where}: {self.unknown(key)}")
        elif problem := self._refusal(key, value):
            self.problem(value, key, problem, assignment)
        else:
            self.put(key, value, assignment)

    def _refusal(self, key: str, value: Value) -> str | None:
        """Return why the value's layer may not set a key to it."""
        of_vendor, suites = value.layer == "vendor", self.suites.get(key, Value()).value
        if of_vendor and key in DATA_KEYS and not same(value.value, suites):
            # --set may change these keys if they are mutable: a user's data may be in other files.
            return f"expected the suite's {suites!r}; a vendor's config cannot change the data or initial weights"
        if value.layer in ("vendor", "setting") and key not in self.mutable and self.mutable_known:
            names = f"it is not in mutable_params{near(key, sorted(self.mutable))}"
            return f"cannot be set here: {_FIXED if key in self.fixed else names}"
        if of_vendor and key == "min_efficiency":  # it has a default by device
            least = suites if isinstance(suites, (int, float)) else None
            suites = self.vendor.min_efficiency(framework_of(self.suite), least)
        return _weakening(key, value.value, suites) if of_vendor else None

    def put(self, key: str, value: Value, assignment: str = "") -> None:
        """Set an existing key, and check its kind and range."""
        kind = self.kinds[key]
        value = replace(value, value=read_value(value.value, kind))
        given = value.value
        if problem := not_json(given) or kind_problem(given, kind) or out_of_range(key, given):
            self.problem(value, key, problem, assignment)
        self.values[key] = replace(value, value=plain(value.value))

    def check_target(self, key: str, value: Value, assignment: str = "") -> None:
        """Check that a config does not change the suite's target; repeating its value has no effect."""
        # A suite's _base.py is for the reference scale at any scale.
        of_base = value.layer == "suite" and REFERENCE in self.suite.scales
        target = (self.suite.scales[REFERENCE] if of_base else self.scale).target.value
        number = value.value
        if target is None:
            self.problem(value, key, "a measurement has no target; remove the key", assignment)
        elif not isinstance(number, (int, float)) or not math.isclose(number, target, rel_tol=1e-9):
            expected = f"expected the suite's target {target:g} at scale {self.scale.name} (suite.toml)"
            self.problem(value, key, f"{expected}; a config cannot change the target", assignment)

    def problem(self, value: Value, key: str, reason: str, assignment: str = "") -> None:
        text = "" if value.layer == "setting" else f"{assignment or f'{key} = {shown(value.value)}'}: "
        self.problems.append(f"{value.where}: {text}{reason}")

    def unknown(self, key: str) -> str:
        for file in sorted(self.defaults.parent.glob("*/defaults.py")):
            if file not in _defaults_of(self.suite, self.defaults) and key in load(file).names:
                others = "measurements" if file.parent.name == "measuring" else f"suites of {file.parent.name}"
                return f"{self.suite.name} has no such key; only {others} have it"
        return f"{self.suite.name} has no such key{near(key, sorted(self.values))}"


# -- the layers ----------------------------------------------------------------------------------------------


def _defaults_of(suite: Suite, defaults: Path) -> list[Path]:
    """Return the files with the keys of every framework and, if it exists, with those of the suite's framework."""
    return kind_of(suite).defaults(framework_of(suite), defaults.parent)


def _define_keys(draft: _Draft) -> None:
    """Set the values of the defaults and of the suite, whose names are the existing keys, and who may set them."""
    common = [draft.load(file, "defaults") for file in _defaults_of(draft.suite, draft.defaults)]
    base = draft.load(draft.folder / "_base.py", "suite")
    draft.keys_known = None not in (*common, base)
    for module in (*common, base):
        _define(draft, module or Module())
    if draft.keys_known:
        place = draft.shown(draft.folder / "_base.py")
        draft.problems += [f"{place}: {key} is missing; set a value" for key in CASES_OWN if key not in draft.values]
    file = draft.folder / "mutable_params.py"
    own = draft.load(file, "suite") if file.exists() else Module()
    draft.mutable_known = None not in (*common, own)
    draft.fixed = _keys_in(draft, own, "fixed_params")
    mutable = [_keys_in(draft, module, "MUTABLE") for module in common]
    draft.mutable = _keys_in(draft, own, "mutable_params").union(*mutable) - draft.fixed


def _define(draft: _Draft, module: Module) -> None:
    """Set values whose names are existing keys from here on."""
    for key, value in module.names.items():
        of_suite = value.layer == "suite"
        if names_target(key):
            draft.check_target(key, value)
        elif of_suite or key != "MUTABLE":
            if key not in draft.kinds or (of_suite and key in module.annotations):
                # A key of defaults.py may be None only if its annotation allows it; a suite's own key always may.
                # A suite's annotation of such a key allows values that only this suite supports.
                draft.kinds[key] = kind_of_key(value.value, module.annotations.get(key), none=of_suite)
            draft.put(key, value)


def _keys_in(draft: _Draft, module: Module | None, variable: str) -> frozenset[str]:
    """Return a list of keys; each must exist."""
    given = module.names.get(variable) if module else None
    if given is None:
        return frozenset()
    names: Any = given.value
    if problem := kind_problem(names, _KEYS):
        draft.problems.append(f"{given.file}: {variable} {problem}")
        return frozenset()
    for name in names if draft.keys_known else ():
        if name not in draft.values:
            draft.problems.append(f"{given.where}: {variable} contains {name!r}: {draft.unknown(name)}")
    return frozenset(names)


def _apply_scale(draft: _Draft) -> None:
    if draft.scale.name != REFERENCE:
        module = draft.load(draft.folder / f"_{draft.scale.name}.py", "scale") or Module()
        for key, value in module.names.items():
            draft.set(key, value)


def _apply_vendor(draft: _Draft) -> None:
    """Apply the vendor's file for the case's shape, which may contain FlagPerf's names."""
    if draft.scale.name != REFERENCE:
        return
    file = draft.catalog.configs(draft.suite, draft.vendor).get((draft.case.hardware, draft.case.shape))
    module = (draft.load(file, "vendor", load_partly) if file else None) or Module()
    own_keys, place = draft.values.keys() - set(CASES_OWN), Path(draft.shown(draft.folder))
    table = translation.translation_table(draft.folder, own_keys, place)
    if translation.concerns(table, module, draft.values):
        lower, cards = config_of(draft.values), draft.case.shape.cards
        settings, draft.translated, problems = translation.translate(table, module, lower, cards)
        draft.problems += problems
        for setting in settings:
            ours, theirs, value = setting.rule.ours, setting.rule.theirs, setting.given
            if theirs == ours not in draft.values and not names_target(ours):
                if draft.keys_known:
                    draft.problems.append(translation.unknown(ours, value, draft.suite.name, table, draft.values))
                continue
            own = f", here {ours} = {shown(setting.value)}" if theirs != ours else ""
            draft.set(ours, replace(value, value=setting.value), f"{theirs} = {shown(value.value)}{own}")
        return
    for name, given in module.unread.items():
        if name in draft.values or not given.imported:
            draft.problems.append(f"{given.where}: {name}: {given.reason}")
    for key, value in module.names.items():
        draft.set(key, value)


def _deviations(draft: _Draft) -> Iterator[Deviation]:
    for key, value in draft.values.items():
        reference = draft.suites[key]
        own = key in NO_DEVIATION or value.layer in SUITES_OWN
        if not own and not same(value.value, reference.value):
            yield Deviation(key, value.value, reference.value, value.file, value.line)


# -- checks of all values together --------------------------------------------------------------------------------


def _data_ranks(draft: _Draft) -> int:
    """Check how the ranks share the model: against the shape, and the sizes that the suite's model has.

    Return the number of ranks, or groups of ranks, that read different samples.
    """
    value = draft.values.get("parallel")
    if value is None:
        return draft.case.shape.cards
    try:
        parallel = Parallel.of(value.value, draft.case.shape.cards)
    except ParallelError as error:
        draft.problem(value, "parallel", str(error))
        return draft.case.shape.cards
    for axis in OF_SUITE:
        size, keys = getattr(parallel, axis), draft.suite.ranks.parallel.get(axis)
        if size > 1 and keys is None:
            draft.problem(value, "parallel", f"{draft.suite.name} does not support {axis}; expected {axis} = 1")
        for key in keys or ():
            _check_divides(draft, value, axis, size, key)
    return parallel.data_ranks


def _check_divides(draft: _Draft, parallel: Value, axis: str, size: int, key: str) -> None:
    """Check that the size of an axis divides the value of a key that suite.toml names."""
    value = draft.values.get(key)
    if value is None or not isinstance(value.value, int):
        got = "no such key" if value is None else f"its value is {shown(value.value)}, expected a whole number"
        file = draft.shown(draft.suite.path / "suite.toml")
        draft.problems.append(f"{file}: parallel.{axis} contains {key!r}: {got}")
    elif value.value % size:
        divided = f"{key} = {value.value} ({value.where})"
        draft.problem(parallel, "parallel", f"{axis} = {size} does not divide {divided}")


def _limit_evaluations(draft: _Draft, data_ranks: int) -> None:
    """Evaluate as often as the suite's ``eval_samples`` requires, at this shape and batch."""
    limit, per_step = draft.values.get("eval_samples"), data_ranks
    for key in PER_STEP:
        size = draft.values[key].value if key in draft.values else 1
        per_step *= size if isinstance(size, int) else 1
    if draft.problems or limit is None or not isinstance(limit.value, int):
        return
    maximum = max(1, limit.value // per_step)
    for key, minimum in (("eval_steps", 1), ("eval_start_steps", 0)):
        value = draft.values[key]
        steps = value.value
        if isinstance(steps, int) and minimum <= steps <= maximum:
            maximum = steps or maximum
        elif value.layer in SUITES_OWN:
            draft.values[key] = replace(limit, value=maximum)
        else:
            draft.problem(value, key, _long_interval(steps, per_step, limit, f"{minimum} to {maximum} steps"))


def _check_chip(draft: _Draft) -> None:
    """Check that the chip has the peak of the precision; a CPU emulates it."""
    value = draft.values.get("precision", Value())
    peak, device = PEAKS.get(str(value.value)), draft.vendor.toml.framework[framework_of(draft.suite)].device
    if peak and device != "cpu" and peak not in draft.vendor.chip(draft.case.hardware).peak_tflops:
        reason = f"vendor.toml has no peak_tflops with {peak} for {draft.case.hardware}; use another precision"
        draft.problem(value, "precision", reason)


def _check_checkpoints(draft: _Draft) -> None:
    """Check that checkpoints have a folder that a later run finds."""
    folder = draft.values.get("checkpoint_dir")
    if draft.problems or folder is None:
        return
    if folder.value and not Path(str(folder.value)).is_absolute():
        reason = "expected an absolute path, so that a later run finds the checkpoint"
        draft.problem(folder, "checkpoint_dir", reason)
    for key in SAVING:
        value = draft.values[key]
        if value.value and not folder.value:
            draft.problem(value, key, "a checkpoint needs a folder; pass --set=checkpoint_dir=DIR")


def _check_data(draft: _Draft) -> None:
    """Check that data_dir and the paths below it exist; a small scale may include its data in the suite."""
    data_dir = draft.values.get("data_dir")
    if data_dir is None or not draft.suite.reads_data(draft.scale.name):
        return
    if not data_dir.value:
        readme = draft.shown(draft.suite.path / "README.md")
        missing = (
            f"{draft.suite.name} needs its data at scale {draft.scale.name}: pass their folder with --data-dir or"
            f" --case CASE=DATA_DIR ({readme} lists the required files), or measure only throughput with --synthetic"
        )
        draft.problems += [missing] if draft.scale.data else []
        return
    folder = Path(str(data_dir.value))
    if not folder.is_dir():
        draft.problems.append(f"{data_dir.where}: data_dir = {str(folder)!r}: no such folder")
        return
    for key in DATA_KEYS:
        value = draft.values.get(key)
        if value and value.value and not (folder / str(value.value)).exists():
            draft.problem(value, key, f"{folder / str(value.value)} does not exist")


def _long_interval(steps: object, per_step: int, limit: Value, allowed: str) -> str:
    interval = (
        f"{steps} steps are {steps * per_step:,} samples" if isinstance(steps, int) and steps else "no fixed interval"
    )
    required = f"the suite requires an evaluation every {limit.value:,} samples (eval_samples, {limit.where})"
    return f"{interval}; {required}; expected {allowed}"


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
