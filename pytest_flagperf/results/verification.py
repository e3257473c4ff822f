"""Derive the figures of a stored run again from its logs, and compare them with what is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from pytest_flagperf.case import folder as folder_of
from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.comparing.one_card import STORED
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import SCHEMA, Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import OneCard, Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError, digests, files, layout
from pytest_flagperf.stored.round_dir import RoundDir, case_folders, planned_rounds, rounds_of

_MAX_DIFFERENCES = 20
"""The maximum number of differences that are listed for one file."""
_SHOWN = 60
_OF_VERSION = frozenset({"compared", digests.MADE_FROM, digests.DIGEST})
"""Fields of an outcome that follow from the version that measured: how much it compares, and digests of version 0.1."""
_EMPTY: tuple[object, ...] = (None, "", [], {})
"""The values of fields that a run of an older version does not have."""
_ROUND_OF_TEST = re.compile(r"round(\d+)\]?$")


def verify(run_dir: Path) -> tuple[int, tuple[str, ...]]:
    """Measure all rounds of a run again; return their number, and the differences from what the run stored."""
    differences = [*digests.changed(run_dir)]
    derived: dict[Path, Outcome] = {}
    for round_dir in planned_rounds(run_dir):
        differences += _of_round(round_dir, derived)
    cases = [_case(folder, derived, differences) for folder in case_folders(run_dir)]
    differences += _of_results(run_dir, [case for case in cases if case])
    return len(derived), tuple(dict.fromkeys(differences))


# -- a round -------------------------------------------------------------------------------------------------


def _of_round(round_dir: RoundDir, derived: dict[Path, Outcome]) -> Iterator[str]:
    """Add the outcome that the logs give to ``derived``; yield the differences of the stored one."""
    path = round_dir.path / layout.OUTCOME
    try:
        outcome = derived[round_dir.path] = measure(round_dir.path)
        if not round_dir.has_outcome:  # a killed run: the commands measure the round
            return
        body = digests.read(path, SCHEMA)
    except FormatError as error:
        yield str(error)
        return
    yield from _limited(path, _differences(body, outcome.to_json(), round_dir.path))


# -- a case --------------------------------------------------------------------------------------------------


def _case(case_dir: Path, derived: Mapping[Path, Outcome], differences: list[str]) -> CaseResult | None:
    """Return a case with the outcomes that the logs give; add the differences of its stored verdicts."""
    problems: list[str] = []
    outcomes = tuple(derived[one.path] for one in rounds_of(case_dir) if one.path in derived)
    stored = store.load_verdicts(case_dir)
    one_card = store.load_one_card(case_dir, problems)
    differences += problems
    if one_card is not None:
        path = case_dir / layout.ONE_CARD_FIGURE
        differences += (f"{path}: {difference}" for difference in _of_one_card(one_card, case_dir, derived))
    for test, judged in stored.items():
        path = case_dir / layout.VERDICTS / layout.verdicts_file(test)
        differences += _limited(path, _verdict_differences(judged, _judged_again(test, outcomes), case_dir))
    return CaseResult(outcomes[0].case, outcomes, stored, one_card) if outcomes else None


def _of_one_card(one_card: OneCard, case_dir: Path, derived: Mapping[Path, Outcome]) -> Iterator[str]:
    """Yield the figures of the speed-up that no round of the run has; the first may be from another run."""
    here = {path: outcome for path, outcome in derived.items() if path.parent.parent == case_dir.parent}
    alone = {outcome.value("p_core") for outcome in here.values() if outcome.cards == 1}
    many = {outcome.value("p_core") for path, outcome in here.items() if path.parent == case_dir}
    values = list(one_card.values or filter(None, [one_card.p_core]))
    from_here = values[1:] if one_card.where_from.startswith(STORED) else values
    yield from (f"no round of one card has the p_core {value!r}" for value in from_here if value not in alone)
    yield from (f"no round of this case has the p_core {value!r}" for value in one_card.many if value not in many)
    if values and one_card.p_core != median(values):
        yield f"p_core is {one_card.p_core!r}; the median of its rounds is {median(values)!r}"


def _judged_again(test: str, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Return the verdicts that follow from outcomes alone; those of baselines, speed-ups and plugins do not."""
    criterion = kind_of(outcomes[0]).criterion(test) if outcomes else None
    match = _ROUND_OF_TEST.search(test)
    judged = [outcome for outcome in outcomes if match is None or outcome.round == int(match[1])]
    return criterion.verdicts_on(judged) if criterion and judged else []


def _verdict_differences(stored: Sequence[Verdict], derived: Sequence[Verdict], case_dir: Path) -> Iterator[str]:
    yield from (verdict.sentence for verdict in stored if store.is_unreadable(verdict))
    left = list(stored)
    for verdict in derived:
        own = next((one for one in left if one.name == verdict.name), None)
        if own is None:
            yield f"verdict {verdict.name} is missing; derived: {_words(verdict)}"
            continue
        left.remove(own)
        if (own.ok, _text(own.sentence, case_dir)) != (verdict.ok, _text(verdict.sentence, case_dir)):
            yield f"verdict {verdict.name} is {_words(own)}; derived: {_words(verdict)}"


def _words(verdict: Verdict) -> str:
    return f"{'passed' if verdict.ok else 'failed'}: {verdict.sentence}"


# -- the run -------------------------------------------------------------------------------------------------


def _of_results(run_dir: Path, cases: Sequence[CaseResult]) -> Iterator[str]:
    """Yield the differences of results.json from the cases that the logs give; a killed run has no such file."""
    path = run_dir / layout.RESULTS
    if not path.exists():
        return
    try:
        body = digests.read(path, SCHEMA)
    except FormatError as error:
        yield str(error)
        return
    info = store.load_info(run_dir, []) or store.RunInfo()
    stored = {str(case.get("case")): case for case in files.objects(body.get("cases"))}
    derived = {case.case: files.to_json_types(store.case_json(case, info)) for case in cases}
    for name in sorted({*stored, *derived}):
        case_dir = run_dir / folder_of(name)
        yield from _limited(path, _differences(stored.get(name), derived.get(name), case_dir, name))


# -- comparing -----------------------------------------------------------------------------------------------


def _limited(path: Path, differences: Iterator[str]) -> Iterator[str]:
    """Yield the first differences with the name of their file, and how many follow."""
    yield from (f"{path}: {difference}" for difference in islice(differences, _MAX_DIFFERENCES))
    more = sum(1 for _ in differences)
    if more:
        yield f"{path}: and {more} more"


def _differences(stored: Any, derived: Any, folder: Path, at: str = "") -> Iterator[str]:
    """Yield a sentence for each value that differs, with its place in the file."""
    stored, derived = _by_name(stored), _by_name(derived)
    if isinstance(stored, dict) and isinstance(derived, dict):
        for key in sorted({*stored, *derived} - _OF_VERSION):
            if key in stored or derived[key] not in _EMPTY:
                yield from _differences(stored.get(key), derived.get(key), folder, f"{at}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(derived, list) and len(stored) == len(derived):
        for place, (own, other) in enumerate(zip(stored, derived, strict=True)):
            yield from _differences(own, other, folder, f"{at}[{place}]")
    elif _text(stored, folder) != _text(derived, folder):
        yield f"{at} is {stored!r:.{_SHOWN}}; derived from the logs: {derived!r:.{_SHOWN}}"


def _by_name(value: Any) -> Any:
    """Return a list of objects with different names, such as metrics, as an object with these names."""
    items = files.objects(value)
    names = dict.fromkeys(str(item["name"]) for item in items if "name" in item)
    return dict(zip(names, items, strict=True)) if names and len(names) == len(items) == len(value) else value


def _text(value: Any, folder: Path) -> Any:
    """Return a text without the folders above that of the case or the round, since the run may have been moved."""
    return re.sub(rf"[^\s'\"]*/(?={re.escape(folder.name)}\b)", "", value) if isinstance(value, str) else value
