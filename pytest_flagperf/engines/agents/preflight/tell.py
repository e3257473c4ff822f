"""Findings for people: as sentences, and host by host for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .findings import FAIL, OK, WARN, Finding, some


def unfit_devices(findings: Iterable[Finding]) -> dict[str, set[int]]:
    """By host, the devices that no rank should get."""
    unfit: dict[str, set[int]] = {}
    for finding in findings:
        if finding.devices:
            unfit.setdefault(finding.host, set()).update(finding.devices)
    return unfit


def near_devices(findings: Iterable[Finding]) -> dict[str, dict[int, Sequence[int]]]:
    """By host and device, the cores near it; of what the host does not tell, nothing."""
    near: dict[str, dict[int, Sequence[int]]] = {}
    for finding in findings:
        if finding.near:
            near.setdefault(finding.host, {}).update(finding.near)
    return near


def sentences(findings: Iterable[Finding], level: str = FAIL) -> list[str]:
    """What is of that level, a sentence each; what holds for many hosts is said once."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        if one.level == level:
            text = f"{one.kind}: {one.sentence}" + (f" - {one.remedy}" if one.remedy else "")
            hosts.setdefault((one.kind, text), []).append(one.host)
    return [f"{some(names)}: {text}" for (_, text), names in hosts.items()]


def lines(findings: Sequence[Finding], width: int = 100) -> list[str]:
    """Host by host for a terminal: what is well in short, then what is not and what to do."""
    width = min(width, 100)
    by_host: dict[str, list[Finding]] = {}
    for finding in findings:
        by_host.setdefault(finding.host, []).append(finding)
    shown = [line for host, its in by_host.items() for line in _block(host, its, width)]
    return [*shown, *_summary(by_host, width)]


def _block(host: str, findings: Sequence[Finding], width: int) -> Iterator[str]:
    yield host
    well = " · ".join(f"{one.kind} {one.sentence}" for one in findings if one.level == OK)
    yield from _wrapped("  ok    ", well, width)
    for level, word in ((WARN, "  warn  "), (FAIL, "  FAIL  ")):
        for one in findings:
            if one.level == level:
                yield from _wrapped(word, f"{one.kind}: {one.sentence}", width)
                yield from _wrapped("        -> ", one.remedy, width)


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
    bad = [host for host, its in by_host.items() if any(one.fatal for one in its)]
    warned = [host for host, its in by_host.items() if host not in bad and any(one.level == WARN for one in its)]
    count = f"{len(by_host)} host" + ("s" if len(by_host) != 1 else "")
    parts = [f"{len(by_host) - len(bad) - len(warned)} ok"]
    parts += [f"{len(warned)} with warnings ({some(warned)})"] if warned else []
    parts += [f"{len(bad)} unfit ({some(bad)})"] if bad else []
    return _wrapped("", f"{count}: {', '.join(parts)}", width)
