"""What the tests of a suite and its training to the target depend on, and the suites that passed with it.

``make train`` tests and trains all suites and writes tests/trained.toml. Other runs test and train the suites that have
changed since; those of ``make bench`` always train.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.plan import PlanRequest, make_plan

FILE = Path(__file__).with_name("trained.toml")
HEAD = "# By suite, the hash of what it used when it last passed its tests and trained; make train writes it.\n"
CASE = "{}:CPU:1:2:1"
SKIPPED = "the suite has not changed since it passed; make train runs all"


def hash_of(catalog: Catalog, suite: Suite) -> str:
    """Hash the code as the fingerprint knows it, and what the fingerprint leaves out: config, target and tests."""
    plan = make_plan(catalog, PlanRequest(Case.parse(CASE.format(suite.name)), vendor="cpu", scale="small"))
    used = [plan.fingerprint["key"], plan.config, plan.metric.value, dict(plan.metric.also), list(_tests(suite))]
    return hashlib.sha256(json.dumps(used, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _tests(suite: Suite) -> Iterator[str]:
    """Yield digests of the tests of a suite and of the code that it shares, and of those of all suites and trainers."""
    common = suite.path.parents[1] / "common"
    folders = [suite.path, common, *(common / name for name in suite.common)]
    files = [file for folder in folders for name in ("tests", "reference") for file in (folder / name).rglob("*")]
    tests = [*FILE.with_name("suites").rglob("*.py"), *FILE.parent.glob("driver/frameworks/*.py")]
    for file in sorted([*files, *tests]):
        if file.is_file() and file.suffix != ".pyc":
            yield hashlib.sha256(file.read_bytes()).hexdigest()


def recorded() -> dict[str, str]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def due(config: pytest.Config, catalog: Catalog, suites: Iterable[Suite]) -> list[Suite]:
    """Return the suites that this run of the tests must check and train: those that changed, or all."""
    return list(suites) if config.getoption("--train-all") else changed(catalog, suites, recorded())


def changed(catalog: Catalog, suites: Iterable[Suite], hashes: Mapping[str, str]) -> list[Suite]:
    """Return the suites that have not passed with what they use now."""
    return [suite for suite in suites if hashes.get(suite.name) != hash_of(catalog, suite)]


def record(catalog: Catalog, suites: Iterable[Suite]) -> None:
    """Write the hashes of suites that passed their tests and trained."""
    lines = [f'"{name}" = "{value}"\n' for name, value in sorted((s.name, hash_of(catalog, s)) for s in suites)]
    FILE.write_text(HEAD + "".join(lines), encoding="utf-8")


def benched() -> list[str]:
    """Return what ``make bench`` passes to pytest: the folders of three models, and their framework."""
    makefile = FILE.parents[1] / "Makefile"
    (arguments,) = re.findall(r"(?m)^BENCHED := (.*)", makefile.read_text(encoding="utf-8"))
    return str(arguments).split()
