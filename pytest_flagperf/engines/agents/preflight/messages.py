"""Findings as text: sentences, and a block for each host in the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_flagperf.engines import FAIL, OK, WARN, Finding
from pytest_flagperf.problems import some


def unfit_devices(findings: Iterable[Finding]) -> dict[str, set[int]]:
    """Return the devices that no rank may use, by host."""
    unfit: dict[str, set[int]] = {}
    for finding in findings:
        if finding.devices:
            unfit.setdefault(finding.host, set()).update(finding.devices)
    return unfit


def near_devices(findings: Iterable[Finding]) -> dict[str, dict[int, Sequence[int]]]:
    """Return the cores near each device, by host and device, where the host reports them."""
    near: dict[str, dict[int, Sequence[int]]] = {}
    for finding in findings:
        if finding.near:
            near.setdefault(finding.host, {}).update(finding.near)
    return near


def sentences(findings: Iterable[Finding], level: str = FAIL) -> list[str]:
    """Return one sentence for each finding of a level; hosts with the same finding share a sentence."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.level == level:
            text = f"{finding.kind}: {finding.sentence}" + (f" - {finding.remedy}" if finding.remedy else "")
            hosts.setdefault((finding.kind, text), []).append(finding.host)
    return [f"{some(names)}: {text}" for (_, text), names in hosts.items()]


def lines(findings: Sequence[Finding], width: int = 100) -> list[str]:
    """Return the lines for a terminal: for each host what is ok in short, then each problem with its remedy."""
    width = min(width, 100)
    by_host: dict[str, list[Finding]] = {}
    for finding in findings:
        by_host.setdefault(finding.host, []).append(finding)
    shown = [line for host, its_findings in by_host.items() for line in _block(host, its_findings, width)]
    return [*shown, *_summary(by_host, width)]


def _block(host: str, findings: Sequence[Finding], width: int) -> Iterator[str]:
    yield host
    passed = " · ".join(f"{finding.kind} {finding.sentence}" for finding in findings if finding.level == OK)
    yield from _wrapped("  ok    ", passed, width)
    for level, word in ((WARN, "  warn  "), (FAIL, "  FAIL  ")):
        for finding in findings:
            if finding.level == level:
                yield from _wrapped(word, f"{finding.kind}: {finding.sentence}", width)
                yield from _wrapped("        -> ", finding.remedy, width)


def _wrapped(start: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _summary(by_host: Mapping[str, Sequence[Finding]], width: int) -> list[str]:
    unfit = [host for host, its_findings in by_host.items() if any(finding.fatal for finding in its_findings)]
    warned = [
        host
        for host, its_findings in by_host.items()
        if host not in unfit and any(finding.level == WARN for finding in its_findings)
    ]
    count = f"{len(by_host)} host" + ("s" if len(by_host) != 1 else "")
    parts = [f"{len(by_host) - len(unfit) - len(warned)} ok"]
    parts += [f"{len(warned)} with warnings ({some(warned)})"] if warned else []
    parts += [f"{len(unfit)} unfit ({some(unfit)})"] if unfit else []
    return _wrapped("", f"{count}: {', '.join(parts)}", width)
