"""Check that runs form a complete submission, and pack them into one archive with checksums.

Each model, framework and chip needs every required shape, with at least one successful round at the reference scale on
real data, the logs of all ranks, the config and the fingerprint. The largest shape on one host must reach its target;
a parity check of the loss curve is not enough. Other shapes may be for throughput only. All shapes must have the same
code and precision. Of a folder of runs, the newest run of each shape is taken; runs at another scale, on synthetic data
or without a successful round are left out and listed. The figures of all rounds are derived again from their logs, as
flagperf verify does.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf.case import Shape
from pytest_flagperf.commands import common
from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.comparing.one_card import STORED
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import age, find_runs
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts import failed, has_converged
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.results.verification import verify
from pytest_flagperf.stored import FormatError, to_json_types
from pytest_flagperf.stored.round_dir import RoundDir
from pytest_flagperf_export import performance

from .signature import sign, signature_of

SHAPES = "1x1,1x8,2x8"
SUMS, SUMMARY = "SHA256SUMS", "submission.json"
_SAME = ("suite_code", "driver_code", "vendor_code", "requirements", "precision")


EXAMPLE = "reports --shapes=1x1,1x8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="the archive to write (default: submission-<vendor>.tar.gz)"
    )
    parser.add_argument("--shapes", default=SHAPES, metavar="NxP,...", help=f"required shapes (default: {SHAPES})")
    parser.add_argument(
        "--scale", choices=("reference", "small"), default="reference", help="required scale (default: reference)"
    )
    parser.add_argument(
        "--incomplete", action="store_true", help="write the archive despite problems; it contains their list"
    )
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help="sign the archive with this SSH key; writes FILE.sig for verify --signers",
    )


@dataclass(frozen=True)
class _CaseOfRun:
    run: StoredRun
    case: CaseResult

    @property
    def subject(self) -> str:
        first = self.case.first
        return f"{first.model}:{first.framework}:{first.hardware}"

    @property
    def shape(self) -> Shape:
        return self.case.first.shape


def run(arguments: argparse.Namespace) -> int:
    required = Shape.parse_list(arguments.shapes)
    cases, left_out = _selected(arguments.runs, required, arguments.scale)
    runs = list({id(part.run): part.run for part in cases}.values())
    print("\n".join(f"left out: {text}" for text in left_out), end="\n" if left_out else "")
    vendors = sorted({outcome.vendor for run in runs for case in run.cases for outcome in case.outcomes})
    to: Path = arguments.to or Path(f"submission-{'-'.join(vendors)}.tar.gz")
    for path in (to, *([signature_of(to)] if arguments.sign else [])):
        if path.exists():
            raise Problems([f"{path}: already exists; choose another file with --to"])
    if arguments.sign and not arguments.sign.is_file():
        raise Problems([f"--sign={arguments.sign}: no such file; expected a private or public SSH key"])
    problems = _problems(runs, cases, required, arguments.scale)
    print("\n".join(f"problem: {problem}" for problem in problems), end="\n" if problems else "")
    if problems and not arguments.incomplete:
        print(f"no archive written: {count(len(problems), 'problem')}; pass --incomplete to write it with their list")
        return 1
    files = _write(to, runs, required, problems)
    print(f"{to}: {count(files, 'file')} of {count(len(runs), 'run')}, {'incomplete' if problems else 'complete'}")
    if arguments.sign:
        print(f"{sign(to, arguments.sign)}: the signature")
    return 1 if problems else 0


# -- the runs ------------------------------------------------------------------------------------------------


def _selected(paths: Sequence[Path], required: Sequence[Shape], scale: str) -> tuple[list[_CaseOfRun], list[str]]:
    """Return the cases of the given runs, of folders the cases that fit, and a line for each run without any."""
    cases: dict[tuple[Path, str], _CaseOfRun] = {}
    left_out: list[str] = []
    for path in paths:
        if (found := find_runs(path)) == [path]:
            run = common.load_run(path)
            chosen = [_CaseOfRun(run, case) for case in run.cases]
        else:
            chosen = _of_folder([store.load_run(directory) for directory in found], required, scale, left_out)
        cases.update({(part.run.directory.resolve(), part.case.case): part for part in chosen})
    if not cases:
        raise Problems([*left_out, f"no run has a successful round at the {scale} scale on real data"])
    return list(cases.values()), left_out


def _of_folder(
    runs: Sequence[StoredRun], required: Sequence[Shape], scale: str, left_out: list[str]
) -> list[_CaseOfRun]:
    """Return the newest fitting case of each model and shape, in the order of the runs."""
    newest: dict[tuple[str, Shape], _CaseOfRun] = {}
    reasons: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: age(run.directory)):
        for part in (_CaseOfRun(run, case) for case in run.cases):
            if reason := _unfit(part, required, scale):
                reasons.setdefault(str(run.directory), []).append(reason)
            else:
                newest[part.subject, part.shape] = part
    used = {str(part.run.directory) for part in newest.values()}
    for run in runs:
        if str(run.directory) not in used:
            newer = "a newer run has the same shapes" if run.cases else "no readable round"
            why = ", ".join(dict.fromkeys(reasons.get(str(run.directory), [newer])))
            left_out.append(f"{run.directory}: {why}")
    order = [run.directory for run in runs]
    return sorted(newest.values(), key=lambda part: order.index(part.run.directory))


def _unfit(case: _CaseOfRun, required: Sequence[Shape], scale: str) -> str | None:
    """Return why a case is not part of a submission; None if it may be."""
    first = case.case.first
    if first.scale != scale:
        return f"{first.scale} scale"
    if first.synthetic:
        return "synthetic data"
    if case.shape not in required:
        return f"shape {case.shape}"
    return None if case.case.finished else "no successful round"


# -- problems ------------------------------------------------------------------------------------------------


def _problems(
    runs: Sequence[StoredRun], parts: Sequence[_CaseOfRun], required: Sequence[Shape], scale: str
) -> list[str]:
    subjects: dict[str, list[_CaseOfRun]] = {}
    for case in parts:
        subjects.setdefault(case.subject, []).append(case)
    problems = [problem for run in runs for problem in (*run.problems, *verify(run.directory)[1])]
    names = {common.run_name(run) for run in runs}
    for subject, cases in subjects.items():
        problems += [f"{subject}: {problem}" for problem in _subject_problems(cases, required, scale)]
        problems += [f"{subject}: {problem}" for part in cases for problem in _foreign_one_card(part, names)]
    return problems


def _foreign_one_card(part: _CaseOfRun, names: Collection[str]) -> Iterator[str]:
    """Yield a problem if the speed-up compares with one card of a run that is not in the archive."""
    origin = part.case.one_card.where_from if part.case.one_card else ""
    if origin.startswith(STORED) and origin.removeprefix(STORED).strip().partition("/")[0] not in names:
        yield f"{part.shape}: the figure of one card for its speed-up is {origin}; run 1x1 and {part.shape} in one run"


def _subject_problems(cases: Sequence[_CaseOfRun], required: Sequence[Shape], scale: str) -> Iterator[str]:
    on_one_host = [shape for shape in required if shape.nnodes == 1] or list(required)
    for shape in required:
        of_shape = [case for case in cases if case.shape == shape]
        if not of_shape:
            yield f"{shape} is missing"
        if len(of_shape) > 1:
            places = " and ".join(str(case.run.directory) for case in of_shape)
            yield f"{len(of_shape)} runs contain {shape}: {places}; pass only one of them"
        for case in of_shape:
            yield from (f"{shape}: {text}" for text in _case_problems(case, shape == max(on_one_host), scale))
    of_required = [case for case in cases if case.shape in required]
    for name in _SAME:
        values = {str(case.shape): case.case.first.fingerprint.get(name) for case in of_required}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} in {shape}" for shape, value in values.items())
            yield f"{name} differs between the shapes: {listed}"


def _case_problems(part: _CaseOfRun, must_converge: bool, scale: str) -> Iterator[str]:
    first = part.case.first
    if first.scale != scale:
        yield f"got the {first.scale} scale; expected {scale}"
    if unknown := marks.unknown_factor(part.case.outcomes):
        yield unknown
    if unverified := marks.unverified_chip(part.case.outcomes):
        yield unverified
    if invalid := marks.of_rounds(part.case.outcomes).get(marks.NOT_VALID):
        yield f"{marks.NOT_VALID}: {invalid}"
    if first.synthetic:
        yield "got synthetic data; expected real data"
    if not first.fingerprint.get("key"):
        yield "no fingerprint"
    if not part.case.finished:
        reason = next((failure.sentence for outcome in part.case.outcomes for failure in outcome.failures), first.state)
        yield f"no successful round: {reason}"
    elif must_converge and not any(has_converged(outcome) for outcome in part.case.finished):
        parity = "parity_samples is set, so they were judged by the reference's loss curve"
        reason = next((verdict.sentence for verdict in failed(converges(part.case.finished[0]))), parity)
        yield f"no round reached the target: {reason}"
    for outcome in part.case.finished:
        directory = part.run.directory / outcome.directory
        missing = outcome.cards - sum((directory / log).is_file() for log in outcome.logs)
        if missing:
            yield f"round {outcome.round}: no log of {missing} of {count(outcome.cards, 'rank')}"
        if not _has_config(directory):
            yield f"round {outcome.round}: plan.json contains no config"


def _has_config(directory: Path) -> bool:
    try:
        return bool(RoundDir(directory).read_plan().config)
    except FormatError:
        return False


# -- the archive ---------------------------------------------------------------------------------------------


def _write(to: Path, runs: Sequence[StoredRun], required: Sequence[Shape], problems: Sequence[str]) -> int:
    """Write the archive, completely or not at all, and return its number of files; same runs, same bytes."""
    to.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")
    top = to.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            files = _fill(archive, top, runs, required, problems)
        Path(name).chmod(0o644)
        Path(name).replace(to)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return files


def _fill(
    archive: tarfile.TarFile, top: str, runs: Sequence[StoredRun], required: Sequence[Shape], problems: Sequence[str]
) -> int:
    sums: dict[str, str] = {}
    for run, name in zip(runs, common.unique_names(runs), strict=True):
        for path in sorted(run.directory.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                file = f"{name}/{path.relative_to(run.directory).as_posix()}"
                with path.open("rb") as content:
                    _add(archive, top, file, content, sums, path.stat().st_mtime)
    summary = json.dumps(to_json_types(_summary(runs, required, problems)), indent=1, ensure_ascii=False) + "\n"
    _add(archive, top, SUMMARY, io.BytesIO(summary.encode()), sums)
    _add(archive, top, performance.FILE, io.BytesIO(performance.performance_tables(runs).encode()), sums)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    _add(archive, top, SUMS, io.BytesIO("".join(lines).encode()), sums)
    return len(sums)


def _add(
    archive: tarfile.TarFile,
    top: str,
    name: str,
    content: io.BufferedReader | io.BytesIO,
    sums: dict[str, str],
    mtime: float = 0,
) -> None:
    """Add a file, which may be larger than the memory."""
    sums[name] = hashlib.file_digest(content, "sha256").hexdigest()
    info = tarfile.TarInfo(f"{top}/{name}")
    info.size, info.mode, info.mtime = content.seek(0, os.SEEK_END), 0o644, int(mtime)
    content.seek(0)
    archive.addfile(info, content)


def _summary(runs: Sequence[StoredRun], required: Sequence[Shape], problems: Sequence[str]) -> Mapping[str, Any]:
    cases = [
        {
            "run": name,
            "case": case.case,
            "vendor": case.first.vendor,
            "rounds": len(case.outcomes),
            "converged": case.converged,
            "throughput_only": case.first.throughput_only,
            "parity_samples": case.first.parity_samples,
            "p_core": case.median("p_core"),
            "fingerprint": case.first.fingerprint,
        }
        for run, name in zip(runs, common.unique_names(runs), strict=True)
        for case in run.cases
    ]
    return {
        "schema": store.SCHEMA,
        "complete": not problems,
        "problems": problems,
        "shapes": [str(shape) for shape in required],
        "cases": cases,
    }
