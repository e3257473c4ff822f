"""An environment is built once for a run, before its cases wait for devices; a failed build is not repeated."""

from collections.abc import Iterator

import pytest

from flagperf_driver.node.device_lease import owner, take
from tests.helpers.package_index import PackageIndex, package_index
from tests.helpers.trees import set_options
from tests.runtime.test_runtime import write_wheel

from .conftest import Toy

pytestmark = pytest.mark.slow


@pytest.fixture
def index(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The package index of the toy environment, without the settings of this machine."""
    for name in ("UV_FIND_LINKS", "UV_NO_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    write_wheel(toy.root / "index" / "simple" / "frame", "frame", "1.0")
    with package_index(toy.root / "index") as made:
        set_options(toy.root, runtime="venv", pip_source=made.url("simple"))
        yield made


def require(toy: Toy, line: str) -> None:
    for model in ("alpha", "beta"):
        (toy.root / "suites" / model / "plain" / "requirements.txt").write_text(f"{line}\n")


def test_a_failed_build_fails_all_tests_and_is_tried_once(toy: Toy, index: PackageIndex) -> None:
    require(toy, "frame==3.0")
    result = toy.run("suites", "-n2")
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert outcomes["failed" if "failed" in outcomes else "errors"] >= 4
    junit = (toy.runs[0] / "junit.xml").read_text() if toy.runs else result.stdout.str()
    assert junit.count("could not be built: uv pip failed with exit code 1") >= 4
    assert "all of them: " in junit
    once = index.times("simple", "frame")
    toy.run("suites", "-k", "alpha and CPU:1:1", "--maxfail=1")  # the control: one test of another run
    assert index.times("simple", "frame") == 2 * once


def test_a_build_does_not_wait_for_devices_that_another_process_holds(toy: Toy, index: PackageIndex) -> None:
    require(toy, "frame==1.0")
    held = take(8, candidates=range(8), whole_host=True, owner=owner(case="another"), directory=toy.root / "leases")
    assert held is not None
    going = toy.start("suites/alpha", "--nodes=1x1")
    try:
        going.wait_for(lambda: "is held by pid" in going.text, "that it waits", 120)
        # The case waits for its device, and its environment is built.
        assert list((toy.root / "cache" / "venv").glob("plain-*/complete.json"))
        assert not list(toy.root.glob("reports/run*/*/round1/plan.json"))
    finally:
        held.release()
    assert going.wait() == 0, going.text
