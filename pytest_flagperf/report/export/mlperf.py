"""A run's rounds in the folders of an MLPerf submission, with rules of our own to check them by."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pytest_flagperf.report.export.mllog import Benchmark, NotExportable, lines, rank0_records
from pytest_flagperf.results.measured.outcome import Outcome, Target
from pytest_flagperf.results.store import CaseResult, Run
from pytest_flagperf.results.units import quantity
from pytest_flagperf.stored import FormatError, write, write_text
from pytest_flagperf.stored.layout import SYSTEM
from pytest_flagperf.stored.round import RoundDir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = Path(__file__).parent / "mllog_rules" / "training.yaml"
PARSER = "6.1.0"
"""The ruleset whose parser reads the files that only our rules check."""
UNKNOWN = "not recorded"
NOTE = "Exported by pytest-flagperf; unverified: this is not an MLPerf result."
_SIGNS = {"higher": ">=", "lower": "<="}
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Every one is asked for; those that a run knows are filled in.
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
    """What was written of one case, below the export's folder; ``ruleset`` is MLPerf's, where it has one."""

    case: str
    rules: Path
    ruleset: str | None
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Export:
    """``left_out``: one sentence for each round that is not an MLPerf run, and why."""

    cases: tuple[Exported, ...]
    left_out: tuple[str, ...]


def benchmark_of(model: str, suites: Path | None) -> Benchmark:
    """What the model's ``mlperf.toml`` says; a model without one goes by its own name and our rules alone."""
    path = suites / model / "mlperf.toml" if suites else None
    if path is None or not path.is_file():
        return Benchmark(model)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        counts = {key: dict(table.pop(key, {})) for key in ("train_samples", "eval_samples")}
        return Benchmark(table.pop("benchmark"), table.pop("ruleset", None), **counts, **table)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: does not say what MLPerf calls the model: {error}") from error


def rules(benchmark: Benchmark, target: Target) -> str:
    """The checks of a result file; the target is the suite's, never the log's."""
    sign = _SIGNS.get(target.direction)
    # The checker runs what stands here as code.
    if not _NAME.fullmatch(benchmark.name):
        raise NotExportable(f"{benchmark.name!r} is no name of a benchmark")
    if sign is None or target.value is None or not math.isfinite(target.value):
        raise NotExportable("it has no target")
    text = RULES.read_text(encoding="utf-8")
    return Template(text).substitute(benchmark=benchmark.name, sign=sign, target=repr(float(target.value)))


def export(run: Run, to: Path, *, suites: Path | None = None, org: str = "unverified") -> Export:
    """Write ``results/<system>/<benchmark>/result_<i>.txt``, ``systems`` and ``rules``; ``to`` must be new or empty."""
    if to.exists() and any(to.iterdir()):
        raise FormatError(f"{to}: is not empty; an export's folder holds the rounds of one run only")
    done: list[Exported] = []
    left_out: list[str] = []
    for case in run.cases:
        found = _export_case(run, case, to, benchmark_of(case.outcomes[0].model, suites), org, left_out)
        if found is not None:
            done.append(found)
    if done:
        write_text(to / "README.md", _readme(done))
    return Export(tuple(done), tuple(left_out))


def _export_case(
    run: Run, case: CaseResult, to: Path, benchmark: Benchmark, org: str, left_out: list[str]
) -> Exported | None:
    texts = []
    for outcome in case.outcomes:
        try:
            checks = rules(benchmark, outcome.target)
            texts.append(_text(run.directory / outcome.directory, outcome, benchmark, org))
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
    write(to / "systems" / f"{system}.json", _system(run, first, system, org))
    return Exported(case.case, rules_path, benchmark.ruleset, tuple(files))


def _text(round_dir: Path, outcome: Outcome, benchmark: Benchmark, org: str) -> str:
    plan = RoundDir(round_dir).read_plan()
    told = lines(outcome, plan, rank0_records(round_dir, outcome), benchmark, org)
    return "".join(f"{line}\n" for line in told)


def _system_name(outcome: Outcome, to: Path, benchmark: Benchmark) -> str:
    """One word; a second case of the same benchmark on the same system, in other rounds, gets a number."""
    name = f"{outcome.hardware}_{outcome.nnodes}x{outcome.nproc}_{outcome.framework}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")
    number, found = 1, name
    while (to / "results" / found / benchmark.name).exists():
        number += 1
        found = f"{name}_{number}"
    return found


def _system(run: Run, outcome: Outcome, name: str, org: str) -> dict[str, str]:
    """MLPerf's description of a system, in which every value is a text."""
    host = _host(run.directory / outcome.directory, outcome)
    known = {
        "submitter": org,
        "division": "open",
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
    """What the first host's sys_info.log says."""
    if not outcome.logs:
        return {}
    path = (round_dir / outcome.logs[0]).parent / SYSTEM
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(": ") for line in text.splitlines())
    return {key: value.strip() for key, mark, value in pairs if mark}


def _size(text: str | None) -> str | None:
    return quantity(int(text), "bytes") if text and text.isdecimal() else None


def _readme(cases: list[Exported]) -> str:
    """How to check it, for whoever is handed the folder."""
    told = ["# Result files in MLPerf's format", "", NOTE, "", "```bash", "pip install mlperf-logging"]
    checker = "python -m mlperf_logging.compliance_checker"
    for case in cases:
        files = f"{case.files[0].parent.as_posix()}/result_*.txt"
        told += ["", f"# {case.case}", f"for f in {files}; do"]
        told.append(f'  {checker} --ruleset {case.ruleset or PARSER} --config "$PWD/{case.rules.as_posix()}" "$f"')
        if case.ruleset:
            told.append(f'  {checker} --ruleset {case.ruleset} "$f"')
        told.append("done")
    return "\n".join([*told, "```", ""])
