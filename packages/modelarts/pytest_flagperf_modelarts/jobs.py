"""Training jobs of ModelArts: one interface, and its two versions."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.replies import ANYTHING, COUNT, TEXT, Maybe, Shape

from .config import ModelArtsConfig
from .obs_path import ObsFolder
from .rest import Ambiguous, Rest, RestError

DATA, OUTPUT = "data_url", "train_url"
"""The names of a job's input and output, which are parameters of the boot file."""
_STAMP = re.compile(r"\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d(-[0-9a-f]{4})?")
_LISTED = 50


@dataclass(frozen=True)
class TrainingJobRequest:
    """A job to submit."""

    name: str
    code: ObsFolder
    boot_file: str  # below the code folder
    output: ObsFolder
    log: ObsFolder
    instances: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    hours: int | None = None  # the service stops the job after this time


@dataclass(frozen=True)
class TrainingJob:
    """A submitted job."""

    id: str
    name: str
    version: str = ""  # of interface v1: one job has several versions
    resource: str = ""  # of interface v1: the beginning of its logs' names


@dataclass(frozen=True)
class TrainingJobState:
    """The state of a job, as the service names it."""

    phase: str
    ended: bool = False
    succeeded: bool = False
    stoppable: bool = True
    reason: str = ""


class Jobs(Protocol):
    """The jobs of a project."""

    def check(self) -> None:
        """Raise HostError if the service does not accept requests."""

    def submit(self, request: TrainingJobRequest) -> TrainingJob:
        """Submit a job once."""

    def state(self, job: TrainingJob) -> TrainingJobState: ...

    def stop(self, job: TrainingJob) -> bool:
        """Request the end of a job; return True if the service accepted the request."""

    def newest(self, name: str) -> tuple[TrainingJob, TrainingJobState] | None:
        """Return the job that was submitted last under a name of the settings; None without such a job."""

    def log_name(self, job: TrainingJob, instance: int) -> str:
        """Return the name of an instance's log in the log folder."""


def open_jobs(config: ModelArtsConfig, rest: Rest) -> Jobs:
    """Return the jobs of the project by the version that the settings name."""
    return JobsV2(config, rest) if config.version == "v2" else JobsV1(config, rest)


def new_name(config: ModelArtsConfig) -> str:
    """Return a name for a job that no other job has."""
    return f"{config.job_name}{time.strftime('%Y_%m_%d-%H_%M_%S')}-{secrets.token_hex(2)}"


def local_log(job: TrainingJob, name: str, instance: int) -> str:
    """Return the name of an instance's log on this machine."""
    return f"job{(job.resource or job.id).removeprefix('job')}-job-{name}-{instance}.log"


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in (None, "", {})}


# -- version 2 -------------------------------------------------------------------------------------------------

_V2_JOB: Shape = {"metadata": {"id": TEXT, "name": TEXT}, "status": {"phase": TEXT}}
_V2_ENDED = ("Completed", "Failed", "Abnormal", "Terminated")
_V2_STOPPABLE = ("Creating", "Pending", "Running")


class JobsV2:
    """Interface v2: each job has a name of its own."""

    def __init__(self, config: ModelArtsConfig, rest: Rest) -> None:
        self._config = config
        self._rest = rest
        self._base = f"/v2/{rest.project}"

    def check(self) -> None:
        self._search(self._config.job_name)

    def submit(self, request: TrainingJobRequest) -> TrainingJob:
        try:
            answer = self._rest.post(f"{self._base}/training-jobs", self._body(request), {"metadata": {"id": TEXT}})
        except Ambiguous:
            for entry in self._search(request.name):
                if entry["metadata"]["name"] == request.name:
                    return TrainingJob(entry["metadata"]["id"], request.name)
            raise
        return TrainingJob(answer["metadata"]["id"], request.name)

    def _body(self, request: TrainingJobRequest) -> dict[str, Any]:
        conf = self._config
        engine = {"image_url": conf.image} if conf.image else {}
        engine |= _without_none({"engine_name": conf.framework, "engine_version": conf.framework_version})
        parameters = [{"name": name, "value": value} for name, value in request.parameters.items()]
        inputs = [{"name": DATA, "remote": {"obs": {"obs_url": conf.data.path}}}] if conf.data else []
        resource = _without_none({"flavor_id": conf.flavor, "pool_id": conf.pool, "node_count": request.instances})
        return {
            "kind": "job",
            "metadata": _without_none({"name": request.name, "description": conf.description}),
            "algorithm": _without_none(
                {
                    "code_dir": request.code.path,
                    "boot_file": request.code.path + request.boot_file,
                    "parameters": parameters,
                    "inputs": inputs,
                    "outputs": [{"name": OUTPUT, "remote": {"obs": {"obs_url": request.output.path}}}],
                    "engine": engine,
                    "environments": dict(conf.environment),
                }
            ),
            "spec": _without_none(
                {
                    "resource": resource,
                    "log_export_path": {"obs_url": request.log.path},
                    "auto_stop": {"time_unit": "HOURS", "duration": request.hours} if request.hours else None,
                }
            ),
        }

    def state(self, job: TrainingJob) -> TrainingJobState:
        answer = self._rest.get(f"{self._base}/training-jobs/{job.id}", _V2_JOB)
        return _v2_state(answer["status"])

    def stop(self, job: TrainingJob) -> bool:
        self._rest.post(f"{self._base}/training-jobs/{job.id}/actions", {"action_type": "terminate"}, {})
        return True

    def newest(self, name: str) -> tuple[TrainingJob, TrainingJobState] | None:
        for entry in self._search(name):
            full = entry["metadata"]["name"]
            if full.startswith(name) and _STAMP.fullmatch(full.removeprefix(name)):
                return TrainingJob(entry["metadata"]["id"], full), _v2_state(entry["status"])
        return None

    def _search(self, name: str) -> list[dict[str, Any]]:
        """Return the jobs whose name contains ``name``, the newest first."""
        body = {
            "offset": 0,
            "limit": _LISTED,
            "sort_by": "create_time",
            "order": "desc",
            "filters": [{"key": "name", "operator": "like", "value": [name]}],
        }
        answer = self._rest.post(f"{self._base}/training-job-searches", body, {"total": COUNT, "items?": [_V2_JOB]})
        items: list[dict[str, Any]] = answer.get("items", [])
        return items

    def log_name(self, job: TrainingJob, instance: int) -> str:
        return f"modelarts-job-{job.id}-worker-{instance}.log"


def _v2_state(status: Mapping[str, Any]) -> TrainingJobState:
    phase = status["phase"]
    tasks = [task for task in status.get("task_statuses") or () if isinstance(task, dict)]
    failed = [task for task in tasks if task.get("exit_code") not in (0, None)]
    reasons = [f"{task.get('task')}: exit code {task.get('exit_code')}{_colon(task.get('message'))}" for task in failed]
    ended = phase in _V2_ENDED
    return TrainingJobState(phase, ended, phase == "Completed", phase in _V2_STOPPABLE, "; ".join(reasons)[:500])


def _colon(message: object) -> str:
    return f": {message}" if message else ""


# -- version 1 -------------------------------------------------------------------------------------------------

_V1_STATUSES = (
    "UNKNOWN", "INIT", "IMAGE_CREATING", "IMAGE_FAILED", "SUBMIT_TRYING", "SUBMIT_FAILED", "DELETE_FAILED", "WAITING",
    "RUNNING", "KILLING", "COMPLETED", "FAILED", "KILLED", "CANCELED", "LOST", "SCALING", "SUBMIT_MODEL_FAILED",
    "DEPLOY_SERVICE_FAILED", "CHECK_INIT", "CHECK_RUNNING", "CHECK_RUNNING_COMPLETED", "CHECK_FAILED", "MOUNT_FAILED",
)  # fmt: skip
_V1_FAILED = (3, 5, 6, 11, 12, 13, 14, 16, 17, 21, 22)
_V1_SUCCEEDED = 10
_V1_STOPPABLE = (1, 2, 4, 7, 8)
_V1_SUBMITTED: Shape = {"job_id": ANYTHING, "version_id": ANYTHING, "resource_id?": Maybe(TEXT)}
_V1_VERSION: Shape = {"status": COUNT}
_V1_LISTED: Shape = {"job_id": ANYTHING, "job_name": TEXT, "version_id": ANYTHING, "status": COUNT}


class JobsV1:
    """Interface v1: one job with a version for each submission."""

    def __init__(self, config: ModelArtsConfig, rest: Rest) -> None:
        self._config = config
        self._rest = rest
        self._base = f"/v1/{rest.project}"

    def check(self) -> None:
        self._list()

    def submit(self, request: TrainingJobRequest) -> TrainingJob:
        name, existing = self._config.job_name, self._listed(self._config.job_name)
        body: dict[str, Any] = {"job_desc": self._config.description, "config": self._settings(request)}
        if existing is None:
            answer = self._rest.post(f"{self._base}/training-jobs", {"job_name": name, **body}, _V1_SUBMITTED)
        else:
            body["config"]["pre_version_id"] = existing["version_id"]
            path = f"{self._base}/training-jobs/{existing['job_id']}/versions"
            answer = self._rest.post(path, body, _V1_SUBMITTED)
        job = TrainingJob(str(answer["job_id"]), name, str(answer["version_id"]), answer.get("resource_id") or "")
        return job if job.resource else self._with_resource(job)

    def _with_resource(self, job: TrainingJob) -> TrainingJob:
        details = self._details(job)
        return TrainingJob(job.id, job.name, job.version, str(details.get("resource_id") or f"job{job.id}"))

    def _settings(self, request: TrainingJobRequest) -> dict[str, Any]:
        conf = self._config
        engines = self._rest.get(f"{self._base}/job/ai-engines?job_type=train", {"engines": [{"engine_id": ANYTHING}]})
        engine = next(
            (
                entry
                for entry in engines["engines"]
                if (entry.get("engine_name"), entry.get("engine_version")) == (conf.framework, conf.framework_version)
            ),
            None,
        )
        if engine is None:
            raise HostError(
                f"ModelArts has no engine {conf.framework} {conf.framework_version}; check framework_version"
            )
        parameters = [{"label": name, "value": value} for name, value in request.parameters.items()]
        return _without_none(
            {
                "worker_server_num": request.instances,
                "app_url": request.code.path,
                "boot_file_url": request.code.path + request.boot_file,
                "parameter": parameters,
                "data_url": conf.data.path if conf.data else None,
                "train_url": request.output.path,
                "log_url": request.log.path,
                "engine_id": engine["engine_id"],
                "spec_id": self._spec_id() if conf.flavor else None,
                "pool_id": conf.pool,
            }
        )

    def _spec_id(self) -> Any:
        flavor = self._config.flavor
        path = f"{self._base}/job/resource-specs?job_type=train"
        specs = self._rest.get(path, {"specs": [{"spec_id": ANYTHING, "spec_code": TEXT}]})["specs"]
        found = next((entry["spec_id"] for entry in specs if entry["spec_code"] == flavor), None)
        if found is None:
            names = ", ".join(entry["spec_code"] for entry in specs)
            raise HostError(f"ModelArts has no flavor {flavor}; it has {names}")
        return found

    def state(self, job: TrainingJob) -> TrainingJobState:
        return _v1_state(self._details(job)["status"])

    def _details(self, job: TrainingJob) -> dict[str, Any]:
        return self._rest.get(f"{self._base}/training-jobs/{job.id}/versions/{job.version}", _V1_VERSION)

    def stop(self, job: TrainingJob) -> bool:
        path = f"{self._base}/training-jobs/{job.id}/versions/{job.version}/stop"
        self._rest.post(path, None, {"is_success": ANYTHING})
        return True

    def newest(self, name: str) -> tuple[TrainingJob, TrainingJobState] | None:
        entry = self._listed(name)
        if entry is None:
            return None
        job = TrainingJob(str(entry["job_id"]), name, str(entry["version_id"]))
        return job, _v1_state(entry["status"])

    def _listed(self, name: str) -> dict[str, Any] | None:
        """Return the job of exactly this name with its newest version."""
        matches = [entry for entry in self._list(name) if entry["job_name"] == name]
        return matches[0] if matches else None

    def _list(self, name: str = "") -> list[dict[str, Any]]:
        path = (
            f"{self._base}/training-jobs?order=desc&page=1&per_page={_LISTED}&search_content={name}&sortBy=create_time"
        )
        jobs: list[dict[str, Any]] = self._rest.get(path, {"jobs": [_V1_LISTED]})["jobs"]
        return jobs

    def log_name(self, job: TrainingJob, instance: int) -> str:
        return f"{job.resource}-job-{job.name}-{instance}.log"


def _v1_state(number: int) -> TrainingJobState:
    name = _V1_STATUSES[number] if number < len(_V1_STATUSES) else f"UNKNOWN ({number})"
    ended = number in _V1_FAILED or number == _V1_SUCCEEDED
    return TrainingJobState(f"JOBSTAT_{name}", ended, number == _V1_SUCCEEDED, number in _V1_STOPPABLE)


# -- both versions ---------------------------------------------------------------------------------------------


def find_project(config: ModelArtsConfig, iam: Rest) -> str:
    """Return the id of the region's project, which the identity service knows."""
    shape: Shape = {"projects": [{"id": TEXT, "name": TEXT}]}
    projects = iam.get(f"/v3/projects?name={config.region}", shape)["projects"]
    if len(projects) != 1:
        raise HostError(
            f"the account has {len(projects)} projects of region {config.region}; set project in [engines.modelarts]"
        )
    return str(projects[0]["id"])


def stop_newest(jobs: Jobs, name: str) -> str:
    """Stop the newest job with a name of the settings, unless it has ended; return a line with its id and state."""
    found = jobs.newest(name)
    if found is None:
        return f"jobname:{name}: no job of this name"
    job, state = found
    version = f" preversionid:{job.version}" if job.version else ""
    line = f"jobname:{job.name} jobid:{job.id}{version} jobstatus:{state.phase}"
    if not state.stoppable:
        return f"{line} not stopped: the job {'has ended' if state.ended else 'is ending'} already"
    try:
        return f"{line} stop status:{{'is_success': {jobs.stop(job)}}}"
    except RestError as error:
        return f"{line} stop status:{{'is_success': False}}: {error}"
