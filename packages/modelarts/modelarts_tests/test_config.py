"""The table [engines.modelarts], ais-bench's files, and the keys."""

import logging
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf.problems import Problems
from pytest_flagperf.settings.options import SiteTable
from pytest_flagperf_modelarts.cloud_job import CloudJob
from pytest_flagperf_modelarts.config import ModelArtsConfig, read_config
from pytest_flagperf_modelarts.engine import ModelArtsEngine
from pytest_flagperf_modelarts.keys import ACCESS, SECRET, Keys, read_keys
from pytest_flagperf_modelarts.obs_path import ObsFolder
from tests.helpers.rounds import tiny_plan

GOOD: dict[str, Any] = {
    "region": "cn-north-4", "project": "0123456789abcdef", "code": "obs://bench/code/", "output": "obs://bench/out/",
    "framework": "Engine", "framework_version": "1.0", "flavor": "kat1.8xlarge",
}  # fmt: skip
CONFIG = """
from easydict import EasyDict as ed
access_config = ed({
    "access_key": "AKOFTHEFILE", "secret_access_key": "SECRETOFTHEFILE", "server": "https://obs.cn-central-221.example",
    "region_name": "cn-central-221", "project_id": "0123",
    "iam_endpoint": "https://iam.example", "obs_endpoint": "https://obs.example",
    "modelarts_endpoint": "https://modelarts.example",
})
session_config = ed({
    "hyperparameters": [{"label": "epoch_size", "value": "90"}], "inputs": "/bench/data/", "code_dir": "/bench/code/",
    "boot_file": "/bench/code/train.py", "job_name": "aisbench-debug", "framework_type": "Engine",
    "framework_version": "1.0", "pool_id": None, "train_instance_type": "kat1.8xlarge", "train_instance_count": 2,
    "nas_type": None, "out_base_url": "/bench/out/", "job_description_prefix": "my description",
})
"""


def config(tmp_path: Path, **more: Any) -> ModelArtsConfig:
    table = {name: value for name, value in {**GOOD, **more}.items() if value is not None}
    return read_config(SiteTable(table, tmp_path / "flagperf.toml"))


def problems(tmp_path: Path, **more: Any) -> list[str]:
    with pytest.raises(Problems) as caught:
        config(tmp_path, **more)
    return [problem.removeprefix(f"{tmp_path}/flagperf.toml: ") for problem in caught.value.problems]


def test_without_a_table_an_example_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problems, match=r"toml: no table \[engines.modelarts\]; the README of"):
        read_config(SiteTable({}, tmp_path / "flagperf.toml"))


def test_the_readme_has_a_valid_table(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    tables = [tomllib.loads(text)["engines"]["modelarts"] for text in blocks]
    assert len(tables) == 2
    (tmp_path / "packages").mkdir()
    (tmp_path / "centre.pem").touch()
    table = SiteTable({**tables[0], "keys": "centre.pem"}, tmp_path / "flagperf.toml")
    assert read_config(table).instances == 2
    assert tables[1] == {"original": "code/config"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"pool": "pool1"}, "engines.modelarts: pool and flavor are both set; a job runs in one pool"),
        ({"flavor": None}, "engines.modelarts: set pool for a dedicated pool, or flavor for the public pool"),
        ({"code": "bench/code"}, "engines.modelarts.code is 'bench/code'; expected obs://BUCKET/FOLDER/ or /BUCKET"),
        ({"code": "obs://bench/"}, "engines.modelarts.code = obs://bench/: expected a folder in the bucket; files"),
        ({"data": "/bench/code/data"}, "obs://bench/code/data/: is in the code folder obs://bench/code"),
        ({"output": None}, "engines.modelarts.output: missing; expected obs://BUCKET/FOLDER/"),
        ({"job_name": "a b"}, "engines.modelarts.job_name is 'a b'; expected 1 to 40 letters, digits, _ and -"),
        ({"obs_endpoint": "https://obs.example"}, "engines.modelarts: obs_endpoint is set without modelarts_endpoint"),
        ({"obs_endpoint": "obs.example"}, "expected http:// or https:// with a host and nothing else"),
        ({"obs_endpoint": "https://me:secret@obs.example"}, "expected http:// or https:// with a host and no"),
        ({"glog_level": 4}, "expected one of 0 INFO, 1 WARNING, 2 ERROR, 3 FATAL"),
        ({"instances": 2, "cards": 4}, "instances = 2 with cards = 4: ModelArts connects only instances of 8 cards"),
        ({"flavour": "x"}, "engines.modelarts.flavour: unknown setting; did you mean flavor?"),
        (
            {"environment": {"MA_X": "1"}},
            "'MA_X': expected a variable's name that does not start with MA_",
        ),
        ({"addresses": {"obs.example": "nowhere"}}, "expected a table of host names with IP addresses"),
        ({"packages": "missing"}, "folder not found"),
        ({"project": None, "region": None}, "engines.modelarts: set region, or the endpoints of a computing centre"),
        ({"instances": 0}, "engines.modelarts.instances is 0; expected a whole number from 1 to 10000"),
        ({"poll": 60}, "engines.modelarts.poll is 60; expected a number of seconds from 0.05 to 45"),
        ({"image": "me/image:1", "version": "v1"}, "engines.modelarts: image requires version = 'v2'"),
        ({"framework": None}, "engines.modelarts: set framework and framework_version for an image of ModelArts"),
    ],
)
def test_a_bad_table_is_a_clear_problem(tmp_path: Path, more: dict[str, Any], expected: str) -> None:
    found = problems(tmp_path, **more)
    assert any(expected in problem for problem in found), found
    assert not any("secret@" in problem for problem in found)


def test_an_old_release_is_a_note(tmp_path: Path) -> None:
    assert config(tmp_path, release="21.9.0").without_effect == ()
    (note,) = config(tmp_path, release="20.12").without_effect
    assert "jobs were verified with ModelArts 21.9.0 and later only" in note


def original(tmp_path: Path, text: str = CONFIG, shell: str = "") -> ModelArtsConfig:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "modelarts_config.py").write_text(text)
    (tmp_path / "config" / "config.sh").write_text(shell)
    (tmp_path / "config.json").write_text('{"Tester": {"tester_server_ip": "127.0.0.1", "tester_server_port": "9527"}}')
    return read_config(SiteTable({"original": "config"}, tmp_path / "flagperf.toml"))


def test_the_original_files_are_read(tmp_path: Path) -> None:
    shell = "export PYTHON_COMMAND=python3.7\nexport SINGLESERVER_MODE=True  # alone\nexport X=$(rm -rf /)\n"
    conf = original(tmp_path, shell=shell)
    assert (conf.version, conf.single_server, conf.instances, conf.cards) == ("v1", True, 2, 8)
    assert (conf.code, conf.data) == (ObsFolder("bench", "code/"), ObsFolder("bench", "data/"))
    assert (conf.job_name, conf.flavor, conf.pool) == ("aisbench-debug", "kat1.8xlarge", "")
    assert (conf.endpoint("obs"), conf.endpoint("modelarts")) == ("https://obs.example", "https://modelarts.example")
    notes = "\n".join(conf.without_effect)
    assert "session_config.hyperparameters has no effect" in notes
    assert "session_config.boot_file has no effect" in notes
    assert "PYTHON_COMMAND=python3.7: pytest runs with the Python that started it" in notes
    assert "tester_server_ip, tester_server_port: no effect" in notes
    assert conf.read_keys({}) == Keys("AKOFTHEFILE", "SECRETOFTHEFILE")
    assert conf.read_keys({ACCESS: "a", SECRET: "b"}) == Keys("a", "b")


def test_the_shell_file_selects_the_interface(tmp_path: Path) -> None:
    text = CONFIG.replace("session_config =", "session_config_v2 =")
    assert original(tmp_path, text, "export MODELARTS_VERSION=V2\n").version == "v2"
    with pytest.raises(Problems, match="session_config not found"):
        original(tmp_path, text)
    with pytest.raises(Problems, match="MODELARTS_VERSION=v9: expected V1 or V2"):
        original(tmp_path, text, "export MODELARTS_VERSION=V9\n")


def test_only_all_three_endpoints_have_an_effect(tmp_path: Path) -> None:
    conf = original(tmp_path, CONFIG.replace('"iam_endpoint": "https://iam.example",', '"iam_endpoint": "",').replace(
        '"server": "https://obs.cn-central-221.example",', '"server": "",'
    ))  # fmt: skip
    assert conf.endpoint("modelarts") == "https://modelarts.cn-central-221.myhuaweicloud.com"
    assert any("has an effect only if all of" in note for note in conf.without_effect)


@pytest.mark.parametrize(
    "line",
    [
        "import os\nos.system('touch ran')",
        "access_config = ed(dict(access_key=open('/etc/passwd').read()))",
        "for name in ():\n    pass",
        "session_config = ed([1])",
    ],
)
def test_the_original_files_are_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problems) as caught:
        original(tmp_path, CONFIG + line)
    assert "expected" in str(caught.value)
    assert "SECRETOFTHEFILE" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_keys_come_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n{ACCESS}=AKOFTHEFILE\nexport {SECRET}='SECRETOFTHEFILE'\n")
    file.chmod(0o644)
    with pytest.raises(Problems, match=r"other users can read the keys \(mode 644\); run chmod 600"):
        read_keys(file, {})
    file.chmod(0o600)
    assert read_keys(file, {}) == Keys("AKOFTHEFILE", "SECRETOFTHEFILE")
    assert read_keys(file, {ACCESS: "a", SECRET: "b"}) == Keys("a", "b")
    with pytest.raises(Problems, match=f"the environment: {SECRET} not found"):
        read_keys(file, {ACCESS: "a"})
    with pytest.raises(Problems, match=f"no keys: set {ACCESS} and {SECRET}, or keys = FILE"):
        read_keys(None, {})


@pytest.mark.parametrize(
    "text", ["SECRETVALUE", "AK: SECRETVALUE", f"{ACCESS}=SECRETVALUE", f"{ACCESS}=a b\n{SECRET}=x"]
)
def test_a_bad_key_file_is_not_quoted(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(Problems) as caught:
        read_keys(file, {})
    assert "SECRETVALUE" not in str(caught.value)
    assert "a b" not in str(caught.value)


def test_no_key_is_in_a_text_of_the_objects(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys("AKOFTHEFILE", "SECRETOFTHEFILE", "TOKENOFTHEFILE")
    conf = original(tmp_path)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger().debug("%s %r %s", keys, keys, conf)
    assert not any(word in caplog.text for word in ("AKOFTHEFILE", "SECRETOFTHEFILE", "TOKENOFTHEFILE"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("obs://bench/a/b/", ObsFolder("bench", "a/b/")),
        ("s3://bench/a", ObsFolder("bench", "a/")),
        ("/bench", ObsFolder("bench", "")),
        ("bench/a", None),
        ("obs://B/a", None),
        ("/bench/a/../b", None),
        ("/bench/a//b", None),
        ("https://bench/a", None),
    ],
)
def test_places_in_obs_are_parsed(text: str, expected: ObsFolder | None) -> None:
    assert ObsFolder.parse(text) == expected


def test_orders_are_not_removed_while_another_job_copies_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path))
    removed: list[str] = []
    obs = SimpleNamespace(delete=lambda _, keys: removed.extend(keys))
    cloud: Any = SimpleNamespace(config=config(tmp_path), obs=obs)
    job = CloudJob(cloud, "job1", ["h1"], together=True)
    job._finish("the end")
    assert removed == []
    job._hold_code()
    job._finish("the end")
    job._release_code()
    assert removed == ["code/orders/job1.json"]


def test_a_start_on_fewer_hosts_has_fewer_instances() -> None:
    engine: Any = SimpleNamespace(_config=SimpleNamespace(single_server=False))
    plan = replace(tiny_plan(nnodes=4), nnodes=3)
    assert ModelArtsEngine._rounds_of_job(engine, plan, 1, Path("round1"))[0].instances == range(3)
