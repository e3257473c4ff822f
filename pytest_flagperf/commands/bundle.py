"""The submission that a vendor hands in: runs, checked to be complete, as one archive with checksums.

For each model, framework and chip every wanted shape must be there: a round of it that ended well, at the reference
scale, on real data, with all ranks' logs, the config and the fingerprint. The largest shape on one host must have
reached its target, which the parity of a loss curve is not; the others may be for throughput only. All shapes must be
of the same code and precision.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf.case import Shape
from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.export.markdown import performance_tables
from pytest_flagperf.results import store
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import CaseResult, Run
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import converges, failed, has_converged
from pytest_flagperf.stored import FormatError, sayable
from pytest_flagperf.stored.round import RoundDir

SHAPES = "1x1,1x8,2x8"
SUMS, SUMMARY = "SHA256SUMS", "submission.json"
_SAME = ("suite_code", "driver_code", "vendor_code", "requirements", "precision")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help="(default: submission-<vendor>.tar.gz)")
    parser.add_argument("--shapes", default=SHAPES, metavar="NxP,...", help=f"what must be there (default: {SHAPES})")
    parser.add_argument(
        "--scale", choices=("reference", "small"), default="reference", help="of all cases (default: reference)"
    )
    parser.add_argument(
        "--incomplete", action="store_true", help="make the archive all the same; it tells what is amiss"
    )


@dataclass(frozen=True)
class _Found:
    run: Run
    case: CaseResult

    @property
    def subject(self) -> str:
        one = self.case.outcomes[0]
        return f"{one.model}:{one.framework}:{one.hardware}"

    @property
    def shape(self) -> Shape:
        return Shape(self.case.outcomes[0].nnodes, self.case.outcomes[0].nproc)

    @property
    def ended(self) -> list[Outcome]:
        return [outcome for outcome in self.case.outcomes if outcome.ok]


def run(arguments: argparse.Namespace) -> int:
    wanted = Shape.parse_list(arguments.shapes)
    runs = stored.load_all(arguments.runs)
    vendors = sorted({outcome.vendor for one in runs for case in one.cases for outcome in case.outcomes})
    to: Path = arguments.to or Path(f"submission-{'-'.join(vendors)}.tar.gz")
    if to.exists():
        raise Problems([f"{to}: is there already; name another with --to"])
    problems = _problems(runs, wanted, arguments.scale)
    print("\n".join(f"amiss: {problem}" for problem in problems), end="\n" if problems else "")
    if problems and not arguments.incomplete:
        print(f"no archive: {count(len(problems), 'problem')}; --incomplete makes one that says so")
        return 1
    files = _write(to, runs, wanted, problems)
    print(f"{to}: {count(files, 'file')} of {count(len(runs), 'run')}, {'incomplete' if problems else 'complete'}")
    return 1 if problems else 0


# -- what is amiss -------------------------------------------------------------------------------------------


def _problems(runs: Sequence[Run], wanted: Sequence[Shape], scale: str) -> list[str]:
    subjects: dict[str, list[_Found]] = {}
    for found in (_Found(one, case) for one in runs for case in one.cases):
        subjects.setdefault(found.subject, []).append(found)
    problems = [problem for one in runs for problem in one.problems]
    for subject, parts in subjects.items():
        problems += [f"{subject}: {problem}" for problem in _of_subject(parts, wanted, scale)]
    return problems


def _of_subject(parts: Sequence[_Found], wanted: Sequence[Shape], scale: str) -> Iterator[str]:
    on_one_host = [shape for shape in wanted if shape.nnodes == 1] or list(wanted)
    for shape in wanted:
        held = [part for part in parts if part.shape == shape]
        if not held:
            yield f"{shape} is missing"
        if len(held) > 1:
            places = " and ".join(str(part.run.directory) for part in held)
            yield f"{shape} is there {len(held)} times, in {places}: give one of them"
        for part in held:
            yield from (f"{shape}: {text}" for text in _of_case(part, shape == max(on_one_host), scale))
    of_wanted = [part for part in parts if part.shape in wanted]
    for name in _SAME:
        values = {str(part.shape): part.case.outcomes[0].fingerprint.get(name) for part in of_wanted}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{value} in {shape}" for shape, value in values.items())
            yield f"{name} is not the same in all shapes: {told}"


def _of_case(part: _Found, must_converge: bool, scale: str) -> Iterator[str]:
    first = part.case.outcomes[0]
    if first.scale != scale:
        yield f"was run at the {first.scale} scale, wanted is {scale}"
    if first.synthetic:
        yield "was run on synthetic data"
    if not first.fingerprint.get("key"):
        yield "has no fingerprint"
    if not part.ended:
        why = next((failure.sentence for one in part.case.outcomes for failure in one.failures), first.state)
        yield f"no round ended well: {why}"
    elif must_converge and not any(has_converged(outcome) for outcome in part.ended):
        parity = "parity_samples has them judged by the reference's loss curve instead"
        why = next((verdict.sentence for verdict in failed(converges(part.ended[0]))), parity)
        yield f"no round reached the target: {why}"
    for outcome in part.ended:
        directory = part.run.directory / outcome.directory
        missing = outcome.cards - sum((directory / log).is_file() for log in outcome.logs)
        if missing:
            yield f"round {outcome.round}: {count(missing, 'rank')} of {outcome.cards} left no log"
        if not _has_config(directory):
            yield f"round {outcome.round}: plan.json holds no config"


def _has_config(directory: Path) -> bool:
    try:
        return bool(RoundDir(directory).read_plan().config)
    except FormatError:
        return False


# -- the archive ---------------------------------------------------------------------------------------------


def _write(to: Path, runs: Sequence[Run], wanted: Sequence[Shape], problems: Sequence[str]) -> int:
    """Whole or not at all; the same runs make the same bytes."""
    to.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")
    top = to.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            files = _fill(archive, top, runs, wanted, problems)
        Path(name).chmod(0o644)
        Path(name).replace(to)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return files


def _fill(
    archive: tarfile.TarFile, top: str, runs: Sequence[Run], wanted: Sequence[Shape], problems: Sequence[str]
) -> int:
    sums: dict[str, str] = {}
    for one, name in zip(runs, stored.names_of(runs), strict=True):
        for path in sorted(one.directory.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                _add_file(archive, top, f"{name}/{path.relative_to(one.directory).as_posix()}", path, sums)
    summary = json.dumps(sayable(_summary(runs, wanted, problems)), indent=1, ensure_ascii=False) + "\n"
    _add_text(archive, top, SUMMARY, summary, sums)
    for language in ("en", "zh"):
        table = "\n".join(performance_tables(runs, language)) + "\n"
        _add_text(archive, top, f"performance.{language}.md", table, sums)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    _add_text(archive, top, SUMS, "".join(lines), sums)
    return len(sums)


def _add_file(archive: tarfile.TarFile, top: str, name: str, path: Path, sums: dict[str, str]) -> None:
    """What is hashed is what is packed, also of a file that somebody still writes to."""
    with path.open("rb") as source:
        info = _entry(f"{top}/{name}", os.fstat(source.fileno()).st_size)
        info.mtime = int(os.fstat(source.fileno()).st_mtime)
        hashed = _Hashed(source)
        archive.addfile(info, hashed)
    sums[name] = hashed.sum.hexdigest()


def _add_text(archive: tarfile.TarFile, top: str, name: str, text: str, sums: dict[str, str]) -> None:
    content = text.encode()
    archive.addfile(_entry(f"{top}/{name}", len(content)), io.BytesIO(content))
    sums[name] = hashlib.sha256(content).hexdigest()


def _entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, source: io.BufferedReader) -> None:
        super().__init__()
        self._source = source
        self.sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = self._source.read(size)
        self.sum.update(found)
        return found


def _summary(runs: Sequence[Run], wanted: Sequence[Shape], problems: Sequence[str]) -> Mapping[str, Any]:
    cases = [
        {
            "run": name,
            "case": case.case,
            "vendor": case.outcomes[0].vendor,
            "rounds": len(case.outcomes),
            "converged": case.converged,
            "throughput_only": case.outcomes[0].throughput_only,
            "parity_samples": case.outcomes[0].parity_samples,
            "p_core": case.median("p_core"),
            "fingerprint": case.outcomes[0].fingerprint,
        }
        for one, name in zip(runs, stored.names_of(runs), strict=True)
        for case in one.cases
    ]
    return {
        "schema": store.SCHEMA,
        "complete": not problems,
        "problems": problems,
        "shapes": [str(shape) for shape in wanted],
        "cases": cases,
    }
