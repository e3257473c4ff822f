"""The runtime of a case where venv is the vendor's: an environment, or an installed Python without an index."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.engines import Engine
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.problems import Problems
from pytest_flagperf.running import auto_runtime
from pytest_flagperf.running.auto_runtime import AutoRuntime, with_chosen
from pytest_flagperf.running.resume import save_options
from pytest_flagperf.running.run import runtime_of
from pytest_flagperf.runtime import RuntimeRequest
from pytest_flagperf.runtime.venv import Unavailable
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored.layout import OPTIONS
from tests.helpers.rounds import Elsewhere
from tests.helpers.trees import tree, write, write_suite


class Choice:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, host: LocalHost, **options: Any) -> None:
        for framework in ("pytorch", "slow"):
            write(write_suite(root, framework=framework), "requirements.txt", f"{framework}==1\n")
        self.built: set[str] = set()
        self.asked: list[str] = []
        self.answer = Unavailable()
        self.catalog = tree(root)
        engine = cast("Engine", SimpleNamespace(hosts=(host,), host_count=1))
        self.settings = read_settings(options, root)
        self.auto = AutoRuntime(self.settings, self.catalog, engine)
        venv = SimpleNamespace(exists=lambda _, request: request.framework in self.built, unavailable=self.unavailable)
        monkeypatch.setattr(auto_runtime, "VENV", venv)

    def unavailable(self, _host: LocalHost, request: RuntimeRequest, _code: object) -> Unavailable:
        self.asked.append(request.framework)
        return self.answer

    def of(self, framework: str, cards: int = 1) -> str:
        case = Case.parse(f"toy:{framework}:X9:1:{cards}:1")
        return self.auto.choose(cast("Any", SimpleNamespace(case=case, vendor=self.catalog.vendor("acme"))))


@pytest.fixture
def choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choice:
    return Choice(tmp_path, monkeypatch, LocalHost())


def test_an_environment_that_exists_or_can_be_built_is_used_silently(choice: Choice) -> None:
    choice.built = {"slow"}
    assert (choice.of("slow"), choice.asked) == ("venv", [])
    assert (choice.of("pytorch"), choice.of("pytorch", 2), choice.asked) == ("venv", "venv", ["pytorch"])
    assert list(choice.auto.reasons) == []


def test_without_an_index_that_answers_it_is_asked_once_and_an_existing_environment_is_used(choice: Choice) -> None:
    choice.answer = Unavailable("cannot fetch from https://packages.test", of_all=True)
    assert (choice.of("pytorch"), choice.asked) == ("host", ["pytorch"])
    choice.built = {"slow"}
    assert (choice.of("slow"), choice.of("pytorch")) == ("venv", "host")
    choice.auto._chosen.clear()
    choice.built = set()
    assert (choice.of("slow"), choice.asked) == ("host", ["pytorch"])
    (line,) = choice.auto.reasons
    assert line.startswith("runtime host, an installed Python, because no environment can be built: cannot fetch from")


def test_a_folder_that_lacks_one_framework_may_have_another(choice: Choice) -> None:
    choice.answer = Unavailable("the folder has no frame")
    assert choice.of("pytorch") == "host"
    choice.answer = Unavailable()
    assert choice.of("slow") == "venv"


def test_a_choice_on_request_is_reported_and_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Choice(tmp_path, monkeypatch, LocalHost(), runtime="auto")
    assert (asked.of("pytorch"), *asked.auto.reasons) == (
        "venv",
        "runtime venv: its environment exists or can be built",
    )
    away = Choice(tmp_path, monkeypatch, Elsewhere("h1"), runtime="auto")
    with pytest.raises(Problems, match=r"--runtime=auto chooses on this machine only; .* --runtime=venv or"):
        away.of("pytorch")
    away = Choice(tmp_path, monkeypatch, Elsewhere("h1"))
    assert (away.of("pytorch"), away.asked) == ("venv", [])


def test_a_given_python_is_used_without_asking_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Choice(tmp_path, monkeypatch, LocalHost(), python=sys.executable)
    assert (given.of("pytorch"), given.asked) == ("host", [])
    assert [*given.auto.reasons] == [f"runtime host, because of --python={sys.executable}"]
    absent = Choice(tmp_path, monkeypatch, LocalHost(), python="/nope/python")
    with pytest.raises(Problems, match=r"--python=/nope/python: expected a Python of this machine"):
        absent.of("pytorch")


def test_only_a_vendors_venv_is_chosen_anew(tmp_path: Path) -> None:
    for given, of_vendor, expected in ((None, "venv", "auto"), (None, "host", "host"), ("venv", "venv", "venv")):
        selected = cast("Any", SimpleNamespace(vendor=SimpleNamespace(toml=SimpleNamespace(runtime=of_vendor))))
        assert runtime_of(read_settings({"runtime": given}, tmp_path), selected) == expected


def test_a_run_that_continues_another_has_its_runtime(tmp_path: Path) -> None:
    settings = read_settings({}, tmp_path)
    for chosen, stored in (({"host"}, "host"), (set(), None), ({"host", "venv"}, None)):
        save_options(tmp_path, with_chosen(settings, chosen), [])
        assert json.loads((tmp_path / OPTIONS).read_text()).get("runtime") == stored
