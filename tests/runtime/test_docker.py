"""Containers: Docker's options and the names of images, also on the engines of lab hosts."""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver.node import docker_engine, orphans
from flagperf_driver.node.docker_engine import DockerEngine, EngineError
from pytest_flagperf.hosts.ssh import SSHHost, ssh_hosts
from pytest_flagperf.runtime import Image, RuntimeRequest, RuntimeSetupError
from pytest_flagperf.runtime.docker.containers import _container_name, prepare
from pytest_flagperf.runtime.docker.images import case_recipe, image_name, vendor_recipe
from pytest_flagperf.runtime.docker.run_options import Options, OptionsError, parse
from tests.helpers.trees import write
from tests.helpers.waiting import until
from tests.runtime.test_runtime import write_wheel

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost

pytestmark = pytest.mark.usefixtures("fresh_cache")
BASE = "flagperf-lab:base"
PYTHON = "flagperf-test:python"


def options(*words: str) -> Options:
    return parse(words, "vendor.toml: options")


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("--device=/dev/xpu0 --device /dev/xpu1:/dev/xpu1:rw", {"devices": ["/dev/xpu0", "/dev/xpu1:/dev/xpu1:rw"]}),
        ("-e A=1 --env B=x=y", {"environment": {"A": "1", "B": "x=y"}}),
        ("--privileged", {"privileged": True}),
        ("--privileged=true --init", {"privileged": True, "init": True}),
        ("--ipc=host --pid host --uts=host", {"ipc_mode": "host", "pid_mode": "host", "uts_mode": "host"}),
        ("--net=none", {"network_mode": "none"}),
        ("--shm-size 16G -m 512m --memory-swap=-1", {"shm_size": 16 << 30, "mem_limit": 2**29, "memswap_limit": -1}),
        ("--ulimit memlock=-1", {"ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}]}),
        ("--ulimit stack=1:2", {"ulimits": [{"Name": "stack", "Soft": 1, "Hard": 2}]}),
        (
            "--cap-add=ALL --cap-drop NET_RAW --group-add video",
            {"cap_add": ["ALL"], "cap_drop": ["NET_RAW"], "group_add": ["video"]},
        ),
        ("--security-opt seccomp=unconfined", {"security_opt": ["seccomp=unconfined"]}),
        ("--cpus 1.5 --pids-limit 100", {"nano_cpus": 1_500_000_000, "pids_limit": 100}),
        ("--add-host a:10.0.0.1", {"extra_hosts": {"a": "10.0.0.1"}}),
        ("--tmpfs /x:size=1g", {"tmpfs": {"/x": "size=1g"}}),
        ("--entrypoint=", {"entrypoint": [""]}),
        ("-v /a:/b:ro", {"mounts": [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}]}),
        ("-v cache:/b", {"mounts": [{"Type": "volume", "Source": "cache", "Target": "/b", "ReadOnly": False}]}),
        (
            "--mount type=bind,src=/a,dst=/b,readonly",
            {"mounts": [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}]},
        ),
    ],
)
def test_options_have_the_meaning_that_docker_gives_them(words: str, meaning: Mapping[str, Any]) -> None:
    assert options(*words.split()).arguments == meaning


def test_all_problems_of_options_are_reported_at_once_with_their_source() -> None:
    with pytest.raises(OptionsError) as caught:
        options(
            "--devise", "/dev/x", "--frobnicate", "--shm-size=much", "--privileged=maybe", "--cpus=none", "stray",
            "-v", "/a", "--ulimit",
        )  # fmt: skip
    assert [problem.partition(";")[0] for problem in caught.value.problems] == [
        "vendor.toml: options: unsupported docker option --devise",
        "vendor.toml: options: unsupported docker option --frobnicate",
        "vendor.toml: options: --shm-size much: expected a size such as 512m or 32g",
        "vendor.toml: options: --privileged maybe: expected true or false",
        "vendor.toml: options: --cpus none: expected a number of cores such as 1.5",
        "vendor.toml: options: found a word without an option",
        "vendor.toml: options: --volume /a: expected SOURCE:TARGET[:ro]",
        "vendor.toml: options: --ulimit: the value is missing",
    ]
    assert "did you mean --device or --env?" in str(caught.value)
    assert "allowed are --gpus, --device" in str(caught.value)


def test_gpus_and_devices_are_the_leased_ones_whatever_the_option_says() -> None:
    assert options("--gpus", "all").gpus
    for value in ("2", "device=0,1", "none"):
        with pytest.raises(OptionsError, match=r"expected all, the devices that the case has leased$"):
            options("--gpus", value)
    with pytest.raises(OptionsError, match=r"expected all.*; a part of a device \(MIG\) cannot be leased"):
        options("--gpus", "device=MIG-4a9b")
    with pytest.raises(OptionsError, match=r"maker.com/gpu=0: a CDI name .*use --gpus all"):
        options("--device", "maker.com/gpu=0")
    words = ["--device=/dev/acme{device}", "-v", "/run/a{device}:/run/a{device}", "--device", "/dev/acme_ctl"]
    given = parse([*words, "--env", "ACME{device}=on"], "vendor.toml: options", devices=[4, 6]).arguments
    assert given["devices"] == ["/dev/acme4", "/dev/acme6", "/dev/acme_ctl"]
    assert [mount["Target"] for mount in given["mounts"]] == ["/run/a4", "/run/a6"]
    assert given["environment"] == {"ACME4": "on", "ACME6": "on"}
    unleased = options(*words)  # as for inspecting an image
    assert (unleased.arguments, unleased.by_device) == ({"devices": ["/dev/acme_ctl"]}, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device=/dev/acme{devise}"], "unknown {devise}; allowed is {device}"),
        (["--device=/dev/acme{device"], "unknown {device; allowed is {device}"),
        (["--device=/dev/acmedevice}"], "unknown device}; allowed is {device}"),
        (["--volume", "${HOME}/x:/x"], "unknown {HOME}; allowed is {device}"),
        (["--device", "dev/acme{device}"], "--device dev/acme{device}: 'dev/acme0': expected an absolute path"),
        (["--env", "ACME={device}"], "the same value for all devices"),
        (["--hostname", "h{device}"], "the same value for all devices"),
    ],
)
def test_placeholders_are_checked_before_devices_are_leased(words: list[str], message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        options(*words)
    assert message in str(caught.value)


def test_what_a_container_sees_and_shares_with_the_host_is_known() -> None:
    assert options("--gpus", "all").only_leased
    assert options("--device", "/dev/acme{device}").only_leased
    assert not options("--device", "/dev/acme0", "--device", "/dev/acme1").only_leased
    assert not options("--gpus", "all", "--privileged").only_leased, "it sees all that the host has"
    assert not options("--env", "ACME_{device}=1").only_leased, "a variable keeps no device out"
    assert options("-w", "/x").notes == (
        "vendor.toml: options: --workdir /x has no effect: ranks run in their log folder",
    )
    assert options("--privileged").privileged
    assert not options("--privileged=false").privileged
    assert options("--ipc=host", "--pid=host").host_namespaces == ("ipc", "pid")
    assert options("--ipc=private").host_namespaces == ()


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    folder = tmp_path / "vendors" / "toy"
    write(folder, "images/frame/Dockerfile", f"FROM {PYTHON}\nCOPY requirements.txt /\n")
    write(folder, "model-frame/config/config_X1x1x1.py", "")
    return folder


@pytest.fixture
def required(vendor: Path, tmp_path: Path) -> RuntimeRequest:
    needs = write(tmp_path, "suites/model/frame/requirements.txt", "pip\n")
    image = Image(folder=vendor / "images/frame", extras=vendor / "model-frame", options_source="toy's options")
    return RuntimeRequest("frame", (needs,), image=image)


def with_image(required: RuntimeRequest, **changes: Any) -> RuntimeRequest:
    return replace(required, image=replace(required.image, **changes))


def test_an_image_is_named_by_its_content(required: RuntimeRequest, vendor: Path) -> None:
    name = image_name(required)
    assert name.startswith("flagperf-toy-frame:")
    assert image_name(required) == name
    write(vendor, "images/frame/patch.diff", "")
    patched = image_name(required)
    required.requirements[0].write_text("pip>1\n")
    needing = image_name(required)
    elsewhere = image_name(replace(required, pip_source="https://mirror.example/simple"))
    assert len({name, patched, needing, elsewhere}) == 4


def test_image_names_are_valid_for_docker(tmp_path: Path) -> None:
    file = write(tmp_path, "vendors/Big.Co/images/PyTorch_1.13+cu/Dockerfile", "FROM x\n")
    name = image_name(RuntimeRequest("frame", image=Image(folder=file.parent)))
    assert name.startswith("flagperf-big.co-pytorch_1.13-cu:")


@pytest.mark.parametrize("log_dir", ["/tmp/pytest-flagperf-0/rounds/x-h1", "/home/a b/runs (1)/round1/h1", "/é"])
def test_container_names_are_valid_for_docker_whatever_the_folder(log_dir: str) -> None:
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]+", _container_name(log_dir))


def test_a_given_image_has_its_name_and_a_dockerfile_the_requirements_of_all_suites(
    required: RuntimeRequest, vendor: Path, tmp_path: Path
) -> None:
    assert image_name(with_image(required, image="theirs:1")) == "theirs:1"
    other = write(tmp_path, "suites/other/frame/requirements.txt", "numpy==2\n")
    own = write(vendor, "model-frame/config/requirements.txt", "fused\n")
    recipe = vendor_recipe(replace(required, requirements=(*required.requirements, other, own)))
    assert recipe.files["requirements.txt"] == (0o644, b"numpy==2\npip\n")


def test_a_case_that_adds_nothing_has_no_layer_of_its_own(required: RuntimeRequest, vendor: Path) -> None:
    assert case_recipe(required, "base", "id") is None
    write(vendor, "model-frame/config/environment_variables.sh", "export A=1\n")
    assert case_recipe(required, "base", "id") is None


def test_a_cases_layer_depends_on_its_files_and_its_base(required: RuntimeRequest, vendor: Path) -> None:
    write(vendor, "model-frame/config/requirements.txt", "fused\n")
    one, other = case_recipe(required, "base", "id"), case_recipe(required, "base", "id of a newer one")
    assert one is not None
    assert other is not None
    assert one.name.startswith("flagperf-toy-model-frame:")
    assert one.name != other.name
    write(vendor, "model-frame/config/environment_variables.sh", "export A=1\n")
    sourcing = case_recipe(required, "base", "id")
    assert sourcing is not None
    assert sourcing.name != one.name
    assert b". ./config/environment_variables.sh" in sourcing.files["Dockerfile"][1]


def test_no_image_has_credentials_and_a_missing_dockerfile_is_named(required: RuntimeRequest, vendor: Path) -> None:
    with pytest.raises(RuntimeSetupError) as caught:
        image_name(replace(required, pip_source="https://me:s3cret@mirror.example/simple"))
    assert "mirror.example" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(RuntimeSetupError, match=r"none/Dockerfile not found; write it, or set an image"):
        image_name(with_image(required, folder=vendor / "images/none"))


def test_a_missing_a_stopped_and_a_silent_engine_differ(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Docker is not installed or not running"):
        DockerEngine(str(tmp_path / "none.sock")).version()
    with silent_socket(tmp_path / "dead.sock"):
        pass
    with pytest.raises(EngineError, match="no process listens on"):
        DockerEngine(str(tmp_path / "dead.sock")).version()
    with silent_socket(tmp_path / "mute.sock"), pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
        DockerEngine(str(tmp_path / "mute.sock"), timeout_s=0.2).version()


def silent_socket(path: Path) -> Any:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.fixture(scope="module")
def there(lab: Lab) -> LabHost:
    """A lab host with Docker, and an image with Python."""
    (host,) = lab.hosts(1)
    host.docker()
    pip = f"RUN ln -s {PROGRAM} /usr/bin/python3 && python3 -m ensurepip"
    file = write(host.root, "tmp/build/Dockerfile", f"FROM {BASE}\nADD python.tar /\n{pip}\n")
    file.with_name("python.tar").write_bytes(python_files())
    host.run(
        ["docker", "build", "--quiet", "--network=host", "--tag", PYTHON, "/tmp/build"], env={"DOCKER_BUILDKIT": "0"}
    )
    return host


PROGRAM = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
_LEFT_OUT = re.compile(r"test|tests|idlelib|tkinter|turtledemo|lib2to3|site-packages|__pycache__|config-.*")


def python_files() -> bytes:
    """A root file system with Python and bash, built from the Python of the tests without a registry."""
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    programs = [PROGRAM, Path(shutil.which("bash") or "/bin/bash")]
    words = ["ldd", *map(str, programs), *map(str, library.glob("lib-dynload/*.so"))]
    loaded = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    libraries = map(Path, re.findall(r"(?:=>\s+|^\t)(/\S+) \(", loaded, re.MULTILINE))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted({*programs, *libraries}):
            tar.add(os.path.realpath(path), arcname=str(path))
        tar.add(library, filter=lambda entry: None if _LEFT_OUT.fullmatch(Path(entry.name).name) else entry)
    return stream.getvalue()


@pytest.fixture(scope="module")
def near(lab: Lab, there: LabHost) -> Iterator[SSHHost]:
    (made,) = ssh_hosts(lab.ssh_settings([there]))
    yield made
    made.close()


@pytest.fixture
def far(there: LabHost) -> DockerEngine:
    return DockerEngine(str(there.root / "run/docker.sock"))


Start = Callable[..., str]


@pytest.fixture
def start(near: SSHHost, there: LabHost, far: DockerEngine, required: RuntimeRequest) -> Iterator[Start]:
    """Prepare, create and start a container with a command; yield its id; remove it afterwards."""
    made: list[str] = []

    def starting(*argv: str, read_only: Sequence[str] = (), words: str = "", log_dir: str = "/tmp") -> str:
        asked = with_image(required, options=tuple(words.split()))
        interpreter = prepare(near, asked, quiet)
        assert interpreter.container is not None
        container = interpreter.container.create(
            near, argv=argv, log_dir=log_dir, read_only=read_only, devices=[0], labels={}
        )
        assert container["socket"] == docker_engine.SOCKET
        made.append(container["id"])
        far.start(made[-1])
        return made[-1]

    yield starting
    for container in made:
        far.remove(container)
    assert there.containers() == []


def quiet(_: str) -> None:
    pass


def ended(far: DockerEngine, container: str) -> docker_engine.ContainerState:
    until(lambda: not far.state(container).running, "the end of the container")
    return far.state(container)


BACKEND = """
import os, shutil
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return os.path.basename(shutil.copy(os.environ["EXTENSION_SOURCE_DIR"] + "/fused-1.0-py3-none-any.whl", folder))
"""


def add_csrc(adaptation: Path) -> None:
    """An extension with a setup.py that needs no compiler and no setuptools."""
    write_wheel(adaptation / "csrc", "fused", "1.0")
    write(adaptation, "csrc/setup.py", "")
    write(adaptation, "csrc/backend.py", BACKEND)
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    write(adaptation, "csrc/pyproject.toml", project)


def test_an_image_is_built_once_with_the_cases_own_layer_on_it(
    near: SSHHost, there: LabHost, far: DockerEngine, required: RuntimeRequest, vendor: Path
) -> None:
    add_csrc(vendor / "model-frame")
    banner = 'ENTRYPOINT ["sh", "-c", "echo WELCOME; exec \\"$@\\"", "sh"]\n'  # a line before what the look prints
    write(vendor, "images/frame/Dockerfile", f"FROM {PYTHON}\nCOPY requirements.txt /\n{banner}")
    messages: list[str] = []
    first = prepare(near, required, messages.append)
    assert first.details["fused"] == "1.0"
    assert first.details["image"].startswith("flagperf-toy-model-frame:")
    assert first.details["image_id"] == (far.image(first.details["image"]) or {})["Id"]
    assert first.details["python"].startswith("3.")
    assert any(line.startswith("building flagperf-toy-frame:") for line in messages)
    assert any("Successfully installed fused" in line for line in messages)
    again: list[str] = []
    second = prepare(near, required, again.append)
    assert (second.python, second.details) == (first.python, first.details)
    assert again == []
    assert there.containers() == []


def test_one_of_several_processes_builds(near: SSHHost, required: RuntimeRequest, vendor: Path) -> None:
    write(vendor, "images/frame/Dockerfile", f"FROM {PYTHON}\nRUN sleep 1; echo built\n")
    messages: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: prepare(near, required, messages.append).details["image_id"], range(3)))
    assert len(set(found)) == 1
    assert messages.count("step 2 of 3: built") == 1
    assert sum(line.startswith("another run is preparing") for line in messages) == 2


def test_a_failed_build_has_its_end_and_a_fix(
    near: SSHHost, there: LabHost, required: RuntimeRequest, vendor: Path
) -> None:
    steps = "RUN seq 100\nRUN echo no compiler here >&2; exit 3\n"
    file = write(vendor, "images/frame/Dockerfile", f"FROM {BASE}\n{steps}")
    with pytest.raises(RuntimeSetupError) as caught:
        prepare(near, required, quiet)
    text = str(caught.value)
    assert "  no compiler here" in text
    assert "returned a non-zero code: 3" in text
    assert f"fix {file}" in text
    assert len(text.splitlines()) <= 18
    assert there.containers() == []


def test_a_given_image_is_used_unchanged_and_one_without_required_packages_is_refused(
    near: SSHHost, required: RuntimeRequest
) -> None:
    messages: list[str] = []
    found = prepare(near, with_image(required, image=PYTHON), messages.append)
    assert found.details["image"] == PYTHON
    assert messages == ["inspecting the image"]
    required.requirements[0].write_text("pip\nNot_there>=1\n")
    with pytest.raises(RuntimeSetupError, match=r"has no Not_there, required by frame suites"):
        prepare(near, required, quiet)


def test_a_missing_image_or_one_without_python_is_named(
    near: SSHHost, there: LabHost, required: RuntimeRequest
) -> None:
    name = "127.0.0.1:9/nobody/nothing:1"
    with pytest.raises(RuntimeSetupError, match=f"{name} was not found .* and cannot be pulled: .*docker login"):
        prepare(near, with_image(required, image=name), quiet)
    with pytest.raises(RuntimeSetupError, match=r"python3 does not work in the image"):
        prepare(near, with_image(required, image=BASE), quiet)
    assert there.containers() == []


def test_a_container_sees_its_mounts_and_devices(start: Start, far: DockerEngine, there: LabHost) -> None:
    there.run(["mkdir", "-p", "/tmp/log", "/tmp/data"])
    script = (
        "import os\n"
        "print(os.getcwd(), os.environ['A'], os.statvfs('/dev/shm').f_frsize * os.statvfs('/dev/shm').f_blocks >> 20)\n"
        "open('written', 'w')\n"
        "try:\n    open('/tmp/data/x', 'w')\nexcept OSError as error:\n    print(error.strerror)\n"
    )
    words = "--env A=1 --shm-size 16m --device /dev/null:/dev/mine{device}"
    container = start("python3", "-c", script, read_only=["/tmp/data"], words=words, log_dir="/tmp/log")
    assert ended(far, container).exit_code == 0, far.logs(container)
    assert far.logs(container) == "/tmp/log 1 16\nRead-only file system\n"
    assert (there.root / "tmp/log/written").exists()
    config = far.inspect(container)["HostConfig"]
    assert [(one["PathOnHost"], one["PathInContainer"]) for one in config["Devices"]] == [("/dev/null", "/dev/mine0")]
    assert (config["Privileged"], config["PidMode"], config["IpcMode"]) == (False, "", "private")
    assert (config["NetworkMode"], config["LogConfig"]["Config"]["max-size"]) == ("host", "1m")


def test_a_missing_folder_is_not_made_and_a_container_over_its_limit_is_named(start: Start, far: DockerEngine) -> None:
    with pytest.raises(RuntimeSetupError, match=r"Docker refused: .*/nowhere"):
        start("true", read_only=["/nowhere"])
    container = start("python3", "-c", "b'x' * (1 << 29)", words="--memory 64m --memory-swap 64m")
    state = ended(far, container)
    assert state.oom_killed
    assert state.sentence == "exceeded its memory limit (exit code 137)"


def test_containers_of_dead_checks_and_rounds_are_removed(
    there: LabHost, far: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dead", "alive"):
        write(tmp_path, f"{name}/agent.lock", "")
    labels = [f"flagperf.log_dir={tmp_path / name}" for name in ("dead", "removed", "alive")]
    for label in (f"{orphans.LOOK_LABEL}=1", *labels):
        there.run(["docker", "run", "--detach", "--network=host", f"--label={label}", BASE, "sleep", "60"])
    with (tmp_path / "alive/agent.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        removed = {line.rpartition(" of ")[2] for line in orphans.remove(far.path)}
        assert removed == {f"{tmp_path}/dead", f"{tmp_path}/removed"}
        assert len(far.labelled(orphans.LOOK_LABEL)) == 1, "its inspection may still run"
        monkeypatch.setattr(orphans, "_LOOK_S", -1.0)
        (look,) = orphans.remove(far.path)
        assert look.endswith(f" of {BASE}")
        (kept,) = far.labelled("flagperf.log_dir")
    assert far.remove(kept.id)


def test_privileges_are_in_the_details_with_their_source(near: SSHHost, required: RuntimeRequest) -> None:
    plain = prepare(near, required, quiet).details
    assert "privileged" not in plain
    assert "host_namespaces" not in plain
    asked = with_image(required, options=("--privileged", "--ipc=host"))
    assert prepare(near, asked, quiet).details["privileged"] == "toy's options"
    named = prepare(near, with_image(asked, privileged_source="vendors/toy/vendor.toml"), quiet).details
    assert named["privileged"] == "vendors/toy/vendor.toml"
    assert named["host_namespaces"] == "ipc: toy's options"


def test_only_leased_devices_are_visible(near: SSHHost, far: DockerEngine, required: RuntimeRequest) -> None:
    made = prepare(near, with_image(required, options=("--gpus", "all")), quiet).container
    assert made is not None
    container = made.create(near, argv=["true"], log_dir="/tmp", read_only=[], devices=[4, 6], labels={})
    try:
        (request,) = far.inspect(container["id"])["HostConfig"]["DeviceRequests"]
        assert (request["DeviceIDs"], request["Count"]) == (["4", "6"], 0)
        assert container["only_leased"]
    finally:
        far.remove(container["id"])


def test_a_container_sources_the_environment(near: SSHHost, required: RuntimeRequest, tmp_path: Path) -> None:
    file = write(tmp_path, "environment_variables.sh", 'echo noise\nexport FUSED="it is\non" SHELL_OF=$0\nfalse\n')
    found = prepare(near, replace(required, environment_file=file), quiet)
    assert found.env == {"FUSED": "it is\non", "SHELL_OF": "environment_variables.sh"}
    kept = list(tmp_path.glob("cache/images/*.json"))
    assert [each.stat().st_mode & 0o777 for each in kept] == [0o600], "it may hold keys"
    changed = replace(required, environment_file=file, environment=(("FUSED", "no"), ("MORE", "1")))
    assert prepare(near, changed, quiet).env == {**found.env, "MORE": "1"}
    changed = replace(changed, environment_file=None)
    assert prepare(near, changed, quiet).env == {"FUSED": "no", "MORE": "1"}


def test_an_engine_that_dies_is_named(near: SSHHost, there: LabHost, required: RuntimeRequest, vendor: Path) -> None:
    write(vendor, "images/frame/Dockerfile", f"FROM {PYTHON}\nRUN echo building; sleep 60\n")

    def kill(line: str) -> None:
        if line.endswith(": building"):
            there.kill_dockerd()

    try:
        with pytest.raises(RuntimeSetupError, match=f"{near.name}: .*(Docker is not running|the connection to Docker)"):
            prepare(near, required, kill)
    finally:
        there.docker()
