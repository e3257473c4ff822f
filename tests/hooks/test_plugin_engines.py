"""Engines of plugins: their names, their tables in flagperf.toml, and errors that name the package."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.open_engine import open_engine
from pytest_flagperf.hooks.plugins import _load
from pytest_flagperf.problems import Problems
from pytest_flagperf.running import kept_logs
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored import WriteError
from tests.helpers.plugin_packages import Site
from tests.helpers.trees import tree

ENGINE = """
from pytest_flagperf.commands import main
from pytest_flagperf.engines import Engine
from pytest_flagperf.problems import Problems
from pytest_flagperf.stored import WriteError

class Lab(Engine):
    hosts = ()
    def describe(self, plan, convergence="", duration=()):
        return str(self.table)
    def interpreter(self, plan):
        raise WriteError(28, "full")
    def run(self, plan, number, directory, wait_s):
        return 1 / 0

def open_lab(settings, catalog, table):
    {body}

@hookimpl
def flagperf_engines():
    return [EngineFactory({name!r}, open_lab)]
"""
OPEN = "engine = Lab(); engine.table = dict(table.table); return engine"


def opened(root: Path, toml: str = "", **options: Any) -> Engine:
    (root / "flagperf.toml").write_text(toml)
    settings = read_settings({"engine": "lab", **options}, root)
    return open_engine(settings, tree(root), root)


def problem(root: Path, toml: str = "", **options: Any) -> str:
    with pytest.raises(Problems) as caught:
        opened(root, toml, **options)
    return str(caught.value)


def test_an_engine_gets_its_table_and_has_defaults(site: Site, tmp_path: Path) -> None:
    site.install(ENGINE.format(body=OPEN, name="lab"))
    engine: Any = opened(tmp_path, "[engines.lab]\nqueue = 'a'\n[engines.other]\nx = 1\n")
    assert engine.describe(None) == "{'queue': 'a'}"
    assert opened(tmp_path).describe(None) == "{}"  # type: ignore[arg-type]
    assert (engine.host_count, engine.leave_out({}), engine.header()) == (0, {}, [])
    assert engine.prepare([]) == engine.inspect([]) == engine.notes(None, None, "") == []
    assert [engine.check(None), engine.end_replay(None, 1, tmp_path), engine.close()] == [None] * 3
    assert (engine.resume(tmp_path), engine.fetch_late_logs([])) == (False, [])


def test_an_exception_of_a_running_engine_names_the_package_but_our_own_errors_stay(site: Site, tmp_path: Path) -> None:
    package = site.install(ENGINE.format(body=OPEN, name="lab"))
    engine: Any = opened(tmp_path)
    with pytest.raises(Problems) as caught:
        engine.run(None, 1, tmp_path, None)
    line = next(at for at, text in enumerate((package / "__init__.py").read_text().splitlines(), 1) if "1 / 0" in text)
    assert str(caught.value) == (
        "the installed made_maker 1.2: engine lab: run raised ZeroDivisionError: division by zero"
        f" ({package}/__init__.py:{line}); fix or uninstall the package"
    )
    with pytest.raises(WriteError):
        engine.interpreter(None)
    (tmp_path / "options.json").write_text('{"engine": "lab"}')
    with pytest.raises(Problems, match="--fetch-logs: the hosts of --engine=lab keep no logs"):
        next(kept_logs.fetch(tmp_path, (), tmp_path))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", "engine lab raised ZeroDivisionError: division by zero ("),
        ("return 3", "engine lab: int lacks hosts, host_count, leave_out, header, check, notes, describe"),
        ("raise Problems([f'{table.file}: [engines.lab]: no queue'])", "flagperf.toml: [engines.lab]: no queue"),
    ],
)
def test_an_engine_that_cannot_be_opened_is_reported(site: Site, tmp_path: Path, body: str, message: str) -> None:
    site.install(ENGINE.format(body=body, name="lab"))
    assert message in problem(tmp_path)


def test_unknown_engines_and_tables_are_reported(site: Site, tmp_path: Path) -> None:
    assert problem(tmp_path) == "--engine=lab: unknown engine; choose from agents, slurm"
    assert problem(tmp_path, engine="agent") == "--engine=agent: unknown engine; did you mean agents?"
    site.install(ENGINE.format(body=OPEN, name="lab"))
    assert problem(tmp_path, "engine = 'labs'", engine=None).endswith("'labs': unknown engine; did you mean lab?")
    assert problem(tmp_path, engine="x") == "--engine=x: unknown engine; choose from agents, lab, slurm"
    assert problem(tmp_path, "[engines.labs]\n") == (
        f"{tmp_path}/flagperf.toml: [engines.labs]: unknown engine; did you mean lab?"
    )
    assert problem(tmp_path, "[engines.labs]\n", engine="agents").endswith(
        "[engines.labs]: unknown engine; did you mean lab?"
    )
    assert problem(tmp_path, "[engines.agents]\n", engine="agents") == (
        f"{tmp_path}/flagperf.toml: [engines.agents]: the table of this engine is [cluster]"
    )
    assert problem(tmp_path, cluster="h1") == "--cluster=h1: only --engine=agents runs on the hosts of this option"
    assert problem(tmp_path, "[engines]\nlab = 3\n") == (
        f"{tmp_path}/flagperf.toml: engines.lab: expected a table, [engines.lab]; got a number"
    )
    assert problem(tmp_path, "engines = 3\n").endswith("engines: expected tables [engines.NAME]; got a number")


def test_an_engine_sets_options_that_nobody_set(site: Site, tmp_path: Path) -> None:
    code = ENGINE.format(body="return Lab()", name="lab").replace("open_lab)]", "open_lab, {'runtime': 'host'})]")
    site.install(code)
    for given, runtime, source in ((None, "host", "--engine=lab"), ("docker", "docker", "command line")):
        settings = read_settings({"engine": "lab", "runtime": given}, tmp_path)
        assert (settings.runtime, settings.sources["runtime"]) == (runtime, source)
    del sys.modules["made_maker"]
    site.install(code.replace("'runtime'", "'run_time'"))
    assert "engine lab: defaults raised KeyError: 'run_time'" in problem(tmp_path)


def test_a_package_that_is_not_installed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = (
        "pip install packages/modelarts in a checkout, or the wheel that make wheel builds there; it has"
        " --engine=modelarts, the table [engines.modelarts] and the"
        " command flagperf-modelarts"
    )
    assert problem(tmp_path, engine="modelarts") == f"--engine=modelarts: {advice}"
    assert problem(tmp_path, "[modelarts]\nproject = 'x'\n") == f"{tmp_path}/flagperf.toml: [modelarts]: {advice}"
    assert main(["modelarts", "stop"]) == 2
    assert capsys.readouterr().err == f"flagperf: modelarts is a package of its own; {advice}\n"


def test_without_the_package_of_an_engine_the_others_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_flagperf.hooks.plugins._own_points", lambda: ())
    _load.cache_clear()
    assert problem(tmp_path, cluster="slurm", engine=None) == "--cluster=slurm: unknown engine; choose from agents"
    assert opened(tmp_path, "[slurm]\n", engine=None).host_count == 1
    _load.cache_clear()
