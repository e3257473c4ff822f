"""Apptainer and pyxis: the image, the command of a container, and clear errors; tests/lab has the real containers."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flagperf_driver.node import apptainer, namespaces
from flagperf_driver.node.request_server import RequestError
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.runtime import Image, RuntimeRequest, RuntimeSetupError, program_containers, pyxis, runtimes
from pytest_flagperf.runtime.apptainer import _PROGRAM
from pytest_flagperf.runtime.container_options import ContainerProgram, translate
from pytest_flagperf.runtime.docker.run_options import OptionsError

HOST = LocalHost("here")
RUNTIME, PYXIS = runtimes()["apptainer"], runtimes()["pyxis"]
EXPECTED = "vendors/acme/images/frame/Dockerfile"


class Double:
    """A double of Apptainer, the first program on the PATH; it records its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = folder / "bin" / "apptainer"
        self.log = folder / "calls"
        self.program.parent.mkdir()
        shutil.copy(Path(__file__).with_name("apptainer_double.sh"), self.program)
        monkeypatch.setenv("PATH", str(self.program.parent), prepend=os.pathsep)
        monkeypatch.setenv("DOUBLE_LOG", str(self.log))

    @property
    def calls(self) -> list[str]:
        """The first line of each call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(("exec ", "pull "))]


@pytest.fixture
def double(tmp_path: Path, fresh_cache: None, monkeypatch: pytest.MonkeyPatch) -> Double:
    return Double(tmp_path, monkeypatch)


def request(image: str | Path | None, **of_image: object) -> RuntimeRequest:
    spec = Image(image=None if image is None else str(image), image_source="--image", **of_image)  # type: ignore[arg-type]
    return RuntimeRequest("frame", image=spec, timeout_s=20)


@pytest.fixture
def sif(tmp_path: Path) -> Path:
    file = tmp_path / "image.sif"
    file.write_text("an image")
    return file


@pytest.mark.integration
def test_an_image_file_is_inspected_once_and_its_digest_is_recorded(double: Double, sif: Path) -> None:
    wanted = request(sif, options=("--gpus", "all", "--env", "KEY=secret", "-v", "/data:/data:ro", "--rocm"))
    first = RUNTIME.prepare(HOST, wanted, print, pack({}))
    assert first.label == f"apptainer: {sif}"
    assert first.details["digest"] == first.details["image_id"]
    assert first.details["digest"].startswith("sha256:")
    assert first.details["apptainer"] == "9.8.7"
    assert first.env == {"KEY": "secret", "PYTHONNOUSERSITE": "1"}
    (call,) = double.calls
    assert call.startswith(f"exec --pwd=/ --nv --rocm --bind=/data:/data:ro {sif} python3 -c")
    assert "secret" not in call
    assert RUNTIME.prepare(HOST, wanted, print, pack({})).details == first.details
    assert len(double.calls) == 1
    sif.write_text("another image")
    assert RUNTIME.prepare(HOST, wanted, print, pack({})).details["digest"] != first.details["digest"]


@pytest.mark.integration
def test_a_folder_is_inspected_each_time(double: Double, tmp_path: Path) -> None:
    (tmp_path / "sandbox").mkdir()
    for count in (1, 2):
        details = RUNTIME.prepare(HOST, request(tmp_path / "sandbox"), print, pack({})).details
        assert "digest" not in details
        assert len(double.calls) == count


@pytest.mark.integration
def test_an_image_is_pulled_once_for_all_processes(double: Double) -> None:
    lines: list[str] = []
    hold = double.log.with_suffix(".hold")
    hold.touch()

    def take(line: str) -> None:
        lines.append(line)
        if line.startswith("another process"):
            hold.unlink()  # the first one pulls until the second one waits

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: RUNTIME.prepare(HOST, request("maker/torch:1"), take, pack({})), range(2)))
    assert [call.split()[0] for call in double.calls].count("pull") == 1
    assert found[0].details["image"] == "docker://maker/torch:1"
    assert found[0].details["digest"] == found[1].details["digest"]
    assert "another process pulls this image; waiting for it" in lines


@pytest.mark.integration
@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("no/such:1", r"here: the image docker://no/such:1 cannot be pulled: .* 255.*\n  FATAL: requested access"),
        ("/no/such.sif", "the image /no/such.sif does not exist; copy it to this host, or to a shared file system"),
    ],
)
def test_a_missing_image_is_named(double: Double, image: str, problem: str) -> None:
    with pytest.raises(RuntimeSetupError, match=problem):
        RUNTIME.prepare(HOST, request(image), print, pack({}))
    assert not list((double.log.parent / "cache" / "apptainer").glob("*.partial"))


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(apptainer, "_FOLDERS", ())
    with pytest.raises(RequestError, match="no apptainer and no singularity on the PATH; load its module"):
        apptainer.find_program()
    (tmp_path / "singularity").write_text("#!/bin/sh\necho singularity-ce version 3.11.4\n")
    (tmp_path / "singularity").chmod(0o755)
    assert apptainer.find_program() == (str(tmp_path / "singularity"), "singularity-ce version 3.11.4")


def test_preflight_facts(double: Double, sif: Path) -> None:
    version = "apptainer version 9.8.7"
    assert apptainer.facts(str(sif)) == {"version": version, "image": True, "error": None}
    assert apptainer.facts("docker://maker/torch:1") == {"version": version, "image": False, "error": None}
    assert "does not exist" in str(apptainer.facts("/no/such.sif")["error"])
    double.program.write_text("#!/bin/sh\necho broken library >&2\nexit 1\n")
    assert str(apptainer.facts(str(sif))["error"]).endswith("does not work: broken library")


def test_without_namespaces(double: Double, sif: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError("the kernel refuses clone3: No space left on device")

    switch = tmp_path / "user" / "max_user_namespaces"
    switch.parent.mkdir()
    switch.write_text("0\n")
    monkeypatch.setattr(namespaces, "_SETTINGS", tmp_path)
    monkeypatch.setattr(namespaces, "_clone", refuse)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    setting = "user.max_user_namespaces is 0; as root: sysctl user.max_user_namespaces=15000"
    assert f"needs user namespaces, and {setting}, or install" in str(apptainer.facts(str(sif))["error"])
    for user, end in ((1000, f"; {setting}"), (0, "")):  # root needs no user namespace
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(OSError, match=f"No space left on device{end}$"):
            namespaces.Namespaces([])
    switch.write_text("100\n")
    assert apptainer.facts(str(sif))["error"] is None


def test_docker_options_are_translated() -> None:
    words = [
        "--gpus", "all", "--ulimit", "memlock=-1", "--ipc=host", "-v", "/a:/b", "-e", "K=v", "--memory", "4g", "-B",
        "/x",
    ]  # fmt: skip
    found = translate(words, "opt", _PROGRAM)
    assert found.gpus
    assert found.own == ("-B", "/x")
    assert [(mount.source, mount.target, mount.read_only) for mount in found.mounts] == [("/a", "/b", False)]
    assert found.env == {"K": "v"}
    assert found.notes == ("opt: --memory: no effect with apptainer exec",)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--containall"], "opt: --containall: the monitors must see the ranks' processes"),
        (["-v", "name:/data"], "opt: --volume: apptainer exec has no named volumes"),
        (["-v", "/a,b:/data"], "a path with a comma or a colon cannot be mounted"),
        (["--writable-tmp"], r"an option neither of apptainer exec nor of docker run; did you mean --writable-tmpfs\?"),
        (["--bind"], "opt: --bind: the value is missing"),
        (["--nv=1"], "opt: --nv: expected no value"),
        (["word"], "found a word without an option"),
    ],
)
def test_invalid_options_are_named(words: list[str], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        translate(words, "opt", _PROGRAM)
    assert not translate([], "opt", ContainerProgram("x", (), ())).own


def test_images_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (built,) = RUNTIME.check(request(None, folder=tmp_path, expected=EXPECTED))
    assert built.startswith(f"--runtime=apptainer cannot build {EXPECTED}: build it with docker and push it; pass ")
    (missing,) = RUNTIME.check(request(None, expected=EXPECTED))
    assert missing.startswith("--runtime=apptainer needs an image, and vendors/acme names none; pass --image=")
    (wrong,) = runtimes()["docker"].check(request("/images/torch.sif"))
    assert (
        wrong
        == "--image: Docker has no image '/images/torch.sif'; expected a name for docker pull, as in maker/pytorch:1"
    )


def test_notes_name_what_has_no_effect() -> None:
    wanted = replace(
        request("a/b", options=("--shm-size", "1g"), options_source="shm-size"), extension=Path("/v/acme/x-frame/csrc")
    )
    notes = RUNTIME.notes(wanted, "case")
    assert any("shm-size: --shm-size: no effect with apptainer exec" in note for note in notes)
    assert any("is built only into images of Docker" in note for note in notes)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:24.10-py3", "nvcr.io#nvidia/pytorch:24.10-py3"),
        ("registry:5000/pytorch", "registry:5000#pytorch"),
        ("nvidia/cuda:12", "nvidia/cuda:12"),
        ("docker://ubuntu", "ubuntu"),
        ("/images/torch.sqsh", "/images/torch.sqsh"),
    ],
)
def test_an_images_name_for_pyxis(image: str, expected: str) -> None:
    assert pyxis.image_of(image) == expected


def test_the_command_of_a_step_of_pyxis() -> None:
    image = Image(options=("-v", "/a:/b:ro", "--container-mounts=/c:/d", "--container-writable"))
    options = program_containers.options_of(image, pyxis._PROGRAM)
    container = pyxis.PyxisSpec(("srun", "--overlap"), "img", options)
    made = container.create(HOST, argv=["python3"], log_dir="/log", read_only=["/code"], devices=[0], labels={})
    mounts = "--container-mounts=/a:/b:ro,/c:/d,/log:/log,/code:/code:ro"
    command = ["srun", "--overlap", "--container-image=img", "--container-workdir=/log", mounts, "--container-writable"]
    assert made["argv"] == [*command, "python3"]


def test_problems_of_pyxis_are_named() -> None:
    assert PYXIS.check(request("a/b")) == []
    (image,) = PYXIS.check(request(None, expected=EXPECTED))
    assert image.startswith(f"--runtime=pyxis needs an image, and cannot build {EXPECTED}")
    (name,) = PYXIS.check(request("a/b", options=("--container-name=x",)))
    assert name == "container options: --container-name: each round has a container of its own"


def test_other_hosts_are_refused_and_the_reasons_of_pyxis_are_shown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="here: --runtime=pyxis needs --cluster=slurm; on other hosts use"):
        PYXIS.prepare(HOST, request("a/b"), print, pack({}))
    err = "slurmstepd: error: pyxis: failed to import\nslurmstepd: error: pyxis: [ERROR] 401\nsrun: error: task 0\n"
    assert pyxis._reasons(err) == "failed to import; [ERROR] 401"
    assert pyxis._reasons("Traceback") == ""
