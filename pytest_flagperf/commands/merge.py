"""Several runs as one: 1x1 from here and 2x8 from there, or more rounds of the same case.

Rounds of one case in several runs are numbered anew and judged again, all together; they must have the same
fingerprint. merged.json says where each round came from.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import jsons, machine, statistics, store, verdicts
from pytest_flagperf.results.comparable import unlike
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.store import CaseResult, Run, RunInfo
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import OneCard, Verdict

FILE = "merged.json"


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
    runs = stored.load_all(arguments.runs)
    names = stored.names_of(runs)
    cases: dict[str, list[_Part]] = {}
    for one, name in zip(runs, names, strict=True):
        for result in one.cases:
            cases.setdefault(result.case, []).append(_Part(one, name, result))
    problems = [problem for parts in cases.values() for problem in _unlike(parts)]
    if problems:
        raise Problems(problems)
    told: list[str] = []
    with stored.new_directory(arguments.to) as made:
        origins: dict[str, Any] = {}
        for case, parts in cases.items():
            origins[case] = _copy(made / case.replace(":", "_"), parts)
            told += _same_seeds(case, parts)
        for case, parts in cases.items():
            if len(parts) > 1:
                _judge_again(made / case.replace(":", "_"), parts)
        sources = {name: one.info for one, name in zip(runs, names, strict=True)}
        jsons.write(made / FILE, {"schema": store.SCHEMA, "runs": sources, "rounds": origins})
        merged = replace(store.load_run(made), directory=arguments.to)
        store.write_run(made, _info(runs, names), merged.cases)
        store.write_csv(made / "results.csv", [(arguments.to.resolve().name, merged.cases)])
    rounds = sum(len(case.outcomes) for case in merged.cases)
    print(f"{arguments.to}: {count(len(merged.cases), 'case')}, {count(rounds, 'round')} of {count(len(runs), 'run')}")
    print("\n".join(told), end="\n" if told else "")
    return 0


def _copy(made: Path, parts: Sequence[_Part]) -> list[dict[str, Any]]:
    """The rounds one after the other; what only one run has is copied as it is."""
    origins: list[dict[str, Any]] = []
    for part in parts:
        for outcome in part.case.outcomes:
            number = len(origins) + 1
            source, target = part.directory / f"round{outcome.round}", made / f"round{number}"
            shutil.copytree(source, target)
            if number != outcome.round or not (source / "outcome.json").exists():
                store.save_outcome(target, replace(outcome, round=number))
                plan = jsons.read(target / "plan.json")
                jsons.write(target / "plan.json", {**plan, "round": number})
            origins.append({"run": part.name, "round": outcome.round})
    for part in parts:
        if len(parts) == 1 and (part.directory / "verdicts").is_dir():
            shutil.copytree(part.directory / "verdicts", made / "verdicts")
        if (part.directory / "one_card").is_dir() and not (made / "one_card").exists():
            shutil.copytree(part.directory / "one_card", made / "one_card")
        if part.case.one_card is not None and not (made / "one_card.json").exists():
            store.save_one_card(made, part.case.one_card)
    return origins


def _judge_again(made: Path, parts: Sequence[_Part]) -> None:
    """What the runs judged of their own rounds does not hold for all of them."""
    merged = next(case for case in store.load_run(made.parent).cases if case.case == parts[0].case.case)
    plan = jsons.read(made / "round1" / "plan.json")
    for test, found in _verdicts(merged, plan, made.parent).items():
        store.save_verdicts(made, test, found)


def _verdicts(case: CaseResult, plan: Mapping[str, Any], made: Path) -> dict[str, Sequence[Verdict]]:
    found: dict[str, Sequence[Verdict]] = {}
    for outcome in case.outcomes:
        if not outcome.throughput_only:
            found[f"test_converges[{case.case}-round{outcome.round}]"] = verdicts.converges(outcome)
    found[f"test_throughput[{case.case}]"] = verdicts.throughput(case.outcomes)
    first = case.outcomes[0]
    if first.cards > 1:
        one_card = _one_card(made, first) or case.one_card
        if one_card is not None:
            store.save_one_card(made / case.case.replace(":", "_"), one_card)
        least, scaling = plan.get("min_efficiency"), str(plan.get("scaling"))
        least = float(least) if isinstance(least, int | float) else None
        judged = verdicts.speedup(case.outcomes, one_card, first.cards, least, scaling)
        found[f"test_speedup[{case.case}]"] = judged
    return found


def _one_card(made: Path, outcome: Outcome) -> OneCard | None:
    """The 1x1 case among those that were merged."""
    key = outcome.fingerprint.get("one_card_key")
    for case in store.load_run(made).cases:
        first = case.outcomes[0]
        like = key and first.fingerprint.get("key") == key and not machine.differences(first.machine, outcome.machine)
        values = statistics.finite(one.value("p_core") for one in case.outcomes if one.ok)
        if like and values:
            return OneCard.of(values, "the merged runs", first.rate_unit)
    return None


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
