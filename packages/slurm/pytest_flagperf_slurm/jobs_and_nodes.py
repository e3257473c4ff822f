"""Slurm's commands: jobs and nodes as scontrol shows them, and why a job no longer runs as it was."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_flagperf.hosts import HostError
from pytest_flagperf.problems import Problems

COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "srun")
_ANSWER_S = 60.0
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
_DEAD = ("DOWN", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN", "INVAL")
_DRAINED = ("DRAIN", "DRAINED", "DRAINING", "MAINT", "RESERVED")
RUNNING, PENDING, CANCELLED = "RUNNING", "PENDING", "CANCELLED"
# A job in one of these states has its nodes, or still gives them back.
_ENDING = ("COMPLETING", "STOPPED", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT")


class SlurmError(HostError):
    """A command of Slurm failed; the message is its reason."""


@dataclass(frozen=True)
class Job:
    """A job as scontrol describes it."""

    number: str
    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: str = "0:0"
    time_limit: str = ""
    partition: str = ""
    submitted: str = ""
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by node: its GRES devices, if it has any

    @property
    def has_ended(self) -> bool:
        return self.state not in (RUNNING, PENDING, *_ENDING)


@dataclass(frozen=True)
class Node:
    """A node as scontrol describes it."""

    name: str
    address: str
    states: tuple[str, ...]  # the base state and its flags
    reason: str = ""

    @property
    def state(self) -> str:
        return "+".join(self.states)

    @property
    def is_down(self) -> bool:
        """Whether its jobs have ended; a node that only does not respond may come back."""
        return any(state.rstrip("*") in _DEAD for state in self.states)

    @property
    def is_drained(self) -> bool:
        return any(state in _DRAINED for state in self.states)

    def __str__(self) -> str:
        return f"{self.name} is {self.state}{f' ({self.reason})' if self.reason else ''}"


def environment() -> dict[str, str]:
    """Return the environment for Slurm's commands: without the variables of the job that this process runs in."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_"))
    }


def require_commands() -> None:
    """Raise Problems if Slurm's commands are not installed."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        raise Problems(
            [
                f"--cluster=slurm: {', '.join(missing)} not found on the PATH; run on a login node of the cluster, or"
                " install Slurm's client commands"
            ]
        )


def run(argv: Sequence[str], stdin: str = "", timeout_s: float = _ANSWER_S) -> str:
    """Return the output of a command; SlurmError with the command's own reason."""
    try:
        process = subprocess.Popen(
            list(argv),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C in a terminal does not end a command halfway
        )
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror or error}") from error
    with process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as late:
            process.kill()
            _, err = process.communicate()
            reason = _reason(err) or f"no answer from Slurm within {timeout_s:g} s; is slurmctld running?"
            raise SlurmError(f"{argv[0]}: {reason}") from late
        except BaseException:
            # The command may have created a job: its caller looks for it by its name.
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            raise
    if process.returncode:
        raise SlurmError(f"{argv[0]}: {_reason(err) or _reason(out) or f'exit code {process.returncode}'}")
    return out


def _reason(text: str) -> str:
    """Return the messages of a command without the names of the command and the level."""
    lines = [re.sub(r"^(\w+: )?((error|fatal): )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


# -- jobs ------------------------------------------------------------------------------------------------------


def read_job(number: str) -> Job:
    """Return a job; SlurmError if Slurm does not know it (any more)."""
    text = run(["scontrol", "--details", "--oneliner", "show", "job", number])
    return parse_job(text.splitlines()[0] if text else "")


def parse_job(line: str) -> Job:
    """Return the job that a line of ``scontrol --details --oneliner show job`` describes."""
    values: dict[str, str] = dict(re.findall(r"(\S+?)=(\S*)", line))
    if "JobId" not in values or "JobState" not in values:
        raise SlurmError(f"scontrol: unexpected description of a job: {line[:200]!r}")
    nodes = values.get("NodeList", "")
    return Job(
        number=values["JobId"],
        state=values["JobState"],
        reason="" if values.get("Reason") in (None, "None") else values["Reason"],
        nodes=() if nodes in ("", "(null)") else expand(nodes),
        restarts=int(values.get("Restarts", "0")),
        exit_code=values.get("ExitCode", "0:0"),
        time_limit=values.get("TimeLimit", ""),
        partition=values.get("Partition", ""),
        submitted=values.get("SubmitTime", ""),
        devices=dict(_devices(line)),
    )


def _devices(line: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the devices of each node, from text such as ``Nodes=h[1-2] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)``."""
    for names, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line):
        indexes = [index for text in re.findall(r"\(IDX:([\d,-]*)\)", gres) for index in _numbers(text)]
        if gres:
            for name in expand(names):
                yield name, tuple(sorted(indexes))


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def expand(names: str) -> tuple[str, ...]:
    """Return the nodes of a list such as ``h[1-3,7]``."""
    if not re.search(r"[\[,]", names):
        return (names,)
    return tuple(run(["scontrol", "show", "hostnames", names]).split())


def cancel(number: str) -> None:
    """Cancel a job; a job that has ended is not an error."""
    with suppress(SlurmError):
        run(["scancel", "--quiet", number])


def cancel_by_name(name: str) -> None:
    with suppress(SlurmError):
        run(["scancel", "--quiet", f"--jobname={name}"])


# -- nodes -----------------------------------------------------------------------------------------------------


def read_nodes(names: Sequence[str] = ()) -> dict[str, Node]:
    """Return these nodes, by default all, by their names."""
    text = run(["scontrol", "--oneliner", "show", "node", *([",".join(names)] if names else [])])
    nodes = [parse_node(line) for line in text.splitlines() if line.strip()]
    return {node.name: node for node in nodes}


def parse_node(line: str) -> Node:
    """Return the node that a line of ``scontrol --oneliner show node`` describes."""
    values: dict[str, str] = dict(re.findall(r"(\S+?)=(\S*)", line))
    if "NodeName" not in values:
        raise SlurmError(f"scontrol: unexpected description of a node: {line[:200]!r}")
    reason = re.search(r"\sReason=(.*?)(?:\s+\[[^\]]*\])?\s*$", line)
    return Node(
        values["NodeName"],
        values.get("NodeAddr", values["NodeName"]),
        tuple(values.get("State", "UNKNOWN").split("+")),
        reason[1].strip() if reason else "",
    )


def read_partitions() -> tuple[str, ...]:
    """Return the names of the partitions that this user may use."""
    return tuple(dict.fromkeys(run(["sinfo", "--noheader", "--format=%R"]).split()))


_ENDS = {
    CANCELLED: "was cancelled (scancel)",
    "TIMEOUT": "reached its time limit of {limit}",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "ended because a node went down",
    "BOOT_FAIL": "ended because a node did not boot",
    "REVOKED": "was revoked",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "REQUEUED": "was requeued",
    "REQUEUE_HOLD": "was requeued and is held",
    "SPECIAL_EXIT": "was requeued in a special state",
    "COMPLETED": "has ended",
    "FAILED": "has ended with exit code {code}",
    "COMPLETING": "is ending",
}

# While Slurm ends the processes of a job, only the reason shows why.
_STATE_OF_REASON = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}


def end_of(job: Job) -> str:
    """Return the state in which a job ended or will end; COMPLETING if that does not show yet."""
    return _STATE_OF_REASON.get(job.reason, job.state) if job.state == "COMPLETING" else job.state


def lost_nodes(before: Job, now: Job, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Return those of the nodes that a job has lost. Slurm takes a node that was down from a job with ``--no-kill``."""
    taken = set(before.nodes).difference(now.nodes) if now.state == RUNNING and now.nodes else set()
    return tuple(name for name in before.nodes if name in nodes and (nodes[name].is_down or name in taken))


def explain(before: Job, now: Job, nodes: Mapping[str, Node]) -> str | None:
    """Return why a job that ran does not run any more, or lacks a node; None if it runs on all its nodes."""
    where = f"job {now.number} on {', '.join(before.nodes)}"
    down = "; ".join(str(nodes[name]) for name in lost_nodes(before, now, nodes))
    if now.restarts > before.restarts:
        return f"{where} was requeued: restart {now.restarts}, now {now.state}{_because(now)}"
    if now.state == RUNNING:
        return f"{where} lost a node: {down}" if down else None
    if now.state == PENDING:
        return f"{where} is pending again{_because(now)}"
    end = _ENDS.get(end_of(now), f"is {now.state}").format(limit=now.time_limit, code=now.exit_code)
    return f"{where} {end}{f': {down}' if down else _because(now)}"


def _because(job: Job) -> str:
    return f" ({job.reason})" if job.reason and job.reason not in ("NonZeroExitCode", *_STATE_OF_REASON) else ""
