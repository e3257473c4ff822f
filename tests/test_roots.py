"""Suites and vendors of other roots: folders and installed packages."""

from __future__ import annotations

import io
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, CatalogError, scan
from pytest_flagperf.catalog.roots import installed
from pytest_flagperf.commands import main
from pytest_flagperf.engines.agents.environments import Environments
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import read_settings

from .trees import tree, write, write_config, write_suite, write_vendor

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with an entry point into a folder; importing its package fails."""
    site = tmp_path / "site"

    def put(value: str, package: str = "made_maker", init: str = "raise SystemExit('imported')\n") -> Path:
        write(site, f"{package}-1.2.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        write(site, f"{package}-1.2.dist-info/entry_points.txt", f"[flagperf_roots]\nmade = {value}\n")
        write(site, f"{package}/__init__.py", init)
        monkeypatch.syspath_prepend(site)
        return site / package

    return put


def catalog_of(root: Path, *roots: object) -> Catalog:
    return scan(read_settings({"roots": [str(each) for each in roots]}, root, root))


# -- installed packages --------------------------------------------------------------------------------------


def test_a_package_provides_a_vendor_and_is_not_imported(tmp_path: Path, install: Install) -> None:
    tree(tmp_path / "tree")
    package = install("made_maker")
    write_vendor(package, "made")
    catalog = catalog_of(tmp_path / "tree")
    assert set(catalog.vendors) == {"acme", "made"}
    assert catalog.packages[catalog.vendors["made"].root] == "made_maker 1.2"
    assert "made_maker" not in sys.modules


@pytest.mark.parametrize("value", ["made_maker.inner.data", "made_maker.place:ROOT", "made_maker.place:Where.text"])
def test_an_entry_point_may_name_a_folder_in_a_package_or_a_path(tmp_path: Path, install: Install, value: str) -> None:
    package = install(value, init="")
    write(package, "place.py", "from pathlib import Path\nROOT = Path(__file__).parent / 'inner' / 'data'\n")
    with (package / "place.py").open("a") as file:
        file.write("class Where:\n    text = str(ROOT)\n")
    write_vendor(package / "inner" / "data", "made")
    try:
        assert installed() == {(package / "inner" / "data").resolve(): "made_maker 1.2"}
    finally:
        for name in [name for name in sys.modules if name.startswith("made_maker")]:
            del sys.modules[name]


def test_a_package_may_provide_suites_only(tmp_path: Path, install: Install) -> None:
    write_suite(install("made_maker"), "other")
    tree(tmp_path / "tree")
    assert set(catalog_of(tmp_path / "tree").suites) == {("toy", "pytorch"), ("other", "pytorch")}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package", "package 'no_such_package' not found"),
        ("", "package '' not found"),
        (".", "package '' not found"),
        ("made_maker", "/site/made_maker contains neither vendors/<vendor>/vendor.toml nor suites/"),
        ("made_maker.nowhere", "/site/made_maker/nowhere contains neither"),
        ("made_maker.broken:ROOT", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("made_maker.number:ROOT", "got 3; expected the path of a folder"),
        ("made_maker.number:ROOTS", "cannot be imported: AttributeError: module 'made_maker.number' has no attribute"),
        ("tarfile", "tarfile is a single module; expected a package, or module:attribute"),
    ],
)
def test_a_broken_entry_point_is_a_sentence_that_names_the_distribution(
    install: Install, value: str, message: str
) -> None:
    package = install(value, init="")
    write(package, "broken.py", "import no_such_module\n")
    write(package, "number.py", "ROOT = 3\n")
    with pytest.raises(CatalogError) as caught:
        installed()
    assert str(caught.value).startswith(f"the installed made_maker 1.2: entry point made = {value!r} of flagperf_")
    assert message in str(caught.value)
    assert str(caught.value).endswith("; fix or uninstall the package")
    for name in [name for name in sys.modules if name.startswith("made_maker")]:
        del sys.modules[name]


def test_a_run_elsewhere_never_reads_packages(
    install: Install, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = install("no_such_package")
    pytester.makepyfile("def test_it(): pass")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0
    asked = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--vendor=cpu")
    assert asked.ret == pytest.ExitCode.USAGE_ERROR
    asked.stderr.fnmatch_lines(["*the installed made_maker 1.2: entry point made*"])


# -- duplicates ----------------------------------------------------------------------------------------------


def test_the_same_vendor_in_two_roots_is_reported_with_both_and_the_fix(tmp_path: Path, install: Install) -> None:
    tree(tmp_path / "tree")
    write_vendor(tmp_path / "other", "acme")
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path / "tree", tmp_path / "other")
    assert str(caught.value) == (
        f"vendor acme exists twice: {tmp_path}/tree/vendors/acme and {tmp_path}/other/vendors/acme; remove"
        " one of the folders or roots"
    )
    package = install("made_maker")
    write_vendor(package, "acme")
    with pytest.raises(CatalogError, match=r"acme \(of made_maker 1\.2\); remove .*, or uninstall the package$"):
        catalog_of(tmp_path / "tree")


# -- commands ------------------------------------------------------------------------------------------------


def test_list_shows_the_origin_of_a_vendor(
    tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    tree(tmp_path / "tree")
    assert main(["list", str(tmp_path / "tree")]) == 0
    assert "from" not in capsys.readouterr().out
    write_vendor(install("made_maker"), "made")
    write_vendor(tmp_path / "lab", "mine")
    assert main(["list", str(tmp_path / "tree"), "--roots", str(tmp_path / "lab")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:5] for line in lines if line and line[0] in ("acme", "made", "mine")] == [
        ["acme", "Acme", "reference", "X9", "(up"],
        ["made", "Acme", "reference", "made_maker", "1.2"],
        ["mine", "Acme", "reference", f"{tmp_path}/lab", "X9"],
    ]


def test_the_commands_find_the_current_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path)
    monkeypatch.chdir(tmp_path / "vendors" / "acme")
    assert main(["list"]) == 0
    assert "toy:pytorch" in capsys.readouterr().out


# -- files on hosts ------------------------------------------------------------------------------------------


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
    catalog = scan(settings)
    case = Case.parse("toy:pytorch:X9:1:8:1")
    assert catalog.find(case, "acme", "reference") is not None
    plan = cast("Any", SimpleNamespace(case=case))
    code = Environments(settings, catalog).code(plan, catalog.vendors["acme"])
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(code.archive))) as archive:
        names = {name for name in archive.getnames() if name.startswith("vendors/")}
    below = "vendors/acme/toy-pytorch"
    assert names == {
        "vendors/acme/vendor.toml",
        "vendors/acme/probe.py",
        f"{below}/extern/trainer_adapter.py",
        f"{below}/config/config_X9x1x8.py",
        f"{below}/config/environment_variables.sh",
    }


def test_a_dangling_link_is_reported(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    link = tmp_path / "vendors" / "acme" / "samples"
    link.symlink_to("nowhere")
    environments = Environments(read_settings({}, tmp_path), catalog)
    plan = cast("Any", SimpleNamespace(case=Case.parse("toy:pytorch:X9:1:8:1")))
    with pytest.raises(Problems, match=f"^{link}: No such file or directory; the whole folder is copied to the hosts$"):
        environments.code(plan, catalog.vendors["acme"])
