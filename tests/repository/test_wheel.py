"""The wheel contains the suites and the vendors, and runs them in any folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog, framework_of
from tests.helpers.trees import write, write_suite
from tests.helpers.walk import copy_checkout

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[2]
BUNDLED = "pytest_flagperf/bundled"
CACHES = (
    ".mypy_cache/3.11/x.json", "suites/glm/.mypy_cache/x.json", "suites/__pycache__/a.cpython-311.pyc",
    "tests/.pytest_cache/v/x", ".ruff_cache/x", "build/lib/x.py", "dist/x.whl", "reports/run20260101000000/report.html",
    ".venv/bin/python", "pytest_flagperf.egg-info/PKG-INFO",
)  # fmt: skip


class Wheel:
    """The wheel and the sdist of this checkout, and the installed files of the wheel."""

    def __init__(self, folder: Path) -> None:
        self.source, self.dist, self.site = folder / "source", folder / "dist", folder / "site"
        self.tracked = copy_checkout(self.source)
        for name in CACHES:
            write(self.source, name, "left by a tool")
        (self.source / ".gitignore").unlink()  # without .gitignore, the build must exclude these files itself
        build = [sys.executable, "-m", "hatchling", "build", "-d", str(self.dist)]
        subprocess.run(build, cwd=self.source, capture_output=True, check=True)
        (self.wheel,) = self.dist.glob("*.whl")
        (self.sdist,) = self.dist.glob("*.tar.gz")
        with zipfile.ZipFile(self.wheel) as archive:
            self.names = sorted(archive.namelist())
            archive.extractall(self.site)

    def below(self, *folders: str) -> list[str]:
        return [name for name in self.tracked if name.startswith(tuple(f"{folder}/" for folder in folders))]

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.site), "COLUMNS": "200"}
        environment["PYTEST_ADDOPTS"] = "-p no:hypothesispytest"
        argv = [sys.executable, "-m", *words]
        return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    def tests(self, folder: Path, *arguments: str) -> list[str]:
        done = self.run(folder, "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return Wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_the_wheel_and_the_sdist_contain_what_belongs_to_them(wheel: Wheel) -> None:
    code = wheel.below("pytest_flagperf", "flagperf_driver")
    for name in ("compare", "export", "list", "page", "scaffold", "serving", "slurm", "submission", "wheels"):
        packed = wheel.below(f"packages/{name}/pytest_flagperf_{name}")
        code += [file.removeprefix(f"packages/{name}/") for file in packed]
    data = [f"{BUNDLED}/{name}" for name in wheel.below("suites", "vendors") if "/tests/" not in name]
    assert [name for name in wheel.names if ".dist-info/" not in name] == sorted(code + data)
    assert f"{BUNDLED}/suites/common/language/wikipedia-cc-by-sa-3.0.txt.xz" in wheel.names
    assert f"{BUNDLED}/vendors/cpu/vendor.toml" in wheel.names
    with tarfile.open(wheel.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("packages", "tests", "benchmarks", "tools", "docs", "docsite", "reports")
    listed = wheel.below("pytest_flagperf", "flagperf_driver", "suites", "vendors", *folders)
    documents = {"README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"}
    assert names == {*listed, *documents, "Makefile", "conftest.py", "pyproject.toml", "PKG-INFO"}


PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = sorted(
    (name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)),
    key=lambda version: int(version.partition(".")[2]),
)
"""The supported versions, the lowest first."""


def supported() -> dict[str, tuple[str, str]]:
    """Return the lowest and the highest Python of each framework, from docs/frameworks.md."""
    lines = (REPO / "docs" / "frameworks.md").read_text(encoding="utf-8").splitlines()
    table = {cells[1].strip(): cells[2:-1] for line in lines if line.startswith("|") and (cells := line.split("|"))}
    names = [name.strip().lower().replace(" ", "") for name in table[""]]
    ranges = [cell.strip().partition(" to ") for cell in table["Python"]]
    return {name: (lowest, highest) for name, (lowest, _, highest) in zip(names, ranges, strict=True)}


def interpreter(version: str, *, strict: bool) -> str:
    """Return the path of an installed Python, which a version manager's shim may lack; without one skip, or fail."""
    named = [path] if (path := shutil.which(f"python{version}")) else []
    managed = Path(os.environ.get("PYENV_ROOT", "/none")).glob(f"versions/{version}.*/bin/python")
    for program in (*named, *map(str, sorted(managed))):
        if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    missing = f"no Python {version}: install it, for example with uv python install {version}"
    if strict:
        pytest.fail(missing)
    pytest.skip(missing)


def resolves(requirements: str, version: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header", f"--python-version={version}", "-"]
    return subprocess.run(argv, input=requirements, capture_output=True, text=True, check=False)


def test_the_documents_and_the_project_name_the_same_versions() -> None:
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert set(supported()) == {framework_of(suite) for suite in Catalog.scan([REPO]).suites.values()}
    assert {lowest for lowest, _ in supported().values()} == {VERSIONS[0]}
    assert max(highest for _, highest in supported().values()) == VERSIONS[-1]
    for name in ("README.md", "README.zh.md", "docs/index.md", "docs/index.zh.md"):
        assert re.findall(r"Python >= (3\.\d+)", (REPO / name).read_text(encoding="utf-8")) == [VERSIONS[0]], name


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(supported()))
def test_the_suites_packages_exist_for_the_lowest_and_the_highest_python(framework: str) -> None:
    files = REPO.glob(f"suites/*/{framework}/requirements.txt")
    requirements = "\n".join(sorted({line for file in files for line in file.read_text(encoding="utf-8").splitlines()}))
    for version in supported()[framework]:
        done = resolves(requirements, version)
        assert done.returncode == 0, f"Python {version}: {done.stderr}"
    below = resolves(requirements, "3.10")  # the control
    assert "Python>=3.11" in below.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_the_wheel_installs_and_plans_with_the_lowest_and_the_highest_python(
    wheel: Wheel, empty: Path, version: str, request: pytest.FixtureRequest
) -> None:
    place = empty / "venv"
    uv = [sys.executable, "-m", "uv"]
    python = interpreter(version, strict=bool(request.config.getini("strict")))
    commands: tuple[list[str | Path], ...] = (
        [*uv, "venv", "-q", f"--python={python}", place],
        [*uv, "pip", "install", "-q", f"--python={place}", wheel.wheel],
        [place / "bin" / "flagperf", "list"],
        [place / "bin" / "python", "-m", "pytest", "suites", "-k", "resnet50 and pytorch and 1x1", "--plan"],
    )
    for argv in commands:
        done = subprocess.run(argv, cwd=empty, capture_output=True, text=True, check=False)
        assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout + done.stderr
    assert "resnet50:pytorch:CPU:1:1:1" in done.stdout


@pytest.mark.slow
def test_a_folder_without_suites_has_the_tests_of_a_checkout(wheel: Wheel, empty: Path) -> None:
    arguments = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-q", "-p", "no:cacheprovider"]
    ours = subprocess.run(arguments, cwd=REPO, capture_output=True, text=True, check=True).stdout
    before = files(wheel.site / BUNDLED)
    tests = wheel.tests(empty, "suites")
    assert tests == [line for line in ours.splitlines() if "::" in line]
    assert any(test.startswith("suites/glm/test_glm.py::TestGlm::test_converges[glm:pytorch:CPU:1:1") for test in tests)
    assert wheel.tests(empty, tests[0]) == tests[:1]  # a node id can be passed
    assert models(wheel.tests(empty, "./suites/glm")) == {"glm"}
    assert files(wheel.site / BUNDLED) == before
    assert list(empty.iterdir()) == []


def files(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_new_vendor_works_with_the_wheels_vendors(wheel: Wheel, empty: Path) -> None:
    made = wheel.run(empty, "pytest_flagperf", "new-vendor", "made", "--hw=M1", "--suite=glm:pytorch", "--nodes=1x1")
    assert made.returncode == 0, made.stderr
    assert (empty / "vendors" / "made" / "glm-pytorch" / "config" / "config_M1x1x1.py").is_file()
    for vendor, hw in (("made", "M1"), ("cpu", "CPU")):
        tests = wheel.tests(empty, "suites/glm", f"--vendor={vendor}", "--nodes=1x1", "--scale=small")
        assert any(f"[glm:pytorch:{hw}:1:1:1" in test for test in tests)
    again = wheel.run(empty, "pytest_flagperf", "new-vendor", "nvidia", "--hw=M1")
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.slow
def test_own_suites_work_with_the_wheels_suites(wheel: Wheel, empty: Path) -> None:
    write_suite(empty)
    write(
        empty,
        "suites/toy/test_toy.py",
        "from pytest_flagperf.benchmark import TrainingBenchmark\n\n\nclass TestToy(TrainingBenchmark):\n    pass\n",
    )
    assert models(wheel.tests(empty, "suites", "--nodes=1x1")) == {"toy"}  # a path that exists is that path
    assert models(wheel.tests(empty, "suites/glm", "--nodes=1x1")) == {"glm"}
    assert models(wheel.tests(empty, "suites", "suites/glm", "--nodes=1x1")) == {"toy", "glm"}
    done = wheel.run(empty, "pytest_flagperf", "list")
    assert "toy:pytorch" in done.stdout
    assert "glm:pytorch" in done.stdout


def models(tests: list[str]) -> set[str]:
    return {test.partition("[")[2].partition(":")[0] for test in tests}


def test_starting_imports_no_large_package() -> None:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_flagperf.plugin"}
    environment, folder = {**os.environ, **alone}, REPO / "suites"  # not below tests/, whose conftest imports psutil
    for words in ("-m pytest --help", "-m pytest_flagperf --help", "-m pytest . --collect-only"):
        argv = [sys.executable, "-X", "importtime", *words.split()]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True, env=environment)
        modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        assert "pytest_flagperf" in modules
        assert not modules & {"pandas", "numpy", "pyarrow", "psutil", "torch", "xdist", "docker", "fabric"}


def test_only_our_first_module_is_compiled_at_each_start(tmp_path: Path) -> None:
    code = (
        "import pytest, sys; pytest.main(['--collect-only'])\nfor name in ('bytecode', 'session'):\n"
        "    print(type(sys.modules[f'pytest_flagperf.plugin.{name}'].__loader__).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["AssertionRewritingHook", "SourceFileLoader"], done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("torch_python")
def test_a_new_environment_with_only_the_wheel_trains_and_reports(wheel: Wheel, empty: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    venv.create(installed, with_pip=True)
    pip = [str(installed / "bin" / "pip"), "install", "-qqq", "--disable-pip-version-check", str(wheel.wheel)]
    subprocess.run(pip, check=True, cwd=tmp_path)
    site = next(installed.glob("lib/python3*/site-packages/pytest_flagperf"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before = files(site / "bundled")
    pytest_ = [str(installed / "bin" / "pytest"), "suites", "-k", "resnet50:pytorch", "--nodes=1x1", "-n1"]
    done = subprocess.run(pytest_, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (empty / "reports").glob("run*")
    for name in ("report.html", "junit.xml", "results.csv"):
        assert (run / name).is_file()
    results: dict[str, Any] = json.loads((run / "results.json").read_text())
    assert [case["case"] for case in results["cases"]] == ["resnet50:pytorch:CPU:1:1:1"]
    words = ["suites", "-k", "resnet50:pytorch", "-n", "1", "--nodes=1x1"]
    assert results["run"]["command"] == words
    plan = json.loads((run / "resnet50_pytorch_CPU_1_1_1" / "round1" / "plan.json").read_text())
    assert "commit" not in plan.get("checkout", {})
    assert files(site / "bundled") == before
    show = [str(installed / "bin" / "flagperf"), "show", str(run)]
    shown = subprocess.run(show, cwd=empty, env=environment, capture_output=True, text=True, check=True).stdout
    assert "resnet50 1x1" in shown
