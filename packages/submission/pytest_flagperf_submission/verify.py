"""Derive the figures of stored runs again from their logs, and list what differs from the stored figures.

The outcome of each round is measured again from its logs, the verdicts that follow from outcomes are judged again, and
both are compared with outcome.json, the files of verdicts and results.json. All files of SHA256SUMS are checked, also
logs. The exit code is 1 if something differs. Logs that were replaced together with everything made from them cannot be
recognized: keep the digest of SHA256SUMS elsewhere for that, or verify the archive of flagperf bundle --sign with
--signers, a file of allowed signers of ssh-keygen -Y. Without it anybody may have made the archive.
"""

from __future__ import annotations

import argparse
import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_flagperf import __version__
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import find_runs
from pytest_flagperf.results.verification import verify

from .bundle import SUMS
from .signature import signer

EXAMPLE = "reports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="run directories, folders of them, or archives of bundle"
    )
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="who may have signed the archives; others are errors"
    )


def run(arguments: argparse.Namespace) -> int:
    archives = [path for path in arguments.runs if path.is_file()]
    folders = [path for path in arguments.runs if path not in archives]
    if arguments.signers and folders:
        raise Problems([f"{path}: --signers needs an archive of flagperf bundle --sign" for path in folders])
    runs = find_runs(folders) if folders else []
    checked = [_check(directory, str(directory)) for directory in runs]
    for archive in archives:
        if arguments.signers:
            print(f"{archive}: signed by {signer(archive, arguments.signers)}")
        checked.append(_check_archive(archive))
    return 0 if all(checked) else 1


def _check(directory: Path, name: str) -> bool:
    """Print how a run differs from its logs; return True if it does not."""
    number, differences = verify(directory)
    for difference in differences:
        print(f"difference: {difference.replace(str(directory), name)}")
    print(f"{name}: {count(number, 'round')} derived again: {count(len(differences), 'difference')}")
    if name == str(directory):
        print(f"note: report.html and results.csv are not checked: flagperf report {name} makes the page again")
    if differences:
        print("\n".join(_other_version(directory)), end="")
    return not differences


# -- an archive ----------------------------------------------------------------------------------------------


def _check_archive(archive: Path) -> bool:
    """Unpack an archive into a temporary folder, and check its files and its runs."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise Problems([f"{archive}: not an archive of flagperf bundle: {error}"]) from error
        sums = [*Path(folder).glob(f"*/{SUMS}")]
        if len(sums) != 1:
            raise Problems([f"{archive}: not an archive of flagperf bundle: expected one folder with {SUMS}"])
        top = sums[0].parent
        differences = [*_changed(top)]
        for difference in differences:
            print(f"difference: {archive}: {difference}")
        same = [_check(directory, f"{archive}:{directory.name}") for directory in find_runs(top)]
    return all(same) and not differences


def _changed(top: Path) -> Iterator[str]:
    """Yield each file of an archive that its SHA256SUMS does not have with its digest."""
    expected = {}
    for line in (top / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        expected[name] = digest
    for path in sorted(path for path in top.rglob("*") if path.is_file() and path != top / SUMS):
        name = path.relative_to(top).as_posix()
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected.pop(name, None):
                yield f"{name} is not the file of {SUMS}"
    yield from (f"{name} is missing" for name in expected)


def _other_version(directory: Path) -> list[str]:
    """Return a note if another version made the run, which may have derived other figures from the same logs."""
    info, own = store.load_info(directory, []), __version__
    made_by = info.versions.get("pytest-flagperf", "") if info else ""
    note = f"note: pytest-flagperf {made_by} made the run, and this is {own}: it may derive other figures\n"
    return [note] if made_by not in ("", own) else []
