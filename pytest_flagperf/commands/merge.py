"""Several runs as one: 1x1 from here and 2x8 from there, or more rounds of the same case.

Rounds of one case in several runs are numbered anew and judged again, all together; they must have the same
fingerprint. Baselines and earlier runs are not looked for again: what a run found of its own rounds by them stays, by
the run's name, and so do the reasons for failures that were expected. merged.json says where each round came from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.commands import stored
from pytest_flagperf.judging import UNTRUE
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import baselines, gates, jsons, machine, statistics, store, validity, verdicts
from pytest_flagperf.results.comparable import unlike
from pytest_flagperf.results.speedup import quiet
from pytest_flagperf.results.store import CaseResult, Run, RunInfo
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import OneCard, Verdict

FILE = "merged.json"
_CONVERGES, _THROUGHPUT, _SPEEDUP = "test_converges", "test_throughput", "test_speedup"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="the run directory to be made")


@dataclass(frozen=True)
class _Part:
    """A case's share of one run."""

    run: Run
    name: str
    case: CaseResult

    @property
    def directory(self) -> Path:
        return self.run.directory / self.case.case.replace(":", "_")


def run(arguments: argparse.Namespace) -> int:
    runs = [stored.readable(one) for one in stored.load_all(arguments.runs)]
    names = stored.names_of(runs)
    cases: dict[str, list[_Part]] = {}
    for one, name in zip(runs, names, strict=True):
        for result in one.cases:
            cases.setdefault(result.case, []).append(_Part(one, name, result))
    problems = [problem for parts in cases.values() for problem in _unlike(parts)]
    if not cases:
        problems = [problem for one in runs for problem in one.problems]
    if problems:
        raise Problems(problems)
    told = [*(f"note: {problem}" for one in runs for problem in one.problems), *_apart(cases)]
    with stored.new_directory(arguments.to) as made:
        origins: dict[str, Any] = {}
        for case, parts in cases.items():
            origins[case] = _copy(made / case.replace(":", "_"), parts)
            told += _same_seeds(case, parts)
        together = store.load_run(made).cases
        for merged in together:
            parts = cases[merged.case]
            if len(parts) > 1:
                _judge_again(made, merged, together, parts)
                told.append(_judged_again(merged, parts))
        sources = {name: one.info for one, name in zip(runs, names, strict=True)}
        jsons.write(made / FILE, {"schema": store.SCHEMA, "runs": sources, "rounds": origins})
        judged = store.load_run(made).cases
        store.write_run(made, _info(runs, names), judged)
        store.write_csv(made / "results.csv", [(arguments.to.resolve().name, judged)])
    rounds = sum(len(each.outcomes) for each in judged)
    print(f"{arguments.to}: {count(len(judged), 'case')}, {count(rounds, 'round')} of {count(len(runs), 'run')}")
    print("\n".join(told), end="\n" if told else "")
    return 0


def _copy(made: Path, parts: Sequence[_Part]) -> list[dict[str, Any]]:
    """The rounds one after the other; what only one run has is copied as it is."""
    origins: list[dict[str, Any]] = []
    for part in parts:
        for outcome in part.case.outcomes:
            number = len(origins) + 1
            source, target = part.directory / f"round{outcome.round}", made / f"round{number}"
            stored.copy_folder(source, target)
            if number != outcome.round or not (source / "outcome.json").exists():
                store.save_outcome(target, replace(outcome, round=number))
                plan = jsons.read(target / "plan.json")
                jsons.write(target / "plan.json", {**plan, "round": number})
            _mark_seed(target)
            origins.append({"run": part.name, "round": outcome.round})
    for part in parts:
        if len(parts) == 1 and (part.directory / "verdicts").is_dir():
            stored.copy_folder(part.directory / "verdicts", made / "verdicts")
        if (part.directory / "one_card").is_dir() and not (made / "one_card").exists():
            stored.copy_folder(part.directory / "one_card", made / "one_card")
        if part.case.one_card is not None and not (made / "one_card.json").exists():
            store.save_one_card(made, part.case.one_card)
    return origins


def _mark_seed(round_dir: Path) -> None:
    """A seed may be used twice only now, and the round that had it first has another number."""
    outcome = store.load_outcome(round_dir)
    others = [mark for mark in outcome.marks if mark.kind != validity.SEED]
    marks = (*others, *validity.seed_again(round_dir, outcome.seed))
    if marks != outcome.marks:
        store.save_outcome(round_dir, replace(outcome, marks=marks))


# -- judging again -------------------------------------------------------------------------------------------


def _judge_again(made: Path, case: CaseResult, together: Sequence[CaseResult], parts: Sequence[_Part]) -> None:
    """What the runs judged of their own rounds does not hold for all of them."""
    case_dir = made / case.case.replace(":", "_")
    one_card = _one_card(together, case) if case.outcomes[0].cards > 1 else None
    if one_card is not None:
        store.save_one_card(case_dir, one_card)
    plan = jsons.read(case_dir / "round1" / "plan.json")
    judged = _verdicts(case, one_card, plan, strict=_was_strict(parts))
    found = {test: [_as_expected(verdict, parts) for verdict in its] for test, its in judged.items()}
    for test, kept in _kept(parts):
        found.setdefault(test, []).extend(kept)
    for test, its in found.items():
        store.save_verdicts(case_dir, test, its)


def _judged_again(case: CaseResult, parts: Sequence[_Part]) -> str:
    compared = any(baselines.is_comparison(verdict) for _, kept in _kept(parts) for verdict in kept)
    tail = "; what a run's own rounds were compared with stands as it was found" if compared else ""
    none = "with no baseline and no earlier runs"
    return f"note: {case.case}: its {count(len(case.outcomes), 'round')} are judged again together, {none}{tail}"


def _verdicts(
    case: CaseResult, one_card: OneCard | None, plan: Mapping[str, Any], *, strict: bool
) -> dict[str, Sequence[Verdict]]:
    found: dict[str, Sequence[Verdict]] = {}
    valid = [gates.valid(outcome, strict=strict) for outcome in case.outcomes]
    for outcome, its in zip(case.outcomes, valid, strict=True):
        if not outcome.throughput_only:
            test = f"{_CONVERGES}[{case.case}-round{outcome.round}]"
            found[test] = [*verdicts.converges(outcome), its]
    found[f"{_THROUGHPUT}[{case.case}]"] = [*verdicts.throughput(case.outcomes), *valid]
    cards = case.outcomes[0].cards
    if cards > 1:
        least, scaling = plan.get("min_efficiency"), str(plan.get("scaling"))
        least = float(least) if isinstance(least, int | float) else None
        found[f"{_SPEEDUP}[{case.case}]"] = verdicts.speedup(
            case.outcomes, one_card, cards, least, scaling, strict=strict
        )
    return found


def _kept(parts: Sequence[_Part]) -> Iterator[tuple[str, list[Verdict]]]:
    """What only the runs can tell: comparisons, expectations that did not come true, a suite's own checks."""
    for part in parts:
        for test, found in part.case.verdicts.items():
            own = test.partition("[")[0] not in (_CONVERGES, _THROUGHPUT, _SPEEDUP)
            kept = [one for one in found if own or baselines.is_comparison(one) or one.name == UNTRUE]
            if kept:
                yield test, [replace(one, sentence=f"{part.name}: {one.sentence}") for one in kept]


def _as_expected(verdict: Verdict, parts: Sequence[_Part]) -> Verdict:
    """With the reason of the runs in which it failed, where it was expected in all of them."""
    failures = [
        one
        for part in parts
        for found in part.case.verdicts.values()
        for one in found
        if one.name == verdict.name and not one.ok
    ]
    known = [one.expected for one in failures]
    return verdict if verdict.ok or not known or None in known else replace(verdict, expected=known[0])


def _was_strict(parts: Sequence[_Part]) -> bool:
    """A run whose bent rounds failed was strict."""
    found = (one for part in parts for its in part.case.verdicts.values() for one in its)
    return any(one.name == "valid" and not one.ok for one in found)


def _one_card(together: Sequence[CaseResult], case: CaseResult) -> OneCard | None:
    """The 1x1 case among those that were merged; the stored one where that took turns with all cards."""
    outcome = case.outcomes[0]
    key = outcome.fingerprint.get("one_card_key")
    for other in together if case.one_card is None or not case.one_card.many else ():
        first = other.outcomes[0]
        like = key and first.fingerprint.get("key") == key and not machine.differences(first.machine, outcome.machine)
        rounds = quiet(one for one in other.outcomes if one.ok)
        values = statistics.finite(one.value("p_core") for one in rounds)
        if like and values:
            return OneCard.of(values, "the merged runs", first.rate_unit, rounds[0].busy)
    return case.one_card


# -- what is told --------------------------------------------------------------------------------------------


def _unlike(parts: Sequence[_Part]) -> Iterator[str]:
    first = parts[0]
    for part in parts[1:]:
        for text in unlike(first.case.outcomes[0], part.case.outcomes[0]):
            yield f"{first.case.case}: {first.name} and {part.name} are unlike and can't be one case's rounds: {text}"


def _same_seeds(case: str, parts: Sequence[_Part]) -> list[str]:
    seeds = [outcome.seed for part in parts for outcome in part.case.outcomes if outcome.seed is not None]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if not twice:
        return []
    named = ", ".join(map(str, twice[:5]))
    return [f"note: {case}: seeds used more than once ({named}): of convergence these rounds say the same thing twice"]


def _apart(cases: Iterable[str]) -> Iterator[str]:
    """A case is named with its number of rounds."""
    names: dict[str, list[str]] = {}
    for case in cases:
        names.setdefault(case.rpartition(":")[0], []).append(case)
    for same in names.values():
        if len(same) > 1:
            yield f"note: {' and '.join(same)} stay apart: they differ in their number of rounds"


def _info(runs: Sequence[Run], names: Sequence[str]) -> RunInfo:
    known = [one.info for one in runs if one.info is not None]
    starts = [info.started_ms for info in known if info.started_ms is not None]
    ends = [info.ended_ms for info in known if info.ended_ms is not None]
    return RunInfo(
        command=("flagperf", "merge", *names),
        versions=known[0].versions if known and all(info.versions == known[0].versions for info in known) else {},
        started_ms=min(starts, default=None),
        ended_ms=max(ends, default=None),
        selected=tuple(dict.fromkeys(case for info in known for case in info.selected)),
        unsupported=tuple(dict.fromkeys(line for info in known for line in info.unsupported)),
    )
