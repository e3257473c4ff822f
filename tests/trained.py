"""What a training to a suite's target depends on, and the suites that trained with it.

``make train`` trains all suites and writes tests/trained.toml. Other runs of tests train what has changed since.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.plan import PlanRequest, make_plan

FILE = Path(__file__).with_name("trained.toml")
HEAD = "# By suite, the hash of what it used when it last reached its target on two cards; make train writes it.\n"
CASE = "{}:CPU:1:2:1"


def hash_of(catalog: Catalog, suite: Suite) -> str:
    """Hash the code as the fingerprint knows it, and what the fingerprint leaves out: the config and the target."""
    plan = make_plan(catalog, PlanRequest(Case.parse(CASE.format(suite.name)), vendor="cpu", scale="small"))
    used = [plan.fingerprint["key"], plan.config, plan.metric.target, dict(plan.metric.also)]
    return hashlib.sha256(json.dumps(used, sort_keys=True, default=str).encode()).hexdigest()[:16]


def recorded() -> dict[str, str]:
    """Return the recorded hashes by suite."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def changed(catalog: Catalog, suites: Iterable[Suite], hashes: Mapping[str, str]) -> list[Suite]:
    """Return the suites that have not trained with what they use now."""
    return [suite for suite in suites if hashes.get(suite.name) != hash_of(catalog, suite)]


def record(catalog: Catalog, suites: Iterable[Suite]) -> None:
    """Write the hashes of suites that have trained."""
    lines = [f'"{name}" = "{value}"\n' for name, value in sorted((s.name, hash_of(catalog, s)) for s in suites)]
    FILE.write_text(HEAD + "".join(lines), encoding="utf-8")


def benched() -> list[str]:
    """Return what ``make bench`` passes to pytest: the folders of three models, and their framework."""
    makefile = FILE.parents[1] / "Makefile"
    (arguments,) = re.findall(r"(?m)^BENCHED := (.*)", makefile.read_text(encoding="utf-8"))
    return str(arguments).split()
