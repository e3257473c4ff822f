"""The fingerprint of a case: measurements with the same fingerprint are comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from flagperf_driver.training.parallel import DDP, Parallel

from ..catalog import DataItem

SCHEMA = 1
# Config keys for paths, duration and schedule: they differ between shapes and do not affect the speed.
NOT_COMPARED = frozenset([
    "vendor", "data_dir", "seed", "train_batch_size", "precision", "scaling", "min_efficiency",
    "shuffle_labels", "learning_rate", "max_steps", "max_epochs", "max_samples", "max_time_s", "parity_samples",
    "expected_time_s",
    "throughput_only", "throughput_steps", "profile_steps", "timing_warmup_steps", "log_freq", "eval_batch_size",
    "eval_steps", "eval_start_steps", "eval_samples", "eval_at_start", "stop_at_target",
    "checkpoint_steps", "failure_interval_s", "checkpoint_dir", "replica_check_steps",
    "init_timeout_s", "hang_timeout_s", "round_timeout_s",
])  # fmt: skip
_SCHEDULE = "lr_"
_CARDS = ("nnodes", "nproc")
_COMPUTED = ("schema", "precision", "batch_per_card", "config", "key", "one_card_key", "deviations")
"""The values that are computed from the config."""


def fingerprint(
    facts: Mapping[str, object], config: Mapping[str, object], *, cards: int, scaling: str
) -> dict[str, object]:
    """Return the facts, a hash of the compared config, the ``key`` of both, and the key of the one-card round."""
    batch, parallel = config.get("train_batch_size"), Parallel.of(config.get("parallel", DDP), cards)
    values = {
        "schema": SCHEMA,
        **facts,
        "precision": config["precision"],
        "batch_per_card": batch,
        "config": _config(config, parallel),
    }
    one_card = {
        **values,
        **dict.fromkeys(_CARDS, 1),
        "batch_per_card": one_card_batch(batch, parallel.data_ranks, scaling),
        "config": _config(config, Parallel()),
    }
    return {**values, "key": _key(values), "one_card_key": _key(one_card)}


def _config(config: Mapping[str, object], parallel: Parallel) -> str:
    """Return a hash of the compared values; of ``parallel`` the sizes count, not how they were written."""
    compared = {k: value for k, value in config.items() if k not in NOT_COMPARED and not k.startswith(_SCHEDULE)}
    if "parallel" in compared:
        compared["parallel"] = parallel.name
    return digest(json.dumps(compared, sort_keys=True).encode())


def of_one_card(whole: Mapping[str, object], config: Mapping[str, object], scaling: str) -> dict[str, object]:
    """Return the fingerprint of a case's one-card round, which has this config, from the fingerprint of the case."""
    facts = {name: value for name, value in whole.items() if name not in _COMPUTED} | dict.fromkeys(_CARDS, 1)
    return fingerprint(facts, config, cards=1, scaling=scaling)


def one_card_batch(batch: object, data_ranks: int, scaling: str) -> object:
    """Return the batch per card of the one-card round: the same with weak scaling, the sum with strong scaling."""
    return batch * data_ranks if scaling == "strong" and isinstance(batch, int) else batch


def code_hash(*trees: Path) -> str:
    """Hash the names and contents of the code; not documents, configs, tests and reference curves."""
    return _hash_files(tuple(_stamped(trees)))


def digest_of(manifest: Sequence[DataItem]) -> str | None:
    """Hash the list of required data files; None if the case reads no data."""
    return digest(json.dumps([asdict(item) for item in manifest], sort_keys=True).encode()) if manifest else None


def _stamped(trees: tuple[Path, ...]) -> Iterator[tuple[str, Path, int, int]]:
    for number, tree in enumerate(trees):
        files = sorted(tree.rglob("*")) if tree.is_dir() else [tree] if tree.is_file() else []
        for file in files:
            name = file.relative_to(tree)
            if file.is_file() and _is_code(name):
                stat = file.stat()
                yield f"{number}/{name.as_posix()}", file, stat.st_size, stat.st_mtime_ns


def _is_code(name: Path) -> bool:
    folders = {"__pycache__", "config", "reference", "tests"}
    return not folders.intersection(name.parts[:-1]) and name.suffix not in (".md", ".pyc")


@lru_cache(maxsize=512)
def _hash_files(files: tuple[tuple[str, Path, int, int], ...]) -> str:
    """Hash files; cached by names, sizes and times, so that a run of many cases reads each file once."""
    digest = hashlib.sha256()
    for name, file, *_ in files:
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _key(values: Mapping[str, object]) -> str:
    return digest(json.dumps(values, sort_keys=True).encode())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
