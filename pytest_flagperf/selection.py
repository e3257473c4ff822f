"""Which cases were asked for: options and the original's files against the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .case import Case, CaseError, Shape
from .catalog import REFERENCE, Catalog, Suite, Vendor
from .catalog.literals import flag
from .config import parse_settings
from .problems import Problems, near
from .settings import Settings

if TYPE_CHECKING:
    from .original import TestConf


@dataclass(frozen=True, eq=False)
class Selected:
    """A case of this run: who runs it, at which scale, on which data; ``unsupported`` says why it cannot."""

    case: Case
    suite: Suite
    vendor: Vendor
    scale: str
    data_dir: str | None = None
    unsupported: str | None = None
    throughput_only: bool = False

    @property
    def rounds(self) -> range:
        return range(1, self.case.repeat + 1)


@dataclass(frozen=True)
class Selection:
    """All cases of a run, one card first within a suite and hardware."""

    cases: tuple[Selected, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def unsupported(self) -> list[Selected]:
        return [one for one in self.cases if one.unsupported]


def select(settings: Settings, catalog: Catalog, conf: TestConf | None) -> Selection:
    """The cases named one by one, by an option or the original's file; else every suite in every wanted shape."""
    named = _named(settings, conf)
    cases = list(_explicit(named, settings, catalog) if named else _matrix(settings, catalog))
    return Selection(tuple(sorted(cases, key=_place)), tuple(conf.without_effect) if conf else ())


def _place(one: Selected) -> tuple[str, str, str, int]:
    case = one.case
    return case.model, case.framework, case.hardware, case.shape.cards


def lane(nodeid: str) -> str:
    """What of a node id must stay on one worker: the file, and of a case all but its shape and rounds."""
    file, _, rest = nodeid.partition("::")
    _, bracket, parameters = rest.partition("[")
    terms = parameters.rstrip("]").split(":")
    return f"{file}::{':'.join(terms[:3])}" if bracket and len(terms) >= 6 else nodeid


# -- cases named one by one -------------------------------------------------------------------------------


def _named(settings: Settings, conf: TestConf | None) -> list[tuple[str, str | None, str]]:
    """Case strings with their data directories, and where each was named."""
    given = [(*_split_case(text), settings.sources["case"]) for text in settings.case]
    if given or conf is None:
        return given
    return [(str(item.case), item.data_dir, item.where) for item in conf.cases]


def _split_case(text: str) -> tuple[str, str | None]:
    case, equals, folder = text.partition("=")
    return case, folder if equals else None


def _explicit(named: Sequence[tuple[str, str | None, str]], settings: Settings, catalog: Catalog) -> Iterator[Selected]:
    problems: list[str] = []
    chosen: dict[str, Selected] = {}
    for text, folder, where in named:
        try:
            one = _one(Case.parse(text), folder, settings, catalog)
        except (CaseError, Problems) as error:
            problems += [f"{problem} ({where})" for problem in error.problems]
            continue
        if one.unsupported:
            problems.append(f"case {text}: {one.unsupported} ({where})")
        elif text in chosen:
            problems.append(f"case {text} is named twice ({where}); give it a repeat instead")
        chosen[text] = one
    if problems:
        raise Problems(problems)
    yield from chosen.values()


def _one(case: Case, folder: str | None, settings: Settings, catalog: Catalog) -> Selected:
    suite = catalog.suite(case.model, case.framework)
    vendor = _vendor_of(case, settings, catalog)
    return _selected(case, suite, vendor, folder or settings.data_dir, settings, catalog)


def _vendor_of(case: Case, settings: Settings, catalog: Catalog) -> Vendor:
    """The vendor that was asked for; when nobody asked, the only one that makes the case's chip."""
    asked = catalog.vendor(settings.vendor)
    if settings.given("vendor") or case.hardware in asked.chips:
        return asked
    makers = [vendor for vendor in catalog.vendors.values() if case.hardware in vendor.chips]
    if len(makers) > 1:
        names = " or ".join(vendor.name for vendor in makers)
        raise Problems([f"case {case}: {case.hardware} is made by {names}; say which with --vendor"])
    return makers[0] if makers else asked


# -- every suite in every wanted shape ---------------------------------------------------------------------


def _matrix(settings: Settings, catalog: Catalog) -> Iterator[Selected]:
    vendor = catalog.vendor(settings.vendor)
    hardware = settings.hw or next(iter(vendor.chips))
    if hardware not in vendor.chips:
        chips = list(vendor.chips)
        raise Problems(
            [f"--hw={hardware}: no chip of {vendor.name}{near(hardware, chips)} (there are: {', '.join(chips)})"],
        )
    for suite in catalog.suites.values():
        for shape in _shapes(settings, vendor):
            case = Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc, settings.repeat)
            yield _selected(case, suite, vendor, settings.data_dir, settings, catalog)


def _shapes(settings: Settings, vendor: Vendor) -> tuple[Shape, ...]:
    try:
        return Shape.parse_list(settings.nodes) if settings.nodes else vendor.shapes
    except CaseError as error:
        raise Problems([f"--nodes={settings.nodes}: {problem}" for problem in error.problems]) from error


def _selected(
    case: Case, suite: Suite, vendor: Vendor, folder: str | None, settings: Settings, catalog: Catalog
) -> Selected:
    scale = settings.scale or vendor.scale
    data_dir = str(Path(folder).expanduser().absolute()) if folder else None
    why_not = catalog.unsupported(suite, vendor, case.hardware, case.shape, scale)
    for_throughput = why_not is None and _throughput_only(case, suite, vendor, scale, settings, catalog)
    return Selected(case, suite, vendor, scale, data_dir, why_not, for_throughput)


def _throughput_only(
    case: Case, suite: Suite, vendor: Vendor, scale: str, settings: Settings, catalog: Catalog
) -> bool:
    """Whether no convergence is asked of the case: told so by an option, or by its config."""
    if settings.throughput_only or settings.synthetic:
        return True
    if settings.set and (said := parse_settings(settings.set).get("throughput_only")) is not None:
        return bool(said.value)
    if scale != REFERENCE:
        return False
    file = catalog.configs(suite, vendor)[case.hardware, case.shape]
    own = flag(file, "throughput_only")
    return bool(flag(suite.path / "config" / "_base.py", "throughput_only") if own is None else own)
