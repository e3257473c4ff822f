"""Suites and vendors of other roots: folders and installed packages."""

import io
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import Catalog, CatalogError, scan
from pytest_flagperf.engines.agents import environments as environments_module
from pytest_flagperf.engines.agents.environments import Environments
from pytest_flagperf.hooks.roots import installed_roots
from pytest_flagperf.hosts import Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.runtime import Interpreter, OnProgress, host_module
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored.plan import Deviation
from tests.helpers.plugin_packages import Site
from tests.helpers.trees import tree, write, write_config, write_suite, write_vendor

Install = Callable[..., Path]


def plan_of(case: Case, **more: Any) -> Any:
    return SimpleNamespace(case=case, further_suite="", replay={}, vendor="acme", **more)


ROOT = """
@hookimpl
def flagperf_roots():
    return [{root}]
"""


@pytest.fixture
def install(site: Site) -> Install:
    """Install a plugin with a root, its own folder unless another is given."""
    return lambda root="Path(__file__).parent": site.install(ROOT.format(root=root))


def catalog_of(root: Path, *roots: object) -> Catalog:
    return scan(read_settings({"roots": [str(each) for each in roots]}, root, root), installed_roots())


def test_a_package_provides_suites_and_vendors(tmp_path: Path, install: Install) -> None:
    tree(tmp_path / "tree")
    package = install()
    write_suite(package, "other")
    assert set(catalog_of(tmp_path / "tree").suites) == {("toy", "pytorch"), ("other", "pytorch")}
    write_vendor(package, "made")
    catalog = catalog_of(tmp_path / "tree")
    assert set(catalog.vendors) == {"acme", "made"}
    assert catalog.packages[catalog.vendors["made"].root] == "made_maker 1.2"


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("Path(__file__).parent", "/site/made_maker contains neither vendors/<vendor>/vendor.toml nor suites/"),
        ("str(Path(__file__).parent / 'nowhere')", "/site/made_maker/nowhere contains neither"),
        ("1 / 0", "flagperf_roots() raised ZeroDivisionError: division by zero"),
    ],
)
def test_an_invalid_root_names_the_package(tmp_path: Path, install: Install, root: str, message: str) -> None:
    install(root=root)
    with pytest.raises(Problems) as caught:
        catalog_of(tmp_path)
    assert str(caught.value).startswith("the installed made_maker 1.2: flagperf_roots()")
    assert message in str(caught.value)
    assert str(caught.value).endswith("; fix or uninstall the package")


def test_elsewhere_no_plugin_runs(install: Install, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(root="1 / 0")
    pytester.makepyfile("def test_it(): pass")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0
    asked = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--vendor=cpu")
    assert asked.ret == pytest.ExitCode.USAGE_ERROR
    asked.stderr.fnmatch_lines(["*the installed made_maker 1.2: flagperf_roots() raised*"])


def test_the_same_vendor_in_two_roots_is_reported_with_both_and_the_fix(tmp_path: Path, install: Install) -> None:
    tree(tmp_path / "tree")
    write_vendor(tmp_path / "other", "acme")
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path / "tree", tmp_path / "other")
    assert str(caught.value) == (
        f"vendor acme exists twice: {tmp_path}/tree/vendors/acme and {tmp_path}/other/vendors/acme; remove"
        " one of the folders or roots"
    )
    package = install()
    write_vendor(package, "acme")
    with pytest.raises(CatalogError, match=r"acme \(of made_maker 1\.2\); remove .*, or uninstall the package$"):
        catalog_of(tmp_path / "tree")


def test_a_suite_outside_the_checkout_uses_the_vendors_of_the_checkout(tmp_path: Path) -> None:
    checkout, folder = tree(tmp_path / "checkout"), tmp_path / "folder"
    write_suite(folder, "mine")
    settings = read_settings({}, folder, tmp_path / "checkout")
    catalog = scan(settings, {}, tmp_path / "checkout" / "vendors")
    assert ({*catalog.suites}, catalog.vendors, catalog.replaced) == ({("mine", "pytorch")}, checkout.vendors, {})
    write_vendor(folder, "own")
    assert {*scan(settings, {}, tmp_path / "checkout").vendors} == {"own"}


@pytest.mark.parametrize("how", ["absolute", "relative", "linked root", "linked vendor"])
def test_hosts_get_a_vendor_of_another_root(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_suite(tmp_path / "tree")
    lab = tmp_path / "lab"
    write_vendor(lab)
    write_config(lab, 'note = "ours"\n')
    write(lab, "vendors/acme/probe.py", "COMMAND = ['acme-smi']\n")
    write(lab, "vendors/acme/toy-pytorch/extern/trainer_adapter.py", "")
    write(lab, "vendors/acme/toy-pytorch/config/environment_variables.sh", "export A=1\n")
    monkeypatch.chdir(tmp_path)
    given = {"absolute": str(lab), "relative": "tree/../lab", "linked root": "link", "linked vendor": "links"}[how]
    (tmp_path / "link").symlink_to(lab)
    (tmp_path / "links" / "vendors").mkdir(parents=True)
    (tmp_path / "links" / "vendors" / "acme").symlink_to(lab / "vendors" / "acme")
    settings = read_settings({"roots": [given], "vendor": "acme"}, tmp_path / "tree")
    catalog = scan(settings, {})
    case = Case.parse("toy:pytorch:X9:1:8:1")
    assert catalog.find(case, "acme", "reference") is not None
    plan = plan_of(case)
    code = Environments(settings, catalog).code(plan)
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(code.archive))) as archive:
        names = {name for name in archive.getnames() if name.startswith("vendors/")}
    below = "vendors/acme/toy-pytorch"
    assert names == {
        "vendors/acme/vendor.toml", "vendors/acme/probe.py", f"{below}/extern/trainer_adapter.py",
        f"{below}/config/config_X9x1x8.py", f"{below}/config/environment_variables.sh",
    }  # fmt: skip


def test_builds_are_listed_with_size_and_how_to_build_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in ("pytorch", "slow"):
        write_suite(tmp_path, framework=framework)
    catalog = tree(tmp_path)
    environments = Environments(read_settings({}, tmp_path), catalog)
    sizes = {"pytorch": "75 packages of 3,032 MB", "slow": "2 packages of unknown size"}
    fake: Any = SimpleNamespace(
        takes_python=False,
        uses_images=False,
        to_build=lambda _host, request, _code: sizes.get(request.framework, ""),
    )
    monkeypatch.setattr(environments_module, "runtimes", lambda: {"venv": fake})
    cases = [Case.parse(f"toy:{name}:X9:1:{cards}:1") for name in ("pytorch", "slow") for cards in (1, 8)]
    plans = [plan_of(case, runtime="venv") for case in cases]
    assert environments.to_build(plans, LocalHost()) == [
        "to build first: 2 environments: pytorch (75 packages of 3,032 MB), slow (2 packages of unknown size)",
        '-k "toy and pytorch" needs only the first of them',
    ]
    assert len(environments.to_build(plans[:2], LocalHost())) == 1
    sizes.clear()  # the control: a runtime that builds nothing
    assert environments.to_build(plans, LocalHost()) == []


def test_a_package_of_another_version_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    """``--plan`` and the preflight show the warning; preparing a round shows it only if they did not."""
    plans = []
    for model in ("toy", "two"):
        write(write_suite(tmp_path, model), "requirements.txt", "frame==1\n")
        plans.append(plan_of(Case.parse(f"{model}:pytorch:X9:1:1:1"), runtime="host"))
    site = Interpreter("/site/python", other_versions=(Deviation("frame", "2", "==1"), Deviation("grid", "3", "<3")))
    fake: Any = SimpleNamespace(
        takes_python=True, uses_images=False,
        look=lambda *_: site, prepare=lambda *_: site, is_unchanged=lambda *_: True,
    )  # fmt: skip
    monkeypatch.setattr(environments_module, "runtimes", lambda: {"host": fake})
    host = LocalHost()
    expected = [
        "warning: /site/python has frame 2; the suites require frame==1",
        "warning: /site/python has grid 3; the suites require grid<3",
    ]
    for first in (True, False):
        environments = Environments(read_settings({}, tmp_path), tree(tmp_path))
        assert not first or environments.warnings(plans, [host]) == expected
        for plan in plans:
            environments.interpreters(plan, [host])
        assert notes == ([] if first else [f"{line}\n" for line in expected])


@pytest.mark.parametrize(
    ("cause", "kind"),
    [(HostLost("h1: no connection"), MissingHosts), (HostError("h1: its disk is full"), Problems)],
)
def test_a_start_waits_for_hosts_that_do_not_answer_and_for_no_other_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: HostError, kind: type[Problems]
) -> None:
    def fail(*_: object, **__: object) -> dict[str, Any]:
        raise cause

    def prepare(host: Host, _: object, progress: OnProgress, code: Code) -> dict[str, Any]:
        return host_module.ask(host, code, "build", {}, timeout_s=9, shape={}, progress=progress)

    write_suite(tmp_path)
    fake = SimpleNamespace(takes_python=False, uses_images=False, prepare=prepare)
    monkeypatch.setattr(environments_module, "runtimes", lambda: {"host": fake})
    monkeypatch.setattr(host_module, "call_module", fail)
    environments = Environments(read_settings({}, tmp_path), tree(tmp_path))
    plan = plan_of(Case.parse("toy:pytorch:X9:1:1:1"), runtime="host", shape=Shape(1, 1))
    with pytest.raises(Problems) as raised:
        environments.interpreters(plan, [LocalHost()])
    assert type(raised.value) is kind


def test_a_dangling_link_is_reported(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    link = tmp_path / "vendors" / "acme" / "samples"
    link.symlink_to("nowhere")
    environments = Environments(read_settings({}, tmp_path), catalog)
    plan = plan_of(Case.parse("toy:pytorch:X9:1:8:1"))
    with pytest.raises(Problems, match=f"^{link}: No such file or directory; the whole folder is copied to the hosts$"):
        environments.code(plan)
