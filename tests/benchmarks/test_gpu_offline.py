"""``make gpu`` on a lent machine: no network, a fresh home, the site's PyTorch, a folder of wheels, and a SIGKILL."""

import os
import signal
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from benchmarks.items import read_result
from pytest_flagperf.catalog import Catalog
from tests import environments
from tests.helpers.processes import running
from tests.helpers.waiting import until
from tests.helpers.walk import copy_checkout
from tests.own_places import REPO

pytestmark = pytest.mark.slow

ITEMS = ("preflight", "bert-bf16-eager", "transformer-bf16-eager")
VERSION = "2.11.0+site"
"""The version of the site's PyTorch, which no suite requires."""
OFFLINE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Runs a program in a network namespace without a route."""
PYTHON = "{}.{}".format(*sys.version_info)
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
            **{name: os.environ[name] for name in ("TMPDIR", "PIP_COMPILE")},
        }
        (folder / "home").mkdir()
        subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", REPO, self.checkout], check=True)
        copy_checkout(self.checkout)
        subprocess.run(["git", "reset", "-q"], cwd=self.checkout, check=True)
        make_site(self.site)
        self._fetch_wheels(folder / "installed.txt")

    def _fetch_wheels(self, installed: Path) -> None:
        """Fill the folder of wheels as at home, where a package index is."""
        freeze = [f"{package.name}=={package.version}" for package in distributions(path=[str(packages_of(self.site))])]
        installed.write_text("\n".join(freeze))
        words = ["-k", "transformer and pytorch and not swin", f"--python-version={PYTHON}", f"--installed={installed}"]
        command = [sys.executable, "-m", "pytest_flagperf", "wheels", str(self.wheels), *words]
        subprocess.run(command, cwd=self.checkout, check=True)
        assert [*self.wheels.glob(f"{NOT_AT_THE_SITE}-*.whl")]

    def start(self, *words: str) -> subprocess.Popen[str]:
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
        return any(f"{model}/pytorch/run_pretraining.py" in line for line in self.processes())

    def published(self) -> list[str]:
        return sorted(path.parent.name[:-11] for path in self.checkout.glob("reports/gpu/*/publish/*/results.json"))

    def processes(self) -> list[str]:
        """Return the command lines of all processes of this machine: its PATH is its own."""
        return [process.line for process in running() if str(self.site) in process.environment.get("PATH", "")]


def packages_of(environment: Path) -> Path:
    return environment / "lib" / f"python{PYTHON}" / "site-packages"


def make_site(folder: Path) -> None:
    """Make a Python that has the suites' packages but one, and PyTorch as another version."""
    catalog = Catalog.scan([REPO])
    python = Path(environments.build(catalog, catalog.suites["resnet50", "pytorch"]))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages, own = packages_of(python.parent.parent), packages_of(folder)
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


def can_leave_the_network() -> bool:
    try:
        return subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_lent_machine_is_measured_in_two_calls(tmp_path: Path) -> None:
    if not can_leave_the_network():
        pytest.skip("a network namespace cannot be created here: it needs root, unshare and ip")
    machine, command = Machine(tmp_path), ("gpu", "VENDOR=cpu", f"ITEMS={','.join(ITEMS)}")
    control = subprocess.run([*OFFLINE, "ip", "route"], capture_output=True, text=True, check=True)
    assert control.stdout == "", "the machine has a route"
    first = machine.start(*command)
    try:
        until(lambda: first.poll() is not None or machine.trains("transformer"), "the training of the third item", 900)
    finally:
        first.send_signal(signal.SIGKILL)
    output, _ = first.communicate(timeout=300)
    assert first.returncode == -signal.SIGKILL, output
    until(lambda: not machine.processes(), "the end of all processes", 300)
    finished = [*machine.checkout.glob("reports/gpu/*/transformer-bf16-eager/run*/results.json")]
    assert not finished, "the killed training went on to its end"
    assert machine.done() == ["bert-bf16-eager", "preflight"]
    assert machine.published() == ["cpu-bert-bf16-eager"]
    kept = {path: path.read_bytes() for path in machine.checkout.glob("reports/gpu/*/bert*/**/*.json")}

    second = machine.start(*command)
    output, _ = second.communicate(timeout=900)
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
    assert [*Path(machine.environment["HOME"]).glob(".cache/pytest-flagperf/**/sacremoses")]
    assert result.machine["version torch"].startswith(f"{VERSION}, required ==")

    publish = machine.start("gpu-publish")
    output, _ = publish.communicate(timeout=900)
    assert publish.returncode == 0, output
    (place,) = machine.checkout.glob("reports/published/cpu-bert-bf16-eager-*")
    assert sorted(path.name for path in place.iterdir()) == ["SHA256SUMS", "item.json", "results.json"]
    for document, text in {
        "reports/published/README.md": "| CPU | transformer-bf16-eager | passed | p_core ",
        "suites/transformer/pytorch/README.md": f"transformer-bf16-eager-{place.name[-10:]}/results.json",
        "docs/support.md": "small scale measured",
    }.items():
        assert text in (machine.checkout / document).read_text(), document
        assert text not in (REPO / document).read_text(), document
