"""pyxis: the image's name, the command of a step, and clear errors; tests/lab has the containers."""

from pathlib import Path

import pytest

from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.runtime import Image, RuntimeRequest, RuntimeSetupError, program_containers, pyxis, runtimes

RUNTIME = runtimes()["pyxis"]


def request(image: str | None, *options: str) -> RuntimeRequest:
    spec = Image(image=image, image_source="--image", expected="vendors/acme/images/frame/Dockerfile", options=options)
    return RuntimeRequest("frame", image=spec)


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
def test_an_images_name(image: str, expected: str) -> None:
    assert pyxis.image_of(image) == expected


def test_the_command_of_a_step() -> None:
    image = Image(options=("-v", "/a:/b:ro", "--container-mounts=/c:/d", "--container-writable"))
    options = program_containers.options_of(image, pyxis._PROGRAM)
    container = pyxis.PyxisSpec(("srun", "--overlap"), "img", options)
    made = container.create(
        LocalHost("here"), argv=["python3"], log_dir="/log", read_only=["/code"], devices=[0], labels={}
    )
    mounts = "--container-mounts=/a:/b:ro,/c:/d,/log:/log,/code:/code:ro"
    command = ["srun", "--overlap", "--container-image=img", "--container-workdir=/log", mounts, "--container-writable"]
    assert made["argv"] == [*command, "python3"]


def test_problems_are_named() -> None:
    assert RUNTIME.check(request("a/b")) == []
    (image,) = RUNTIME.check(request(None))
    assert image.startswith("--runtime=pyxis needs an image, and cannot build vendors/acme/images/frame/Dockerfile")
    (name,) = RUNTIME.check(request("a/b", "--container-name=x"))
    assert name == "container options: --container-name: each round has a container of its own"


def test_other_hosts_are_refused_and_the_reasons_of_pyxis_are_shown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="here: --runtime=pyxis needs --cluster=slurm; on other hosts use"):
        RUNTIME.prepare(LocalHost("here"), request("a/b"), print, pack({}))
    err = "slurmstepd: error: pyxis: failed to import\nslurmstepd: error: pyxis: [ERROR] 401\nsrun: error: task 0\n"
    assert pyxis._reasons(err) == "failed to import; [ERROR] 401"
    assert pyxis._reasons("Traceback") == ""
