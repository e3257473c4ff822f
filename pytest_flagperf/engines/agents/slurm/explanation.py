"""Why a job no longer runs as it was: one sentence with the job, the node and the reason."""

from __future__ import annotations

from collections.abc import Mapping

from .jobs_and_nodes import PENDING, RUNNING, Job, Node

_ENDS = {
    "CANCELLED": "was cancelled (scancel)",
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


def explain(before: Job, now: Job, nodes: Mapping[str, Node]) -> str | None:
    """Return why a job that ran does not run any more, or lacks a node; None if it runs on all its nodes."""
    where = f"job {now.number} on {', '.join(before.nodes)}"
    down = "; ".join(str(node) for node in nodes.values() if node.name in before.nodes and node.is_down)
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
