"""Settings: the command line overrides the file, the file overrides the defaults; all problems are reported at once."""

from pathlib import Path

import pytest

from pytest_flagperf.settings import (
    SettingsError,
    check_paths,
    check_unknown,
    find_root,
    read_settings,
    tree_root,
)
from tests.helpers.trees import set_options, write_vendor


def test_each_source_of_settings_overrides_the_one_below(tmp_path: Path) -> None:
    settings = read_settings({}, tmp_path)
    assert (settings.vendor, settings.repeat, settings.case) == ("cpu", 1, ())
    assert settings.reports == str(tmp_path / "reports")
    assert not settings.given("vendor")
    (tmp_path / "pyproject.toml").write_text('[tool.flagperf]\nvendor = "acme"\nrepeat = 3\ndata-dir = "/d"\n')
    settings = read_settings({"repeat": 5, "synthetic": None}, tmp_path)
    assert (settings.vendor, settings.repeat, settings.data_dir) == ("acme", 5, "/d")
    assert settings.sources["vendor"].endswith("pyproject.toml")
    assert settings.sources["repeat"] == "command line"
    (tmp_path / "flagperf.toml").write_text("synthetic = true\nignore-differences = true\n")
    settings = read_settings({"synthetic": False, "ignore_differences": None}, tmp_path)
    assert (settings.synthetic, settings.ignore_differences) == (False, True)
    assert settings.commanded("synthetic")
    (tmp_path / "pyproject.toml").write_text('[tool.flagperf]\nvendor = "one"\n')
    (tmp_path / "flagperf.toml").write_text('vendor = "two"\n')
    assert read_settings({}, tmp_path).vendor == "two"


def test_all_problems_of_a_file_are_reported_at_once_with_the_allowed_values(tmp_path: Path) -> None:
    (tmp_path / "flagperf.toml").write_text('vendr = "x"\nrepeat = "3"\nscale = "smal"\nsynthetic = 1\nset = "a=1"\n')
    with pytest.raises(SettingsError) as caught:
        read_settings({}, tmp_path)
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    assert "unknown setting 'vendr'; did you mean vendor?" in text
    assert "repeat = '3': expected a whole number" in text
    assert "expected one of reference, small; did you mean small?" in text
    assert "synthetic = 1: expected true or false" in text
    assert "set = 'a=1': expected a list of strings" in text


@pytest.mark.parametrize(
    "given", ["--lease=host", "--clear-caches", "--no-clear-caches", "--pip-source=https://u:p@h/simple"]
)
def test_a_setting_of_the_site_on_the_command_line_is_named_with_its_file(tmp_path: Path, given: str) -> None:
    name = given.partition("=")[0].replace("--no-", "--")
    for file, place in ((None, "{}/flagperf.toml"), ("pyproject.toml", "[tool.flagperf] of {}/pyproject.toml")):
        if file:
            (tmp_path / file).write_text("[tool.flagperf]\n")
        with pytest.raises(SettingsError) as caught:
            check_unknown([given], tmp_path)
        line = f"write {name[2:]} = ... in {place.format(tmp_path)}"
        assert str(caught.value) == f"{name} is a setting of flagperf.toml: {line}"


def test_options_of_other_plugins_are_ignored_and_a_files_value_is_shown_as_written(tmp_path: Path) -> None:
    check_unknown(["--flamegraph", "lease"], tmp_path)
    (tmp_path / "suites" / "glm").mkdir(parents=True)
    check_paths(["suites/glm::test", "suites/other", "none/glm"], tmp_path)
    with pytest.raises(SettingsError, match="suites/glmm::test: no such file or folder; did you mean glm"):
        check_paths(["suites/glmm::test"], tmp_path)
    set_options(tmp_path, container_opt=["--memory 1g", "-e A=1"], lease_time=2, nodes="1x1")
    settings = read_settings({"nodes": "1x2"}, tmp_path)
    file = tmp_path / "flagperf.toml"
    assert settings.as_written("container_opt") == f"{file}: container-opt = ['--memory 1g', '--env A=***']"
    assert settings.as_written("lease_time") == f"{file}: lease-time = 2"
    assert settings.as_written("nodes") == "--nodes=1x2"


def test_paths_are_relative_to_file_or_folder_and_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flagperf.toml").write_text('data-dir = "data"\ntest-conf = "conf.py"\npython = "bin/python"\n')
    in_file = read_settings({}, tmp_path, tmp_path / "elsewhere")
    assert in_file.data_dir == f"{tmp_path}/data"
    assert (in_file.test_conf, in_file.python) == (f"{tmp_path}/conf.py", f"{tmp_path}/bin/python")
    set_options(tmp_path, python="python3")
    commanded = {"data_dir": "data", "reports": "out", "case": ["a:b:c:1:1:1=../d", "e"]}
    message = read_settings(commanded, tmp_path, Path("/work dir"))
    assert (message.data_dir, message.reports, message.python) == ("/work dir/data", "/work dir/out", "python3")
    assert message.case == ("a:b:c:1:1:1=/work dir/../d", "e")
    assert read_settings({"data_dir": "~/d"}, tmp_path).data_dir == str(Path("~/d").expanduser())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert read_settings({"data_dir": "d"}, tmp_path).data_dir == f"{tmp_path}/here/d"
    with pytest.raises(SettingsError, match="--data-dir is empty"):
        read_settings({"data_dir": ""}, tmp_path)


def suite(root: Path) -> None:
    folder = root / "suites" / "toy" / "plain"
    folder.mkdir(parents=True)
    (folder / "suite.toml").touch()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vendor = \n", r"flagperf\.toml: not a TOML file"),
        ('vendor = "\udcff"\n', r"flagperf\.toml: not a TOML file: not UTF-8"),
        ("repeat = 0", r"repeat = 0 \(/.*/flagperf\.toml\): expected at least 1"),
        ("sample = 0.001", "sample"),
        ("sample = nan", "sample"),
        ("lease-time = -1", "lease-time"),
        ("cluster = 3", "cluster"),
        ('wheels = "wheels"', r"wheels = /.*/tree/wheels \(/.*/flagperf\.toml\): no such"),
        ('[price]\nper_hour = { X9 = -1 }\ncurrency = "EUR"', r"price.per_hour.X9 is -1; expected a number from 0"),
        ('[price]\nper_hour = { X9 = 2 }\ncurrency = " "', r"price.currency is .*; expected a text such as EUR"),
        ("roots = []", r"flagperf\.toml: roots = \[\]: expected a list with at least one folder"),
        ('roots = "."', r"flagperf\.toml: roots = '\.': expected a list"),
        ('roots = [".", "nope"]', r"flagperf\.toml: roots: /.*/nope: no such folder"),
        ('roots = [".."]', r"flagperf\.toml: roots: /.*/\.\.: this folder contains neither vendors/<vendor>/vendor"),
        ('roots = ["suites"]', r"roots: /.*/suites: expected the folder above vendors/ or suites/: /.*/tree$"),
    ],
)
def test_an_invalid_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    suite(tmp_path / "tree")
    (tmp_path / "tree" / "flagperf.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match=message):
        read_settings({}, tmp_path / "tree")


def test_resume_may_pass_the_tree_itself_as_a_root(tmp_path: Path) -> None:
    """The tree may contain no suites and no vendors if a package and another root provide them."""
    write_vendor(tmp_path / "one")
    (tmp_path / "tree").mkdir()
    first = read_settings({"roots": ["one"]}, tmp_path / "tree", tmp_path)
    assert read_settings({"roots": list(first.roots)}, tmp_path / "tree", tmp_path).roots == first.roots


def test_the_command_lines_roots_are_added(tmp_path: Path) -> None:
    suite(tmp_path / "tree")
    write_vendor(tmp_path / "one")
    write_vendor(tmp_path / "two")
    given = {"roots": ["one", str(tmp_path / "tree")]}
    assert read_settings(given, tmp_path / "tree", tmp_path).roots == (f"{tmp_path}/tree", f"{tmp_path}/one")
    (tmp_path / "tree" / "flagperf.toml").write_text('roots = [".", "../two"]')
    assert read_settings(given, tmp_path / "tree", tmp_path).roots == tuple(
        f"{tmp_path}/{each}" for each in ("tree", "tree/../two", "one")
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nope", r"--roots=/.*/nope: no such folder"),
        ("", r"--roots is empty: expected a path"),
        ("one/vendors", r"expected the folder above vendors/ or suites/: /.*/one$"),
    ],
)
def test_an_invalid_root_of_the_command_line_is_reported(tmp_path: Path, given: str, message: str) -> None:
    write_vendor(tmp_path / "one")
    with pytest.raises(SettingsError, match=message):
        read_settings({"roots": [given]}, tmp_path, tmp_path)


def test_an_invalid_pyproject_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool]\nflagperf = "x"\n')
    with pytest.raises(SettingsError, match=r"tool\.flagperf: expected a table, \[tool\.flagperf\], got a string"):
        read_settings({}, tmp_path)


@pytest.mark.parametrize("mark", ["suites/toy/plain/suite.toml", "flagperf.toml", "pyproject.toml"])
def test_the_tree_is_the_nearest_folder_upwards_with_suites_or_settings(tmp_path: Path, mark: str) -> None:
    below = tmp_path / "suites" / "toy" / "plain"
    below.mkdir(parents=True)
    assert find_root(below) is None
    (tmp_path / mark).write_text("[tool.flagperf]\n")
    assert find_root(below) == find_root(tmp_path) == tmp_path


def test_options_make_pytests_root_a_tree_and_files_of_other_projects_are_never_read(tmp_path: Path) -> None:
    assert tree_root(tmp_path, {"vendor": None, "plan": None}) is None
    assert tree_root(tmp_path, {"vendor": None, "repeat": 0}) == tmp_path
    (tmp_path / "pyproject.toml").write_bytes(b"\xff = [")
    assert tree_root(tmp_path, {}) is None
    (tmp_path / "pyproject.toml").write_text('dependencies = ["pytest-flagperf"]\n')
    assert tree_root(tmp_path, {}) is None


def test_hosts_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "flagperf.toml").write_text('cluster = "h1,h2"\n')
    settings = read_settings({}, tmp_path)
    assert (settings.cluster, settings.cluster_table) == ("h1,h2", None)
    assert read_settings({"cluster": "h3"}, tmp_path).cluster == "h3"
