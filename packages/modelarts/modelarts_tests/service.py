"""A double of ModelArts on this machine: the REST interface with checked signatures, and jobs that run for real.

Its answers have the form of the models in Huawei's Python SDK (v2) and of the API reference (v1). A job's instances are
processes that run the boot file with the code, data and output folders that a real instance has; a thread copies
their output and logs to OBS, which is moto's S3 server.
"""

import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import boto3

from modelarts_tests.image.moxing import copy

ACCESS, SECRET, PROJECT = "AKTESTKEY0000000001", "SecretOfTheTestAccount0123456789abcdefgh", "0123456789abcdef"
_LOG_S = 0.1
_V2_PHASES = {"running": "Running", "completed": "Completed", "failed": "Failed", "stopped": "Terminated"}
_V1_STATUSES = {"running": 8, "completed": 10, "failed": 11, "stopped": 12}


@dataclass
class Faults:
    silent: bool = False  # no answer to any request: the connection is closed
    answers: list[tuple[int, bytes]] = field(default_factory=list)  # the next answers, instead of the real ones
    fail_start: str = ""  # every job fails before its instances run, with this reason
    cut_create: bool = False  # the next job is created, and its answer is lost
    no_output: bool = False  # jobs leave nothing in their output folder
    hold: bool = False  # jobs wait for resources


@dataclass
class RunningJob:
    id: str
    name: str
    code: str
    boot_file: str
    data: str
    output: str
    log: str
    count: int
    parameters: Mapping[str, str]
    environment: Mapping[str, str]
    body: Mapping[str, Any]
    version: str = ""
    state: str = "waiting"
    reason: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stop_requested: bool = False
    created: float = field(default_factory=time.time)

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "stopped")


class ModelArts:
    """The service: ``url`` is its endpoint, ``jobs`` are all jobs in the order of their creation."""

    def __init__(self, obs_url: str, folder: Path, version: str = "v2", per_card: int = 1) -> None:
        self.jobs: list[RunningJob] = []
        self.requests: list[str] = []
        self.faults = Faults()
        self.version = version
        self.per_card = per_card  # how often each instance starts the boot file
        self._folder = folder
        self.obs_url = obs_url
        self.s3 = boto3.client(
            "s3", endpoint_url=obs_url, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )  # fmt: skip
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for job in self.jobs:
            self.kill(job)

    def kill(self, job: RunningJob) -> None:
        for process in job.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    # -- requests ------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        self.requests.append(f"{method} {target}")
        if problem := wrong_signature(method, target, headers, body):
            return 401, {"error_code": "APIGW.0301", "error_msg": f"incorrect signature: {problem}"}
        path = urlsplit(target).path
        table = json.loads(body) if body else {}
        if path == "/v3/projects":
            return 200, {"projects": [{"id": PROJECT, "name": dict(parse_qsl(urlsplit(target).query))["name"]}]}
        prefix = f"/{self.version}/{PROJECT}/"
        if not path.startswith(prefix):
            return 404, {"error_code": "APIGW.0101", "error_msg": "The API does not exist"}
        route = self._v2 if self.version == "v2" else self._v1
        return route(method, path.removeprefix(prefix), table, dict(parse_qsl(urlsplit(target).query)))

    def _v2(self, method: str, path: str, body: Mapping[str, Any], query: Mapping[str, str]) -> tuple[int, Any]:
        if (method, path) == ("POST", "training-jobs"):
            return self._create_v2(body)
        if (method, path) == ("POST", "training-job-searches"):
            (text,) = body["filters"][0]["value"]
            found = [self._v2_answer(job) for job in reversed(self.jobs) if text in job.name]
            return 200, {"total": len(found), "count": len(found), "limit": 50, "offset": 0, "items": found}
        match = re.fullmatch(r"training-jobs/([^/]+)(/actions)?", path)
        job = next((job for job in self.jobs if match and job.id == match[1]), None)
        if job is None:
            return 400, {"error_code": "ModelArts.2775", "error_msg": "TrainingJobNotFound"}
        if match is not None and match[2]:
            assert body == {"action_type": "terminate"}
            if job.ended:
                return 400, {"error_code": "ModelArts.2812", "error_msg": "the job has ended"}
            self.stop(job)
            return 202, self._v2_answer(job)
        return 200, self._v2_answer(job)

    def _create_v2(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        algorithm, spec = body["algorithm"], body["spec"]
        name = body["metadata"]["name"]
        output, resource = algorithm["outputs"][0]["remote"]["obs"]["obs_url"], spec["resource"]
        # What ModelArts would refuse.
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
        assert name not in [job.name for job in self.jobs]
        assert output.endswith("/")
        assert ("flavor_id" in resource) != ("pool_id" in resource)
        inputs = algorithm.get("inputs") or []
        job = RunningJob(
            str(uuid.uuid4()),
            name,
            algorithm["code_dir"],
            algorithm["boot_file"],
            inputs[0]["remote"]["obs"]["obs_url"] if inputs else "",
            output,
            spec["log_export_path"]["obs_url"],
            resource["node_count"],
            {entry["name"]: entry["value"] for entry in algorithm["parameters"]},
            algorithm.get("environments") or {},
            body,
        )
        self._start(job)
        return 201, self._v2_answer(job)

    def _v2_answer(self, job: RunningJob) -> dict[str, Any]:
        phase = {"waiting": "Pending"}.get(job.state) or _V2_PHASES[job.state]
        if job.stop_requested and not job.ended:
            phase = "Terminating"
        tasks = [
            {"task": f"worker-{number}", "exit_code": process.poll(), "message": ""}
            for number, process in enumerate(job.processes[:: self.per_card])
        ]
        if job.reason:
            tasks = [{"task": "worker-0", "exit_code": 1, "message": job.reason}]
        return {
            "kind": "job",
            "metadata": {"id": job.id, "name": job.name, "create_time": int(job.created * 1000)},
            "status": {"phase": phase, "secondary_phase": phase, "duration": 0, "task_statuses": tasks},
            "spec": job.body["spec"],
        }

    def _v1(self, method: str, path: str, body: Mapping[str, Any], query: Mapping[str, str]) -> tuple[int, Any]:
        if path == "job/ai-engines":
            engines = [{"engine_id": 7, "engine_name": "Test-Engine", "engine_version": "1.0", "engine_type": 1}]
            return 200, {"is_success": True, "engine_total_count": 1, "engines": engines}
        if path == "job/resource-specs":
            return 200, {"is_success": True, "specs": [{"spec_id": 4, "spec_code": "test.8xlarge", "max_num": 4}]}
        if (method, path) == ("GET", "training-jobs"):
            newest = {job.name: job for job in self.jobs if query.get("search_content", "") in job.name}
            jobs = [{**self._v1_answer(job), "job_name": job.name} for job in reversed(newest.values())]
            return 200, {"is_success": True, "job_total_count": len(jobs), "jobs": jobs}
        if method == "POST" and (path == "training-jobs" or re.fullmatch(r"training-jobs/\d+/versions", path)):
            return self._create_v1(path, body)
        match = re.fullmatch(r"training-jobs/(\d+)/versions/(\d+)(/stop)?", path)
        job = next((job for job in self.jobs if match and (job.id, job.version) == (match[1], match[2])), None)
        if job is None or match is None:
            return 404, {"is_success": False, "error_code": "ModelArts.0107", "error_msg": "not found"}
        if match[3]:
            if job.ended:
                return 400, {"is_success": False, "error_code": "ModelArts.0105", "error_msg": "cannot be stopped"}
            self.stop(job)
            return 200, {"is_success": True}
        return 200, {**self._v1_answer(job), "is_success": True}

    def _create_v1(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        config, versions = body["config"], path.split("/")
        if len(versions) > 1:
            earlier = [job for job in self.jobs if job.id == versions[1]]
            assert str(config["pre_version_id"]) == earlier[-1].version
            name, number = earlier[0].name, versions[1]
        else:
            names = {job.name for job in self.jobs}
            name, number = body["job_name"], str(3043 + len(names))
            assert name not in names
        assert (config["engine_id"], config.get("spec_id")) == (7, 4)
        job = RunningJob(
            number,
            name,
            config["app_url"],
            config["boot_file_url"],
            config.get("data_url") or "",
            config["train_url"],
            config["log_url"],
            config["worker_server_num"],
            {entry["label"]: entry["value"] for entry in config["parameter"]},
            {},
            body,
            str(13231 + len(self.jobs)),
        )
        self._start(job)
        return 200, {**self._v1_answer(job), "is_success": True}

    def _v1_answer(self, job: RunningJob) -> dict[str, Any]:
        status = 7 if job.state == "waiting" else _V1_STATUSES[job.state]
        return {
            "job_id": int(job.id),
            "job_name": job.name,
            "version_id": int(job.version),
            "resource_id": f"job{job.version}",
            "status": 9 if job.stop_requested and not job.ended else status,
            "create_time": int(job.created * 1000),
        }

    # -- jobs ----------------------------------------------------------------------------------------------

    def stop(self, job: RunningJob) -> None:
        job.stop_requested = True
        for process in job.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def _start(self, job: RunningJob) -> None:
        self.jobs.append(job)
        threading.Thread(target=self._run, args=(job,), daemon=True).start()

    def _run(self, job: RunningJob) -> None:
        """Run a job as the cloud does: copy code and data, start the boot file, copy logs and output."""
        while self.faults.hold and not job.stop_requested:
            time.sleep(_LOG_S)
        if job.stop_requested:
            job.state = "stopped"
            return
        if self.faults.fail_start:
            job.reason, job.state = self.faults.fail_start, "failed"
            return
        homes = [self._folder / f"{job.id}-{job.version}-{number}" for number in range(job.count)]
        for number, home in enumerate(homes):
            self._prepare(job, home)
            for _ in range(self.per_card):
                job.processes.append(self._start_process(job, number, home))
        job.state = "running"
        while any(process.poll() is None for process in job.processes):
            self._copy_logs(job, homes)
            time.sleep(_LOG_S)
        self._copy_logs(job, homes)
        if not self.faults.no_output:
            for home in homes:
                copy(self.s3, home / "output", f"s3:/{job.output}")
        failed = any(process.returncode for process in job.processes)
        job.state = "stopped" if job.stop_requested else "failed" if failed else "completed"

    def _prepare(self, job: RunningJob, home: Path) -> None:
        copy(self.s3, f"s3:/{job.code}", home / "code")
        (home / "output").mkdir()
        (home / "tmp").mkdir()
        if job.data and self.version == "v2":
            copy(self.s3, f"s3:/{job.data}", home / "data")

    def _start_process(self, job: RunningJob, number: int, home: Path) -> subprocess.Popen[bytes]:
        v2 = self.version == "v2"
        boot = home / "code" / job.boot_file.removeprefix(job.code)
        places = {
            "train_url": str(home / "output") if v2 else f"s3:/{job.output}",
            **({"data_url": str(home / "data") if v2 else f"s3:/{job.data}"} if job.data else {}),
        }
        options = [f"--{name}={value}" for name, value in {**job.parameters, **places}.items()]
        hosts = {"VC_TASK_INDEX": str(number), "VC_WORKER_HOSTS": ",".join(["127.0.0.1:6666"] * job.count)}
        old = {"DLS_TASK_INDEX": str(number), "BATCH_CUSTOM0_HOSTS": hosts["VC_WORKER_HOSTS"]}
        own = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME", "LANG", "FLAGPERF_TOY")}
        environment = {
            **own,
            **(hosts if v2 else old),
            **job.environment,
            "TMPDIR": str(home / "tmp"),
            "FLAGPERF_LEASES": str(home / "leases"),
            "PYTHONPATH": str(Path(__file__).parent / "image"),
            "OBS_URL": self.obs_url,
        }
        script = home / "code" / "ma-pre-start.sh"
        start = f'[ ! -f {script} ] || . {script}; exec {sys.executable} {boot} "$@"'
        with (home / "log").open("ab") as log:
            log.write(b"[ModelArts Service Log]Platform=ModelArts-Service, starting\n")
            log.flush()
            return subprocess.Popen(
                ["bash", "-c", start, "boot", *options],
                env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _copy_logs(self, job: RunningJob, homes: list[Path]) -> None:
        for number, home in enumerate(homes):
            name = f"modelarts-job-{job.id}-worker-{number}.log"
            if self.version == "v1":
                name = f"job{job.version}-job-{job.name}-{number}.log"
            bucket, key = split(job.log + name)
            self.s3.put_object(Bucket=bucket, Key=key, Body=(home / "log").read_bytes())

    # -- OBS -----------------------------------------------------------------------------------------------

    def names(self, path: str) -> list[str]:
        bucket, prefix = split(path)
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ()))

    def read(self, path: str) -> bytes:
        bucket, key = split(path)
        content: bytes = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def write(self, path: str, content: bytes) -> None:
        bucket, key = split(path)
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)


def split(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key


def wrong_signature(method: str, target: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """Why a request is not signed by the account; written from the description of Huawei's API signatures."""
    given = {name.lower(): value for name, value in headers.items()}
    match = re.fullmatch(
        r"SDK-HMAC-SHA256 Access=(\S+), SignedHeaders=(\S+), Signature=([0-9a-f]{64})", given.get("authorization", "")
    )
    if match is None:
        return "no signature"
    if match[1] != ACCESS:
        return "unknown access key"
    names = match[2].split(";")
    if not {"host", "x-sdk-date"} <= set(names):
        return "host and date must be signed"
    sent = time.mktime(time.strptime(given["x-sdk-date"], "%Y%m%dT%H%M%SZ")) - time.timezone
    if abs(time.time() - sent) > 900:
        return "the date is too old"
    parts = urlsplit(target)
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in sorted(parse_qsl(parts.query, keep_blank_values=True))
    )
    lines = [method, parts.path.rstrip("/") + "/", query, *(f"{name}:{given[name].strip()}" for name in names), ""]
    canonical = "\n".join([*lines, match[2], hashlib.sha256(body).hexdigest()])
    text = "\n".join(["SDK-HMAC-SHA256", given["x-sdk-date"], hashlib.sha256(canonical.encode()).hexdigest()])
    expected = hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
    return None if hmac.compare_digest(expected, match[3]) else "wrong signature"


def _handler(service: ModelArts) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if service.faults.silent:
                self.close_connection = True
                return
            if service.faults.answers:
                status, content = service.faults.answers.pop(0)
            else:
                status, answer = service.answer(self.command, self.path, dict(self.headers), body)
                content = json.dumps(answer).encode()
            if service.faults.cut_create and self.command == "POST" and self.path.endswith("/training-jobs"):
                service.faults.cut_create = False
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    return Handler
