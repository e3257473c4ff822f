"""``make gpu`` on a lent machine: no network, a fresh home, the site's PyTorch, a folder of wheels, and a SIGKILL."""

import ensurepip
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.items import read_result
from pytest_flagperf.catalog import Catalog
from tests import environments
from tests.own_places import REPO
from tests.processes import running
from tests.waiting import until

pytestmark = pytest.mark.slow

ITEMS = ("preflight", "bert-bf16-eager", "transformer-bf16-eager")
VERSION = "2.11.0+site"
"""The version of the site's PyTorch, which no suite requires."""
OFFLINE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Runs a program in a network namespace without a route."""
HARNESS = ("nvidia-ml-py", "orjson", "packaging", "pluggy", "psutil", "pytest", "pytest-html", "pytest-xdist")
"""What a run with ``--runtime=host`` needs."""
NOT_AT_THE_SITE = "sacremoses"
"""A package of the third item's suite, which comes from the folder of wheels."""


class Machine:
    """A checkout, a home, a Python with PyTorch and a folder of wheels, on a machine without a network."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.wheels, self.site = folder / "checkout", folder / "wheels", folder / "site"
        self.environment = {
            "PATH": f"{self.site}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder / "home"),
            **{name: os.environ[name] for name in os.environ if name.startswith(("FLAGPERF_LEASES", "FLAGPERF_TEST"))},
            "TMPDIR": os.environ["TMPDIR"],
        }
        (folder / "home").mkdir()
        copy_checkout(self.checkout)
        self.wheels.mkdir()
        make_wheel(make_site(self.site), self.wheels)
        for package in required(HARNESS):
            make_wheel(package, self.wheels)
        (pip,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
        shutil.copy(pip, self.wheels)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start make."""
        return subprocess.Popen(
            [*OFFLINE, "make", *words, f"WHEELS={self.wheels}"],
            cwd=self.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def done(self) -> list[str]:
        """Return the items that have a result."""
        return sorted(path.parent.name for path in self.checkout.glob("reports/gpu/*/*/result.json"))

    def trains(self, model: str) -> bool:
        """Return True if a rank of the model runs."""
        return any(f"{model}/pytorch/run_pretraining.py" in line for line in self.processes())

    def published(self) -> list[str]:
        """Return the items that are published in the state's folder, without their dates."""
        return sorted(path.parent.name[:-11] for path in self.checkout.glob("reports/gpu/*/publish/*/results.json"))

    def processes(self) -> list[str]:
        """Return the command lines of all processes of this machine: its PATH is its own."""
        return [process.line for process in running() if str(self.site) in process.environment.get("PATH", "")]


def copy_checkout(target: Path) -> None:
    """Clone this checkout with its uncommitted changes."""
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", REPO, target], check=True)
    tracked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(tracked, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (REPO / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, target / name)
    subprocess.run(["git", "reset", "-q"], cwd=target, check=True)


def make_site(folder: Path) -> Distribution:
    """Make a Python that has the suites' packages, but PyTorch as another version; return the package that it lacks."""
    catalog = Catalog.scan([REPO])
    python = Path(environments.build(catalog, catalog.suites["resnet50", "pytorch"]))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages, own = python.parent.parent / "lib" / version / "site-packages", folder / "lib" / version / "site-packages"
    for path in packages.iterdir():
        if path.name != "torch" and not path.name.startswith(("torch-", NOT_AT_THE_SITE)):
            (own / path.name).symlink_to(path)
    (own / "torch").mkdir()
    for path in (packages / "torch").iterdir():
        if path.name not in ("version.py", "__pycache__"):
            (own / "torch" / path.name).symlink_to(path)
    lines = (packages / "torch/version.py").read_text().splitlines()
    changed = [f"__version__ = {VERSION!r}" if line.startswith("__version__ = ") else line for line in lines]
    (own / "torch/version.py").write_text("\n".join(changed) + "\n")
    (own / f"torch-{VERSION}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n"
    (own / f"torch-{VERSION}.dist-info/METADATA").write_text(metadata)
    (missing,) = distributions(name=NOT_AT_THE_SITE, path=[str(packages)])
    return missing


def required(names: Sequence[str]) -> Iterator[Distribution]:
    """Yield the packages with all that they require."""
    left, seen = list(names), set()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            package = distribution(name)
            yield package
            lines = map(Requirement, package.requires or ())
            left += [line.name for line in lines if not line.marker or line.marker.evaluate({"extra": ""})]


def make_wheel(package: Distribution, folder: Path) -> None:
    """Pack an installed package."""
    files = [file for file in package.files or () if file.parts[0] != ".." and file.suffix != ".pyc"]
    (info,) = {file.parts[0] for file in files if file.parts[0].endswith(".dist-info")}
    tags = [line.split()[1] for line in (package.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-{tags[-1]}.whl", "w") as wheel:
        for file in files:
            wheel.write(str(file.locate()), str(file))


@pytest.mark.skipif(
    subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode != 0,
    reason="creating a network namespace is not allowed",
)
def test_a_lent_machine_is_measured_in_two_calls(tmp_path: Path) -> None:
    machine, command = Machine(tmp_path), ("gpu", "VENDOR=cpu", f"ITEMS={','.join(ITEMS)}")
    control = subprocess.run([*OFFLINE, "ip", "route"], capture_output=True, text=True, check=True)
    assert control.stdout == "", "the machine has a route"
    first = machine.start(*command)
    try:
        until(lambda: first.poll() is not None or machine.trains("transformer"), "the training of the third item", 300)
    finally:
        first.send_signal(signal.SIGKILL)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL, output
    until(lambda: not machine.processes(), "the end of all processes")
    finished = [*machine.checkout.glob("reports/gpu/*/transformer-bf16-eager/run*/results.json")]
    assert not finished, "the killed training went on to its end"
    assert machine.done() == ["bert-bf16-eager", "preflight"]
    assert machine.published() == ["cpu-bert-bf16-eager"]
    kept = {path: path.read_bytes() for path in machine.checkout.glob("reports/gpu/*/bert*/**/*.json")}

    second = machine.start(*command)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert f"Python of the ranks: {machine.site}/bin/python3 (PATH) with PyTorch {VERSION}" in output
    assert "bert-bf16-eager: pytest" not in output, "an item that is done does not run again"
    assert "transformer-bf16-eager: pytest" in output
    assert "all done\n" in output
    assert machine.published() == ["cpu-bert-bf16-eager", "cpu-transformer-bf16-eager"]
    assert kept == {path: path.read_bytes() for path in kept}
    (state,) = machine.checkout.glob("reports/gpu/CPU-*")
    assert state.name.endswith(f"-torch{VERSION}")
    result = read_result(state / "transformer-bf16-eager/result.json")
    assert result.figures["p_core"].value > 0
    assert [*Path(machine.environment["HOME"]).glob(".cache/pytest-flagperf/**/sacremoses")], (
        "from the folder of wheels"
    )
    assert result.machine["version torch"].startswith(f"{VERSION}, required ==")

    publish = machine.start("gpu-publish")
    output, _ = publish.communicate(timeout=300)
    assert publish.returncode == 0, output
    (place,) = machine.checkout.glob("reports/published/cpu-bert-bf16-eager-*")
    assert sorted(path.name for path in place.iterdir()) == ["item.json", "results.json"]
    for document, text in {
        "reports/published/README.md": "| CPU | transformer-bf16-eager | passed | p_core ",
        "suites/transformer/pytorch/README.md": f"transformer-bf16-eager-{place.name[-10:]}/results.json",
        "docs/support.md": "small scale measured",
    }.items():
        assert text in (machine.checkout / document).read_text(), document
        assert text not in (REPO / document).read_text(), document
