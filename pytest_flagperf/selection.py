"""Select the cases of a run from the options, the FlagPerf files and the catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .case import FIELDS, Case, CaseError, Shape
from .catalog import REFERENCE, SCALES, Catalog, CatalogError, Suite, Vendor, framework_of
from .config import ConfigError, Value, load_partly, parse_settings, parse_sweep, resolve, values_of_variant
from .kind import kind_of, markers
from .plan import figures_of, is_throughput_shape
from .problems import Problems, near
from .settings import Settings, split_case

if TYPE_CHECKING:
    from .original import TestConf

_DIGITS = re.compile("[0-9]+")
_OPERATORS = ("and", "or", "not")
_NO_FOLDER = (
    "the data of scale {scale} are included in the suite, and no folder is read; pass none, or --scale=reference"
)


@dataclass(frozen=True, eq=False)
class Selected:
    """A case of this run with its suite, vendor, scale and data directory.

    ``unsupported`` is the reason why it cannot run, ``refused`` if it is the config that does not allow the values of
    its variant; ``data_source`` is the option or file that sets the data directory.
    """

    case: Case
    suite: Suite
    vendor: Vendor
    scale: str
    data_dir: str | None = None
    unsupported: str | None = None
    throughput_only: bool = False
    data_source: str = ""
    refused: bool = False

    @property
    def keywords(self) -> tuple[str, ...]:
        """The words that select the case with -k."""
        case = self.case
        variant = (f"{key}-{value}" for key, value in case.variant)
        return case.model, case.framework, case.hardware, str(case.shape), self.vendor.name, self.scale, *variant

    @property
    def rounds(self) -> range:
        return range(1, self.case.repeat + 1)

    @property
    def reads_data(self) -> bool:
        """Whether the scale reads a data directory; a small scale may include its data in the suite."""
        return self.suite.reads_data(self.scale)

    @property
    def is_promised(self) -> bool:
        """Whether the vendor promises a share of a peak that bounds one of the suite's figures."""
        figures = figures_of(self.suite, self.vendor, self.case)
        return any(figure.promised is not None for figure in figures)


@dataclass(frozen=True)
class Absent:
    """A case in FlagPerf's file that has no suite here: it is skipped; ``unsupported`` is the reason."""

    case: Case
    unsupported: str


def runnable(requested: Iterable[Selected | Absent]) -> list[Selected]:
    """Return the cases that can run."""
    return [case for case in requested if isinstance(case, Selected) and not case.unsupported]


@dataclass(frozen=True)
class Selection:
    """All cases of a run, in the order in which they run."""

    cases: tuple[Selected, ...]
    notes: tuple[str, ...] = field(default=())
    absent: tuple[Absent, ...] = ()


def select(settings: Settings, catalog: Catalog, conf: TestConf | None, hosts: int | None = 1) -> Selection:
    """Return the cases of --case, FlagPerf's file or the settings file; else each suite in each requested shape."""
    values = parse_settings(settings.set, _file_of(settings, "set"))
    each = () if settings.resume else settings.each  # the cases of a run to resume name their variants
    query = _Query(settings, catalog, values, parse_sweep(each, _file_of(settings, "each"), values), hosts)
    named = _listed_cases(settings, conf)
    matrix = [f"--{key}" for key in ("nodes", "hw") if settings.commanded(key)]
    notes = list(conf.without_effect) if conf else []
    if named and matrix and not settings.commanded("case"):
        file = settings.sources["case"] if conf is None else conf.file
        notes.append(f"{file}: its cases ({len(named)}) are ignored: {' '.join(matrix)} selects other cases")
        named = []
    named = _figures_as_cases(named, query.catalog, notes)
    present, absent = _split_by_suite(named, query)
    cases = sorted(_explicit(present, query) if named else _matrix(query), key=_sort_key)
    _check_variants(cases)
    _check_data_is_read(cases, settings)
    return Selection(tuple(cases), tuple(notes), absent)


def _sort_key(selected: Selected) -> tuple[str, int, str, str, int]:
    """Order by model, then as the vendor lists its frameworks, the quickest first, then by chip and number of cards."""
    case, frameworks = selected.case, list(selected.vendor.toml.framework)
    framework = framework_of(selected.suite)
    place = frameworks.index(framework) if framework in frameworks else len(frameworks)
    return case.model, place, case.framework, case.hardware, case.shape.cards


# -- cases in node ids --------------------------------------------------------------------------------------


def case_in(nodeid: str, known: Collection[str]) -> str | None:
    """Return the known case in a node id; other parameters of the test may surround it, separated by ``-``."""
    _, _, parameters = nodeid.partition("::")[2].partition("[")
    terms = parameters.removesuffix("]").split(":")
    for first in range(len(terms) - len(FIELDS) + 1):
        last = first + len(FIELDS) - 1
        rounds = _DIGITS.match(terms[last])
        if rounds is None:
            continue
        rest = ":".join([*terms[first + 1 : last], rounds[0]])
        # A model's name may contain a dash, and so may a variant: the longest known name counts.
        ends = [rest]
        if len(terms) > last + 1 and rounds[0] == terms[last]:
            parts = terms[last + 1].split("-")
            ends = [f"{rest}:{'-'.join(parts[:end])}" for end in range(len(parts), 1, -1)]
        words = terms[first].split("-")
        for start in range(len(words)):
            for end in ends:
                case = f"{'-'.join(words[start:])}:{end}"
                if case in known:
                    return case
    return None


def lane(nodeid: str, known: Collection[str]) -> str:
    """Return the group of tests that one xdist worker must run: all tests of one suite and hardware."""
    case = case_in(nodeid, known)
    if case is None:
        return nodeid
    parsed = Case.parse(case)
    return f"{parsed.model}:{parsed.framework}:{parsed.hardware}"


# -- hints for -k ---------------------------------------------------------------------------------------------


def hints(expression: str, cases: Sequence[Selected], catalog: Catalog) -> list[str]:
    """Return a hint for each word of a -k expression without matches: an option that adds it, or similar names."""
    known = list(keywords(cases))
    texts = [text.lower() for text in (*known, *(str(selected.case) for selected in cases))]
    words = dict.fromkeys(re.findall(r"[^\s()]+", expression))
    unknown = [word for word in words if word not in _OPERATORS and not any(word.lower() in text for text in texts)]
    by_word = {
        word: f"; {option} adds it" if (option := _option(word, catalog)) else near(word, known) for word in unknown
    }
    return [f"-k: no test matches {word!r}{hint}" for word, hint in by_word.items() if hint]


def keywords(cases: Sequence[Selected]) -> dict[str, None]:
    """Return all words that -k can select cases by."""
    return dict.fromkeys([*sorted({word for selected in cases for word in selected.keywords}), *markers()])


def _option(word: str, catalog: Catalog) -> str | None:
    """Return the option that selects the shape, chip, vendor or scale of this name; None for other words."""
    with suppress(CaseError):
        return f"--nodes={Shape.parse(word)}"
    names = {name: f"--scale={name}" for name in SCALES}
    names |= {name.lower(): f"--vendor={name}" for name in catalog.vendors}
    with suppress(CatalogError):  # another vendor's file is invalid
        names |= {name.lower(): f"--hw={name}" for vendor in catalog.vendors.values() for name in vendor.chips}
    return names.get(word.lower())


# -- listed cases ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Query:
    """The options of a run, the catalog and the number of hosts."""

    settings: Settings
    catalog: Catalog
    set: Mapping[str, Value]
    variants: Sequence[tuple[tuple[str, str], ...]]
    """Those of --each; one without values if it is not set."""
    hosts: int | None
    _flags: dict[Path, bool | None] = field(default_factory=dict)

    def flag(self, config: Path) -> bool | None:
        """Return ``throughput_only`` of a config file; None if the file does not set it."""
        if config not in self._flags:
            self._flags[config] = _throughput_flag(config)
        return self._flags[config]

    @property
    def vendor(self) -> Vendor:
        try:
            return self.catalog.vendor(self.settings.vendor)
        except CatalogError as error:
            given = self.settings.given("vendor")
            where = _file_of(self.settings, "vendor") if given else "the default; choose one with --vendor"
            raise Problems(f"{problem} ({where})" if where else problem for problem in error.problems) from error


@dataclass(frozen=True)
class _ListedCase:
    """A case in a list, and its place; ``data_source`` is the option or file that sets its data directory."""

    text: str
    data_dir: str | None
    where: str
    data_source: str
    skippable: bool = False
    """Skip the case if it cannot run, as FlagPerf does with the cases of its file."""
    unsupported: str | None = None


def _file_of(settings: Settings, key: str) -> str:
    """Return the file that sets an option; empty for the command line and defaults."""
    return "" if settings.commanded(key) or not settings.given(key) else settings.sources[key]


def _listed_cases(settings: Settings, conf: TestConf | None) -> list[_ListedCase]:
    """Return the cases of the command line, else of FlagPerf's file, else of the settings file."""
    if conf is None or settings.commanded("case"):
        return list(_of_option(settings))
    return [
        _ListedCase(str(item.case), item.data_dir, item.where, item.where, skippable=True, unsupported=item.unsupported)
        for item in conf.cases
    ]


def _of_option(settings: Settings) -> Iterator[_ListedCase]:
    where = settings.sources["case"]
    for text in settings.case:
        case, data_dir = split_case(text)
        yield _ListedCase(case, data_dir, where, _file_of(settings, "case") or f"--case {case}=DIR")


def _figures_as_cases(named: Sequence[_ListedCase], catalog: Catalog, notes: list[str]) -> list[_ListedCase]:
    """Replace the measurements of FlagPerf by our cases, each once: a case may have the figures of several of them."""
    cases: list[_ListedCase] = []
    texts: set[str] = set()
    for item in named:
        case = Case.parse(item.text) if item.skippable and not item.unsupported else None
        found = catalog.figure_of(case.model, case.framework_name) if case else None
        if case is None or found is None:
            cases.append(item)
            continue
        suite, figure = found
        text = str(replace(case, model=suite.model))
        notes.append(f"{item.where}: {case.model} is figure {figure} of case {text}")
        if text not in texts:
            texts.add(text)
            cases.append(replace(item, text=text))
    return cases


def _split_by_suite(named: Sequence[_ListedCase], query: _Query) -> tuple[list[_ListedCase], tuple[Absent, ...]]:
    """Return the cases that have a suite, and the cases of FlagPerf's file without a suite."""
    present: list[_ListedCase] = []
    absent: dict[Case, Absent] = {}
    for item in named:
        if item.skippable:
            case = Case.parse(item.text)
            reason = item.unsupported or _no_suite(case, query.catalog)
            if reason:
                absent[case] = Absent(case, f"{reason} ({item.where})")
                continue
        present.append(item)
    return present, tuple(absent.values())


def _no_suite(case: Case, catalog: Catalog) -> str | None:
    try:
        catalog.suite(case.model, case.framework)
    except CatalogError as error:
        return error.problems[0]
    return None


def _explicit(named: Sequence[_ListedCase], query: _Query) -> Iterator[Selected]:
    problems: list[str] = []
    texts: set[str] = set()
    chosen: dict[str, Selected] = {}
    for item in named:
        try:
            variants = list(_select_one(item, query))
        except Problems as error:
            problems += [f"{problem} ({item.where})" for problem in error.problems]
            continue
        problems += [
            f"case {one.case}: {one.unsupported} ({item.where})"
            for one in variants
            if one.unsupported and not one.refused and not item.skippable
        ]
        if item.text in texts:
            problems.append(f"case {item.text} is listed twice ({item.where}); set its number of rounds instead")
        texts.add(item.text)
        # With --repeat, cases that differ only in the number of rounds are the same case.
        for selected in variants:
            chosen.setdefault(str(selected.case), selected)
    if problems:
        raise Problems(problems)
    yield from chosen.values()


def _select_one(item: _ListedCase, query: _Query) -> Iterator[Selected]:
    case, settings = Case.parse(item.text), query.settings
    in_file = not settings.commanded("case")
    if in_file and settings.commanded("repeat"):
        case = replace(case, repeat=settings.repeat)
    suite = query.catalog.suite(case.model, case.framework)
    case = replace(case, model=suite.model)
    vendor = _vendor_of(case.hardware, f"case {case}", query)
    if case.variant and settings.commanded("each") and not settings.resume:
        raise Problems([f"case {case} has a variant; remove it, or {settings.as_written('each')}"])
    if both := [key for key, _ in case.variant if key in query.set]:
        raise Problems([f"case {case}: its variant and --set both have {', '.join(both)}; remove it from one"])
    overridden = in_file and settings.commanded("data_dir")
    own_data = item.data_dir and not overridden
    data = (item.data_dir, item.data_source) if own_data else _data_for_all(settings)
    for selected in _variants(case, suite, vendor, data, query):
        if own_data and settings.commanded("case") and not selected.reads_data:
            raise Problems([f"--case {case}={item.data_dir}: {_NO_FOLDER.format(scale=selected.scale)}"])
        yield selected


def _check_data_is_read(cases: Sequence[Selected], settings: Settings) -> None:
    """Raise Problems if no case reads the data directory that the command line sets for all cases.

    --resume restores the directory that an engine added.
    """
    if (
        settings.commanded("data_dir")
        and not settings.resume
        and cases
        and not any(selected.reads_data for selected in cases)
    ):
        raise Problems([f"{settings.as_written('data_dir')}: {_NO_FOLDER.format(scale=cases[0].scale)}"])


def _data_for_all(settings: Settings) -> tuple[str | None, str]:
    """Return the data directory of all cases without an own one, and the option or file that sets it."""
    return settings.data_dir, (_file_of(settings, "data_dir") or "--data-dir") if settings.data_dir else ""


def _vendor_of(hardware: str, where: str, query: _Query) -> Vendor:
    """Return the vendor of an option or a file, else the only vendor that has the chip; ``where`` names the chip."""
    vendors, default = query.catalog.vendors, query.settings.vendor
    if query.settings.given("vendor") or (default in vendors and hardware in vendors[default].chips):
        return query.vendor
    makers = _makers(hardware, query.catalog)
    if len(makers) > 1:
        names = " or ".join(vendor.name for vendor in makers)
        raise Problems([f"{where}: {hardware} is a chip of {names}; choose one with --vendor"])
    return makers[0] if makers else query.vendor


def _makers(hardware: str, catalog: Catalog) -> list[Vendor]:
    return [vendor for vendor in catalog.vendors.values() if hardware in vendor.chips]


# -- every suite in every requested shape ------------------------------------------------------------------


def _matrix(query: _Query) -> Iterator[Selected]:
    settings = query.settings
    vendor = _vendor_of(settings.hw, settings.as_written("hw"), query) if settings.hw else query.vendor
    hardware = settings.hw or vendor.hardware
    if hardware not in vendor.chips:
        makers = [f"; use --vendor={maker.name}" for maker in _makers(hardware, query.catalog)]
        vendors = [vendor] if settings.given("vendor") else query.catalog.vendors.values()
        similar = "".join(makers) or near(hardware, [chip for candidate in vendors for chip in candidate.chips])
        choices = f"(choose from {', '.join(vendor.chips)})"
        raise Problems([f"{settings.as_written('hw')}: not a chip of {vendor.name}{similar} {choices}"])
    shapes, data = _shapes(settings, vendor), _data_for_all(settings)
    for suite in query.catalog.suites.values():
        # One shape with too few processes is a skipped case only without another one.
        for shape in [shape for shape in shapes if shape.cards >= suite.ranks.least] or shapes:
            case = Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc, settings.repeat)
            for selected in _variants(case, suite, vendor, data, query):
                yield selected if settings.nodes or settings.plan else _check_hosts(selected, query.hosts)


def _check_hosts(selected: Selected, hosts: int | None) -> Selected:
    """Mark a case as unsupported if its shape, a default of the vendor, needs more hosts than available."""
    if selected.unsupported or hosts is None or selected.case.nnodes <= hosts:
        return selected
    fix = "add hosts with --cluster or in [cluster] of flagperf.toml"
    return replace(selected, unsupported=f"needs {selected.case.nnodes} hosts, {hosts} available; {fix}")


def _shapes(settings: Settings, vendor: Vendor) -> tuple[Shape, ...]:
    try:
        return Shape.parse_list(settings.nodes) if settings.nodes else vendor.shapes
    except CaseError as error:
        raise Problems(f"{settings.as_written('nodes')}: {problem}" for problem in error.problems) from error


# -- variants ------------------------------------------------------------------------------------------------


def _variants(
    case: Case, suite: Suite, vendor: Vendor, data: tuple[str | None, str], query: _Query
) -> Iterator[Selected]:
    """Yield a case once for each variant of --each; a case that names its variant, as it is."""
    variants = [case.variant] if case.variant else query.variants
    base = _selected(case.without_variant, suite, vendor, data, query)
    # A problem that the case has without its variant is an error of the run.
    known = _config_problems(base, query) if any(variants) and not base.unsupported else []
    for variant in variants:
        selected = _selected(replace(case, variant=variant), suite, vendor, data, query) if variant else base
        if variant and not selected.unsupported:
            problems = [problem for problem in _config_problems(selected, query) if problem not in known]
            selected = replace(selected, unsupported="; ".join(problems) or None, refused=bool(problems))
        yield selected


def _config_problems(selected: Selected, query: _Query) -> list[str]:
    """Return the problems of a case's values."""
    case, suite, scale = selected.case, selected.suite, selected.scale
    try:
        resolved = resolve(suite, selected.vendor, case, scale, query.set, catalog=query.catalog, check_data=False)
    except ConfigError as error:
        return list(error.problems)
    return kind_of(suite).check(suite, scale, case.shape, resolved, selected.vendor.chip(case.hardware))[1]


def _check_variants(cases: Sequence[Selected]) -> None:
    """Raise Problems for each value that no case supports; a value that some support leaves the others out."""
    accepted: set[tuple[str, str]] = set()
    reasons: dict[tuple[str, str], str] = {}
    for selected in cases:
        if not selected.unsupported:
            accepted.update(selected.case.variant)
        elif selected.refused:
            for pair in selected.case.variant:
                reasons.setdefault(pair, f"{selected.unsupported} (case {selected.case})")
    refused = dict.fromkeys(reason for pair, reason in reasons.items() if pair not in accepted)
    if refused:
        raise Problems(refused)


def _selected(case: Case, suite: Suite, vendor: Vendor, data: tuple[str | None, str], query: _Query) -> Selected:
    scale = query.settings.scale or vendor.toml.scale
    data_dir, source = data[0], _shown(data[1], query.catalog)
    unsupported = query.catalog.unsupported(suite, vendor, case.hardware, case.shape, scale)
    for_throughput = unsupported is None and _throughput_only(case, suite, vendor, scale, query)
    selected = Selected(case, suite, vendor, scale, data_dir, unsupported, for_throughput, source)
    return selected if selected.reads_data else replace(selected, data_dir=None, data_source="")


def _shown(source: str, catalog: Catalog) -> str:
    """Return the path of a file relative to its root."""
    inside = [root for root in catalog.roots if source.startswith(f"{root}/")]
    return source.removeprefix(f"{inside[0]}/") if inside else source


def _throughput_only(case: Case, suite: Suite, vendor: Vendor, scale: str, query: _Query) -> bool:
    """Return True if an option, the config or the shape makes the case measure throughput only."""
    if not kind_of(suite).converges:
        return False
    if query.settings.synthetic:
        return True
    if query.settings.given("throughput_only"):
        return query.settings.throughput_only
    if (value := {**query.set, **values_of_variant(case)}.get("throughput_only")) is not None:
        return bool(value.value)
    folder = suite.path / "config"
    own = folder / f"_{scale}.py"
    if scale == REFERENCE:
        own = query.catalog.configs(suite, vendor)[case.hardware, case.shape]
    given = (query.flag(file) for file in (own, folder / "_base.py"))
    return next((flag for flag in given if flag is not None), is_throughput_shape(case.shape, scale))


def _throughput_flag(config: Path) -> bool | None:
    try:
        given = load_partly(config).names.get("throughput_only")
    except ConfigError:
        return None  # the plan of the case reports the problem
    return given.value if given is not None and isinstance(given.value, bool) else None
