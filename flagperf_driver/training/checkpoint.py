"""Checkpoints, from which an interrupted training continues: all ranks write them while they train."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Callable

from flagperf_driver import events
from flagperf_driver.driver import Rank
from flagperf_driver.training.parallel import DDP, Parallel
from flagperf_driver.training.saved_states import SavedStates
from flagperf_driver.training.trainer import Trainer

SCHEMA = 4
TRAINING = "training.json"
_COMPLETE = re.compile(r"step(\d+)")


class CheckpointError(RuntimeError):
    """An error for a training that cannot write its checkpoint or continue from it."""


class Checkpoints:
    """The checkpoints of one round: the last complete one, and the next one while a thread of each rank writes it.

    A checkpoint is a folder ``stepN``, named ``stepN.begun`` until all ranks have written their parts. Then the earlier
    one is removed: a training that is killed loses no more than the checkpoint that it was writing.
    """

    def __init__(self, rank: Rank, trainer: Trainer, *, enabled: bool) -> None:
        self.pauses: list[float] = []
        """How long each checkpoint of this process stopped the training."""
        self.write_times: list[float] = []
        """How long each took to write, while the training continued."""
        self._rank, self._trainer = rank, trainer
        self.enabled = enabled and bool(rank.config.checkpoint_dir)
        self._folder = _folder(rank.config.checkpoint_dir, rank.case.case, rank.case.round) if self.enabled else None
        self._writing: _Writing | None = None

    def save(self, progress: dict[str, Any], evaluation: dict[str, Any], states: SavedStates | None = None) -> None:
        """Copy the state and begin to write it, as a checkpoint or for the replay; every rank must call this method."""
        folder = states.folder if states else self._folder
        assert folder is not None, "the plan has no checkpoints without a folder"
        start = time.perf_counter()
        self.wait()
        body = {
            "schema": SCHEMA, "identity": _identity(self._rank), "ranks": self._rank.world.world_size,
            "progress": progress, "evaluation": evaluation,
        }  # fmt: skip
        complete = folder / f"step{progress['step']}"
        begun = complete.with_name(f"{complete.name}.begun")
        needless = states.add(progress["step"]) if states else []
        if self._rank.world.rank == 0:
            if not states:
                self._check_owner()
            begun.mkdir(parents=True)
        write = self._trainer.copy_state()

        def write_all() -> int:
            write(begun)
            if self._rank.world.rank:
                return 0
            _write_synchronized(begun / TRAINING, json.dumps(body))
            _synchronize(begun)
            size = sum(path.stat().st_size for path in begun.iterdir())
            if not states:
                self._check_owner()
            begun.rename(complete)
            _synchronize(complete.parent)
            if not states:
                _remove_others(complete, complete.parent)
            for path in needless:
                shutil.rmtree(path)
            return size

        self.pauses.append(time.perf_counter() - start)
        self._writing = _Writing(progress["step"], write_all, events.STATE if states else events.CHECKPOINT)

    def wait(self, *, only_if_complete: bool = False) -> None:
        """Wait until the last checkpoint is complete, and log it; raise an error if it could not be written."""
        if self._writing is None or (only_if_complete and self.is_writing):
            return
        writing, self._writing = self._writing, None
        size, seconds = writing.end()
        self.write_times.append(seconds)
        if self._rank.world.rank == 0:
            cost = {"pause": self.pauses[-1], "write_time": seconds, "bytes": size}
            self._rank.log(writing.event, {"step": writing.step, **cost})

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and self._writing.goes_on

    def load(self, *, any_ranks: bool) -> tuple[dict[str, Any], dict[str, Any], int] | None:
        """Restore the trainer from the last complete checkpoint; return what ``save`` got, and on how many ranks.

        None without a checkpoint. With ``any_ranks`` another number of ranks continues with the same samples.
        """
        if self._folder is None:
            return None
        last = self._last_on_all_ranks(self._folder)
        if last is None:
            self._take_over(None)
            return None
        body = _read(last)
        _check(last, body, self._rank, any_ranks=any_ranks)
        self._take_over(last)
        self._trainer.load_state(last)
        return body["progress"], body["evaluation"], body["ranks"]

    def finish(self) -> None:
        """Rename the folder of a finished training, so that the next training starts from the beginning."""
        if self._folder is not None and self._rank.world.rank == 0:
            self._check_owner()
            if self._folder.exists():
                finished = _finished(self._folder)
                shutil.rmtree(finished, ignore_errors=True)
                self._folder.replace(finished)
            _owner(self._folder).unlink()

    def _take_over(self, last: Path | None) -> None:
        """Remove what an earlier start began, once it is clear that the folder is of this training; keep it out.

        The ranks of an earlier start may still run on a host that did not answer for a while.
        """
        if self._folder is not None and self._rank.world.rank == 0:
            _remove_others(last, self._folder)
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            _write_synchronized(_owner(self._folder), self._rank.case.token)

    def _check_owner(self) -> None:
        assert self._folder is not None
        file = _owner(self._folder)
        if not file.exists() or file.read_text(encoding="utf-8") != self._rank.case.token:
            raise CheckpointError(f"{file} is of a later start, which continues this training; this one must end")

    def _last_on_all_ranks(self, folder: Path) -> Path | None:
        """Return the last complete checkpoint, which all ranks must see."""
        steps = [int(match[1]) for path in folder.glob("*") if (match := _COMPLETE.fullmatch(path.name))]
        seen = self._trainer.gather(max(steps, default=0))
        if len(set(seen)) > 1:
            last = folder / f"step{max(seen)}"
            missing = ", ".join(str(rank) for rank, step in enumerate(seen) if step != max(seen))
            raise CheckpointError(f"{last} not found on rank(s) {missing}; checkpoint_dir must be shared by all hosts")
        return folder / f"step{seen[0]}" if seen[0] else None


class _Writing:
    """A checkpoint that a thread writes."""

    def __init__(self, step: int, write: Callable[[], int], event: str) -> None:
        self.step, self.event = step, event
        self._write, self._size, self._seconds = write, 0, 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.perf_counter()
        try:
            self._size = self._write()
        except BaseException as error:
            self._error = error
        self._seconds = time.perf_counter() - begin

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> tuple[int, float]:
        """Wait for the thread and return how many bytes it wrote, and how long."""
        self._thread.join()
        if self._error is not None:
            raise CheckpointError(f"the checkpoint could not be written: {self._error}") from self._error
        return self._size, self._seconds


def stored_checkpoint(checkpoint_dir: str, case: str, number: int) -> tuple[Path, dict[str, Any]]:
    """Return the last complete checkpoint of a round of a case, also of one that has ended, and its record."""
    folder = _folder(checkpoint_dir, case, number)
    paths = (path for place in (folder, _finished(folder)) for path in place.glob("step*"))
    last = max(
        (path for path in paths if _COMPLETE.fullmatch(path.name)), key=lambda one: int(one.name[4:]), default=None
    )
    if last is None:
        raise CheckpointError(f"{folder}: no checkpoint; a training writes one when it reaches its target")
    return last, _read(last)


def _folder(checkpoint_dir: str, case: str, number: int) -> Path:
    """Return the folder of the checkpoints of a round."""
    return Path(checkpoint_dir) / f"{case.replace(':', '_')}_round{number}"


def _finished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.finished")


def _read(checkpoint: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads((checkpoint / TRAINING).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint / TRAINING}: cannot be read: {error}; remove {checkpoint}") from error
    return body


def _owner(folder: Path) -> Path:
    """Return the file with the token of the start that may save."""
    return folder.with_name(f"{folder.name}.owner")


def _remove_others(complete: Path | None, folder: Path) -> None:
    """Remove the earlier checkpoints, and those of which a part is missing."""
    for path in folder.glob("step*"):
        if path != complete:
            shutil.rmtree(path)


def _write_synchronized(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _synchronize(folder: Path) -> None:
    """Let the names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _identity(rank: Rank) -> dict[str, Any]:
    """Return what stays the same from start to start; the number of ranks may change."""
    config = rank.config
    parallel = Parallel.of(getattr(config, "parallel", DDP), rank.world.world_size)
    return {
        "training": rank.case.training,
        "case": rank.case.case,
        "scale": rank.case.scale,
        "seed": rank.case.seed,
        "samples of a step": config.train_batch_size * config.gradient_accumulation_steps * parallel.data_ranks,
        "optimizer": config.optimizer,
    }


def _check(target: Path, body: dict[str, Any], rank: Rank, *, any_ranks: bool) -> None:
    if body.get("schema") != SCHEMA:
        raise CheckpointError(f"{target}: schema is {body.get('schema')!r}; expected {SCHEMA}")
    expected, stored = _identity(rank), body["identity"]
    differences = [
        f"{key} is {stored.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if stored.get(key) != value
    ]
    if differences:
        raise CheckpointError(
            f"{target} belongs to another training: {'; '.join(differences)}. Remove it or set another"
            " checkpoint_dir; to continue an interrupted training, pass its run with --resume"
        )
    if body["ranks"] != rank.world.world_size and not any_ranks:
        raise CheckpointError(
            f"{target} was written on {body['ranks']} ranks; expected {rank.world.world_size}, because the order of"
            " this suite's samples depends on the number of ranks"
        )
