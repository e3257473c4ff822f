"""Export the rounds of runs in the folders of an MLPerf submission, with additional rules to check them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from flagperf_driver.layout import SYSTEM
from pytest_flagperf.catalog import bundled
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome, Target
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.settings import find_root
from pytest_flagperf.stored import FormatError, write, write_text
from pytest_flagperf.stored.round_dir import RoundDir

from .mllog import SUBMITTER, MLPerfBenchmark, NotExportable, entries, rank0_records

RULES = Path(__file__).with_name("training.yaml")
PARSER = "6.1.0"
"""The ruleset whose parser reads files that only the additional rules check."""
UNKNOWN = "not recorded"
NOTE = "Exported by pytest-flagperf; unverified: this is not an MLPerf result."
_SIGNS = {"higher": ">=", "lower": "<="}
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# MLPerf requires every key; unknown values are "not recorded".
_SYSTEM = (
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_processor_vcpu_count", "host_processor_frequency",
    "host_processor_caches", "host_processor_interconnect", "host_memory_capacity", "host_storage_type",
    "host_storage_capacity", "host_networking", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect", "accelerator_frequency",
    "accelerator_on-chip_memories", "accelerator_memory_configuration", "accelerator_memory_capacity",
    "accelerator_interconnect", "accelerator_interconnect_topology", "cooling", "hw_notes", "framework",
    "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """The exported files of a case, relative to the export folder; ``ruleset`` is MLPerf's, if it has one."""

    case: str
    rules: Path
    ruleset: str | None
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Export:
    """The exported cases; ``left_out`` has a line with the reason for each round that was not exported."""

    cases: tuple[Exported, ...]
    left_out: tuple[str, ...]


def benchmark_of(model: str, suites: Path | None) -> MLPerfBenchmark:
    """Return the benchmark in the model's ``mlperf.toml``; without the file, one with the model's own name."""
    path = suites / model / "mlperf.toml" if suites else None
    if path is None or not path.is_file():
        return MLPerfBenchmark(model)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        counts = {key: dict(table.pop(key, {})) for key in ("train_samples", "eval_samples")}
        return MLPerfBenchmark(**{"name": table.pop("benchmark"), **table, **counts})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: invalid description of the MLPerf benchmark: {error}") from error


def rules(benchmark: MLPerfBenchmark, target: Target, scale: str) -> str:
    """Return the checks of a result file; the target is that of the suite, not of the log."""
    sign = _SIGNS.get(target.direction)
    # The checker runs the rules as code.
    if not _NAME.fullmatch(benchmark.name):
        raise NotExportable(f"invalid benchmark name {benchmark.name!r}; expected letters, digits, . _ and -")
    if sign is None or target.value is None or not math.isfinite(target.value):
        raise NotExportable("no target")
    text = RULES.read_text(encoding="utf-8")
    return Template(text).substitute(
        benchmark=benchmark.name, division=benchmark.division_of(scale), sign=sign, target=repr(float(target.value))
    )


def suites_folder() -> Path | None:
    """Return the folder with ``<model>/mlperf.toml``: that of the current tree, else the wheel's."""
    root = find_root(Path.cwd()) or bundled()
    return root / "suites" if root else None


def export(runs: Sequence[StoredRun], to: Path, *, suites: Path | None = None) -> Export:
    """Write ``results/<system>/<benchmark>/result_<i>.txt``, ``systems`` and ``rules`` into a new folder."""
    done: list[Exported] = []
    left_out: list[str] = []
    for run, case in [(one, case) for one in runs for case in one.cases]:
        exported = _export_case(run, case, to, benchmark_of(case.outcomes[0].model, suites), left_out)
        if exported is not None:
            done.append(exported)
    if done:
        write_text(to / "README.md", _readme(done))
    return Export(tuple(done), tuple(left_out))


def _export_case(
    run: StoredRun, case: CaseResult, to: Path, benchmark: MLPerfBenchmark, left_out: list[str]
) -> Exported | None:
    texts = []
    for outcome in case.outcomes:
        try:
            checks = rules(benchmark, outcome.target, outcome.scale)
            texts.append(_text(run.directory / outcome.directory, outcome, benchmark))
        except (NotExportable, FormatError) as error:
            left_out.append(f"{outcome.case} round {outcome.round}: {error}")
    if not texts:
        return None
    first = case.outcomes[0]
    system = _system_name(first, to, benchmark)
    folder = Path("results", system, benchmark.name)
    files = [folder / f"result_{number}.txt" for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        write_text(to / path, text)
    rules_path = Path("rules", system, f"{benchmark.name}.yaml")
    write_text(to / rules_path, checks)
    division = benchmark.division_of(first.scale)
    write(to / "systems" / f"{system}.json", _system(run, first, system, division))
    return Exported(case.case, rules_path, benchmark.ruleset_of(first.scale), tuple(files))


def _text(round_dir: Path, outcome: Outcome, benchmark: MLPerfBenchmark) -> str:
    plan = RoundDir(round_dir).read_plan()
    records = rank0_records(round_dir, outcome)
    return "".join(f"{entry}\n" for entry in entries(outcome, plan, records, benchmark))


def _system_name(outcome: Outcome, to: Path, benchmark: MLPerfBenchmark) -> str:
    """Return a name without spaces; a second case of the same benchmark and system gets a number."""
    name = f"{outcome.hardware}_{outcome.nnodes}x{outcome.nproc}_{outcome.framework}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")
    number, unique = 1, name
    while (to / "results" / unique / benchmark.name).exists():
        number += 1
        unique = f"{name}_{number}"
    return unique


def _system(run: StoredRun, outcome: Outcome, name: str, division: str) -> dict[str, str]:
    """Return MLPerf's description of a system, in which every value is a string."""
    host = _host(run.directory / outcome.directory, outcome)
    known = {
        "submitter": SUBMITTER,
        "division": division,
        "status": "Research, Development, or Internal (RDI)",
        "system_name": name,
        "number_of_nodes": outcome.nnodes,
        "host_processor_model_name": host.get("cpu"),
        "host_processor_vcpu_count": host.get("cores"),
        "host_memory_capacity": _size(host.get("memory_bytes")),
        "accelerators_per_node": outcome.nproc,
        "accelerator_model_name": outcome.environment.get("device") or outcome.hardware,
        "framework": outcome.environment.get("framework") or outcome.framework,
        "operating_system": host.get("os"),
        "sw_notes": NOTE,
    }
    return {key: str(known.get(key) or UNKNOWN) for key in _SYSTEM}


def _host(round_dir: Path, outcome: Outcome) -> Mapping[str, str]:
    """Return the values in the sys_info.log of the first host."""
    if not outcome.logs:
        return {}
    path = (round_dir / outcome.logs[0]).parent / SYSTEM
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(": ") for line in text.splitlines())
    return {key: value.strip() for key, separator, value in pairs if separator}


def _size(text: str | None) -> str | None:
    return quantity(int(text), "bytes") if text and text.isdecimal() else None


def _readme(cases: list[Exported]) -> str:
    """Return the README of the export, with the commands that check it."""
    text = ["# Result files in MLPerf's format", "", NOTE, "", "```bash", "pip install mlperf-logging"]
    checker = "python -m mlperf_logging.compliance_checker"
    for case in cases:
        files = f"{case.files[0].parent.as_posix()}/result_*.txt"
        text += ["", f"# {case.case}", f"for f in {files}; do"]
        text.append(f'  {checker} --ruleset {case.ruleset or PARSER} --config "$PWD/{case.rules.as_posix()}" "$f"')
        if case.ruleset:
            text.append(f'  {checker} --ruleset {case.ruleset} "$f"')
        text.append("done")
    return "\n".join([*text, "```", ""])
