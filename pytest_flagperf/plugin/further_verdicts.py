"""The verdicts of installed plugins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_flagperf.hooks import Plugin
from pytest_flagperf.hooks.plugins import FIX, call
from pytest_flagperf.problems import shown
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict, VerdictKind
from pytest_flagperf.stored import FormatError, type_check


def of_plugins(rounds: Sequence[Outcome]) -> list[Verdict]:
    """Return the verdicts of all plugins on the rounds of a case; an error of a plugin is a failed verdict."""
    verdicts: list[Verdict] = []
    for answer in call("flagperf_verdicts", Verdict, rounds=tuple(rounds)):
        plugin = answer.plugin
        if answer.problem:
            verdicts.append(_failed(plugin, answer.problem))
        verdicts += [_checked(plugin, verdict) for verdict in answer.values]
    return verdicts


def _checked(plugin: Plugin, verdict: Verdict) -> Verdict:
    """Return a verdict with the name of its plugin as a prefix, or a failed verdict if it is invalid."""
    where = f"{plugin.label}: flagperf_verdicts(): {shown(verdict)}"
    try:
        type_check.check(verdict, Verdict, where)
    except FormatError as error:
        return _failed(plugin, f"{error}; {FIX}")
    problem = _problem(verdict)
    if problem:
        return _failed(plugin, f"{where}: {problem}; {FIX}")
    return replace(verdict, name=f"{plugin.name}.{verdict.name.strip()}", kind=VerdictKind.PLUGIN)


def _problem(verdict: Verdict) -> str:
    if not verdict.name.strip():
        return "expected a name"
    if not verdict.ok and not verdict.sentence.strip():
        return "expected a sentence, because the verdict failed"
    if verdict.warning and not verdict.ok:
        return "a verdict with a warning passes; expected ok=True"
    if verdict.kind != VerdictKind.OTHER or verdict.expected_failure is not None:
        return "expected no kind and no expected_failure: pytest-flagperf sets them"
    return ""


def _failed(plugin: Plugin, problem: str) -> Verdict:
    return Verdict(plugin.name, False, "an error", "verdicts", problem, kind=VerdictKind.PLUGIN)
