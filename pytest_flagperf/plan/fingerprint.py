"""What makes two figures comparable, as far as it is known before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from ..catalog import DataItem

SCHEMA = 1
# Where, how long and with what schedule one trains: different from shape to shape, no matter of speed.
NOT_COMPARED = frozenset([
    "vendor", "data_dir", "seed", "train_batch_size", "precision", "scaling", "min_efficiency",
    "shuffle_labels", "learning_rate", "max_steps", "max_epochs", "max_samples", "max_time_s", "parity_samples",
    "expected_time_s",
    "throughput_only", "throughput_steps", "timing_warmup_steps", "log_freq", "eval_batch_size",
    "eval_steps", "eval_start_steps", "eval_samples", "eval_at_start",
    "checkpoint_steps", "checkpoint_dir", "init_timeout_s", "hang_timeout_s", "round_timeout_s",
])  # fmt: skip
_SCHEDULE = "lr_"
_CARDS = ("nnodes", "nproc")


def fingerprint(
    facts: Mapping[str, object], config: Mapping[str, object], *, cards: int, scaling: str
) -> dict[str, object]:
    """The facts, the config as far as it weighs, the ``key`` of all that, and the key of one card of it."""
    batch = config["train_batch_size"]
    weighing = {key: value for key, value in config.items() if _weighs(key)}
    told = {
        "schema": SCHEMA,
        **facts,
        "precision": config["precision"],
        "batch_per_card": batch,
        "config": _digest(json.dumps(weighing, sort_keys=True).encode()),
    }
    alone = told | dict.fromkeys(_CARDS, 1) | {"batch_per_card": one_card_batch(batch, cards, scaling)}
    return {**told, "key": _key(told), "one_card_key": _key(alone)}


def one_card_batch(batch: object, cards: int, scaling: str) -> object:
    """Weak scaling keeps a card's batch; strong scaling gives the one card the batch of all."""
    return batch * cards if scaling == "strong" and isinstance(batch, int) else batch


def code_hash(*trees: Path) -> str:
    """Of every file below, by name and content; documents, compiled files, configs and reference curves are no code."""
    return _hash_files(tuple(_stamped(trees)))


def digest_of(manifest: Sequence[DataItem]) -> str | None:
    """Of what the data must hold, which was looked for before the start; None where none are read."""
    return _digest(json.dumps([asdict(item) for item in manifest], sort_keys=True).encode()) if manifest else None


def _stamped(trees: tuple[Path, ...]) -> Iterator[tuple[str, Path, int, int]]:
    for number, tree in enumerate(trees):
        files = sorted(tree.rglob("*")) if tree.is_dir() else [tree] if tree.is_file() else []
        for file in files:
            name = file.relative_to(tree)
            if file.is_file() and _is_code(name):
                stat = file.stat()
                yield f"{number}/{name.as_posix()}", file, stat.st_size, stat.st_mtime_ns


def _is_code(name: Path) -> bool:
    folders = {"__pycache__", "config", "reference"}
    return not folders.intersection(name.parts[:-1]) and name.suffix not in (".md", ".pyc")


@lru_cache(maxsize=512)
def _hash_files(files: tuple[tuple[str, Path, int, int], ...]) -> str:
    """Kept by names, sizes and times, so that a run of many cases reads each file once."""
    whole = hashlib.sha256()
    for name, file, *_ in files:
        whole.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _weighs(key: str) -> bool:
    return key not in NOT_COMPARED and not key.startswith(_SCHEDULE)


def _key(told: Mapping[str, object]) -> str:
    return _digest(json.dumps(told, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
