"""The clients of OBS and of the REST interface: signatures, checked answers, and one sentence for each failure."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from flagperf_driver.ports import free_port
from modelarts_tests import service
from pytest_flagperf.hosts import HostError, HostLost, InvalidReply
from pytest_flagperf_modelarts import names, obs
from pytest_flagperf_modelarts.account import open_cloud
from pytest_flagperf_modelarts.cloud_job import Cloud
from pytest_flagperf_modelarts.config import ModelArtsConfig
from pytest_flagperf_modelarts.jobs import TrainingJob, TrainingJobRequest, stop_newest
from pytest_flagperf_modelarts.keys import ACCESS, SECRET, Keys
from pytest_flagperf_modelarts.obs_path import ObsFolder
from pytest_flagperf_modelarts.rest import Rest

FOLDER = ObsFolder("bench", "code/")


def settings(double: service.ModelArts) -> ModelArtsConfig:
    return ModelArtsConfig(
        code=FOLDER, output=ObsFolder("bench", "out/"), project=service.PROJECT, version=double.version,
        region="us-east-1", obs_endpoint=double.obs_url, modelarts_endpoint=double.url, iam_endpoint=double.url,
        job_name="debug", framework="Test-Engine", framework_version="1.0", flavor="test.8xlarge",
    )  # fmt: skip


@pytest.fixture
def cloud(modelarts: service.ModelArts) -> Cloud:
    return open_cloud(settings(modelarts))


ANSWERS: list[tuple[int, bytes, type[HostError], str]] = [
    (200, b"<html>login</html>", HostError, "expected a JSON object: is the endpoint right?"),
    (200, b"{}", InvalidReply, "answer.metadata is missing"),
    (200, b'{"metadata": {"id": "x", "name": "x"}, "status": {"phase": 7}}', InvalidReply, "expected a string"),
    (204, b"", HostError, "HTTP 204"),
    (302, b"", HostError, "HTTP 302"),
    (429, b"{}", HostLost, "HTTP 429"),
    (503, b"<html>", HostLost, "HTTP 503"),
    (401, b'{"error_msg": "who are you"}', HostError, "who are you; check the keys, the project and"),
    (404, b"{}", HostError, "check the endpoint, the version and the project"),
    (200, b'{"is_success": false, "error_msg": "no", "error_code": "ModelArts.0105"}', HostError, "(ModelArts.0105)"),
]


def test_answers_are_checked(cloud: Cloud, modelarts: service.ModelArts) -> None:
    for status, content, kind, expected in ANSWERS:
        modelarts.faults.answers = [(status, content)]
        with pytest.raises(HostError) as caught:
            cloud.jobs.state(TrainingJob("1", "debug"))
        assert isinstance(caught.value, kind), expected
        assert isinstance(caught.value, HostLost) == (kind is HostLost), expected
        assert expected in str(caught.value)


def test_a_wrong_key_is_one_sentence(modelarts: service.ModelArts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "WRONGSECRET")
    with pytest.raises(HostError, match="HTTP 401: incorrect signature: wrong signature") as caught:
        open_cloud(settings(modelarts)).jobs.check()
    assert "WRONGSECRET" not in str(caught.value)
    monkeypatch.setenv(ACCESS, "UNKNOWN")
    with pytest.raises(HostError, match="unknown access key"):
        open_cloud(settings(modelarts)).jobs.check()


def test_the_project_is_found_by_the_region(modelarts: service.ModelArts) -> None:
    open_cloud(replace(settings(modelarts), project="")).jobs.check()
    assert "GET /v3/projects?name=us-east-1" in modelarts.requests


def test_refused_connections_and_unknown_hosts_are_one_sentence(modelarts: service.ModelArts) -> None:
    port, keys = free_port(), Keys("a", "b")
    with pytest.raises(HostLost, match=f"ModelArts does not answer: http://127.0.0.1:{port}: Connection refused"):
        Rest("ModelArts", f"http://127.0.0.1:{port}", keys).get("/v2/x", {})
    conf = replace(settings(modelarts), obs_endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(HostLost, match=r"OBS does not answer: obs://bench/code/x: Could not connect"):
        open_cloud(conf).obs.read(FOLDER, "x")


def test_a_private_host_needs_an_address(monkeypatch: pytest.MonkeyPatch, account: None) -> None:
    monkeypatch.setattr(names, "_addresses", {})
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    endpoint = "https://obs.centre.invalid"
    problem = names.unresolved(endpoint)
    assert problem is not None
    assert "obs.centre.invalid has no address" in problem
    assert "add it to addresses in [engines.modelarts], as in 'obs.centre.invalid' = '10.0.0.2'" in problem
    with monkeypatch.context() as patch:
        patch.setenv("https_proxy", "http://127.0.0.1:1")
        assert names.unresolved(endpoint) is None
        patch.setenv("no_proxy", "centre.invalid")
        assert names.unresolved(endpoint) == problem
    names.use_addresses({"obs.centre.invalid": "127.0.0.1"})
    assert names.unresolved(endpoint) is None
    assert socket.getaddrinfo("bucket.obs.centre.invalid", 80)[0][4] == ("127.0.0.1", 80)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("notobs.centre.invalid", 80)


def test_only_changes_of_a_folder_are_uploaded(cloud: Cloud, modelarts: service.ModelArts, tmp_path: Path) -> None:
    package = tmp_path / "big.whl"
    package.write_bytes(b"x" * 1000)
    modelarts.write("/bench/code/run/old.whl", b"old")
    modelarts.write("/bench/code/orders/other.json", b"of another job")
    modelarts.write("/bench/code2/kept", b"in another folder")
    files: dict[str, bytes | Path] = {"boot.py": b"boot", "run/big.whl": package, "empty": b"", "a b+ü": b"name"}
    assert cloud.obs.synchronize(FOLDER, files, "orders/") == (4, 1)
    assert modelarts.names("/bench/code/") == sorted([*files, "orders/other.json"])
    assert modelarts.names("/bench/code2/") == ["kept"]
    assert cloud.obs.synchronize(FOLDER, files, "orders/") == (0, 0)
    package.write_bytes(b"y" * 1000)
    assert cloud.obs.synchronize(FOLDER, {**files, "boot.py": b"new"}, "orders/") == (2, 0)
    assert modelarts.read("/bench/code/run/big.whl") == b"y" * 1000


def test_objects_are_read_in_parts_and_missing_ones_found(cloud: Cloud, modelarts: service.ModelArts) -> None:
    modelarts.write("/bench/code/log", b"0123456789")
    assert cloud.obs.read(FOLDER, "log", 3, 4) == b"3456"
    assert cloud.obs.read(FOLDER, "log", 8) == b"89"
    assert cloud.obs.find(FOLDER, "missing") is None
    with pytest.raises(HostError, match="OBS: obs://bench/code/missing: not found"):
        cloud.obs.read(FOLDER, "missing")
    with pytest.raises(HostError, match="OBS: bucket nowhere: "):
        cloud.obs.check_bucket("nowhere")


def _running(double: service.ModelArts, name: str, number: int, state: str) -> None:
    job = service.RunningJob(
        str(number), name, "", "", "", "", "", 1, {}, {}, {"spec": {}}, str(100 + number), state=state
    )  # fmt: skip
    double.jobs.append(job)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_newest_job_of_this_name_is_stopped(start_service: Callable[..., service.ModelArts], version: str) -> None:
    double = start_service(version=version)
    jobs = open_cloud(settings(double)).jobs
    assert stop_newest(jobs, "debug") == "jobname:debug: no job of this name"
    stamp = "2026_01_02-03_04_05" if version == "v2" else ""
    _running(double, f"debug{stamp}", 1, "running")
    if version == "v1":
        _running(double, "debug", 1, "running")
        double.jobs[-1].version = "102"
    else:
        _running(double, "debug2026_01_02-03_04_06-00ff", 2, "running")
    _running(double, f"debug2{stamp}", 3, "running")
    line = stop_newest(jobs, "debug")
    own = double.jobs[1]
    phase = "JOBSTAT_RUNNING" if version == "v1" else "Running"
    more = f" preversionid:{own.version}" if version == "v1" else ""
    assert line == f"jobname:{own.name} jobid:{own.id}{more} jobstatus:{phase} stop status:{{'is_success': True}}"
    assert [job.stop_requested for job in double.jobs] == [False, True, False]
    assert "not stopped: the job is ending already" in stop_newest(jobs, "debug")
    own.state = "completed"
    assert "not stopped: the job has ended already" in stop_newest(jobs, "debug")


def test_a_second_submission_by_v1_is_a_version_of_the_job(start_service: Callable[..., service.ModelArts]) -> None:
    double = start_service(version="v1")
    double.faults.hold = True
    cloud = open_cloud(settings(double))
    output = ObsFolder("bench", "out/")
    first, second = (cloud.jobs.submit(TrainingJobRequest("x", FOLDER, "boot.py", output, output, 1)) for _ in range(2))
    assert (first.id, first.name) == (second.id, second.name) == ("3043", "debug")
    assert (first.version, second.version) == ("13231", "13232")
    assert cloud.jobs.log_name(second, 1) == "job13232-job-debug-1.log"
    assert cloud.jobs.state(second).phase == "JOBSTAT_WAITING"
    for changed, expected in (("framework_version", "no engine Test-Engine 9"), ("flavor", "no flavor 9; it has test")):
        jobs = open_cloud(replace(settings(double), **{changed: "9"})).jobs  # type: ignore[arg-type]
        with pytest.raises(HostError, match=expected):
            jobs.submit(TrainingJobRequest("x", FOLDER, "boot.py", output, output, 1))


def test_a_refusal_of_obs_is_one_sentence() -> None:
    for code, status, kind, expected in (
        ("SignatureDoesNotMatch", 403, HostError, "OBS: x: wrong secret key: check the keys"),
        ("InvalidAccessKeyId", 403, HostError, "OBS: x: unknown access key: check the keys"),
        ("SlowDown", 503, HostLost, "OBS does not answer: x: SlowDown"),
    ):
        answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        with pytest.raises(HostError, match=expected) as caught, obs._errors("x"):
            raise ClientError(answer, "GetObject")
        assert type(caught.value) is kind
