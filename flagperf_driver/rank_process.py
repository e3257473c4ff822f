"""A rank's process: the record that the controller sends to a host, and what the host adds to its environment."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
RESERVED_VARIABLES = frozenset(
    [*_OF_A_RANK, "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "FLAGPERF_CASE", "FLAGPERF_LOG_DIR", "PYTHONPATH", "TMPDIR"],
)
"""Environment variables that a vendor cannot set: the host sets TMPDIR, and the controller the others."""
_NOT_INHERITED = ("PYTEST_", "COV_", "PYTHON", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE")
"""Beginnings of variables that a harness or a launcher above the agent set for itself."""
_OF_HOME = ("XDG_",)  # variables that name folders of the user's home


class RankProcess(NamedTuple):
    """One process to start on a host."""

    rank: int
    argv: Sequence[str]
    env: Mapping[str, str]  # in addition to what the host gives every rank
    cwd: str
    cpus: Sequence[int] = ()  # the cores that it is bound to; empty: all cores

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "argv": list(self.argv), "env": dict(self.env), "cpus": list(self.cpus)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], cwd: str) -> RankProcess:
        """Convert a received record; ``cwd`` is the folder of a rank without its own."""
        return cls(
            rank=int(body["rank"]),
            argv=[str(word) for word in body["argv"]],
            env={str(name): str(value) for name, value in body["env"].items()},
            cwd=str(body.get("cwd") or cwd),
            cpus=[int(cpu) for cpu in body.get("cpus") or ()],
        )

    def environment(self, of_agent: Mapping[str, str], of_round: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment; ``of_round``: the round's home and temporary folder on this host."""
        kept = {
            name: value
            for name, value in inherited(of_agent).items()
            if not name.startswith(_OF_HOME) and not ("CACHE" in name and value.startswith("/"))  # the user's caches
        }
        return {**kept, **self.env, **of_round}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the agent's environment that the round's processes inherit."""
    return {name: value for name, value in environment.items() if not name.startswith(_NOT_INHERITED)}


def threads_per_rank(cores: int, nproc: int, bound: Sequence[Sequence[int]] = ()) -> int:
    """Return how many threads each rank may use, so that all ranks of a host share its cores evenly.

    ``bound`` lists the cores that each rank is bound to; ranks that are bound to the same cores share these.
    """
    shares = [len(cpus) // sum(cpus == others for others in bound) for cpus in bound if cpus]
    return max(1, min([*shares, *([] if bound and all(bound) else [cores // nproc])]))
