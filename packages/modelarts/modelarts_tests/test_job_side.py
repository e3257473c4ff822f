"""The job's side: orders with placeholders, the instance's place, the script before the start, and packages."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelarts_tests.service import ModelArts
from modelarts_tests.test_service import settings
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.problems import Problems
from pytest_flagperf_modelarts.account import open_cloud
from pytest_flagperf_modelarts.config import ModelArtsConfig
from pytest_flagperf_modelarts.instances import InstanceChannel
from pytest_flagperf_modelarts.job import conversation, orders
from pytest_flagperf_modelarts.job.instance import InstanceError, this_instance
from pytest_flagperf_modelarts.obs_path import ObsFolder
from pytest_flagperf_modelarts.package import code_files, packages_of
from tests.helpers.trees import write

CONFIG = ModelArtsConfig(code=ObsFolder("bench", "code/"), output=ObsFolder("bench", "out/"))


def test_placeholders_are_replaced_in_all_texts() -> None:
    order = {"a": [f"{orders.CODE}/x", 1, None], "b": {"c": f"{orders.LOGS}:{orders.host(1)}"}, "d": True}
    values = {orders.CODE: "/code", orders.LOGS: "/logs", orders.host(1): "10.0.0.2", orders.host(10): "no"}
    assert orders.filled(order, values) == {"a": ["/code/x", 1, None], "b": {"c": "/logs:10.0.0.2"}, "d": True}


def test_a_signal_while_an_order_is_written_sends_its_own_order_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()

    class Stdin:
        """Calls the signal's handler when half of an order is written."""

        def fileno(self) -> int:
            return writer

        def write(self, line: bytes) -> None:
            os.write(writer, line[:5])
            if b"start" in line:
                agent.stop("SIGTERM")
            os.write(writer, line[5:])

        def flush(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(stdin=Stdin()))
    agent = conversation.Conversation(lambda _: None)
    agent.send({"op": "start"})
    agent.stop("SIGTERM")
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert [json.loads(line)["op"] for line in lines] == ["start", "stop", "stop"]


def test_another_code_in_the_code_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "boot.py").write_bytes(b"boot")
    orders.check_code(tmp_path, {"boot.py": orders.checksum(b"boot")})
    with pytest.raises(orders.OrdersError, match=r"another run uses the same code folder; different: boot.py, gone"):
        orders.check_code(tmp_path, {"boot.py": orders.checksum(b"other"), "gone": "0"})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "instances": [{}]}'])
def test_invalid_orders_are_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "orders.json"
    file.write_text(text)
    with pytest.raises(orders.OrdersError):
        orders.read_orders(file)
    with pytest.raises(orders.OrdersError, match="cannot be read"):
        orders.read_orders(tmp_path / "missing.json")


def test_the_instance_is_found_by_the_variables_of_either_interface(tmp_path: Path) -> None:
    assert this_instance(1, True, {}) == (0, ["127.0.0.1"])
    new = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "a.ma-job, b.ma-job"}
    assert this_instance(2, True, new) == (1, ["a.ma-job", "b.ma-job"])
    assert this_instance(2, True, {"DLS_TASK_INDEX": "0", "BATCH_CUSTOM0_HOSTS": "a:6666,b:6666"}) == (0, ["a", "b"])
    table = tmp_path / "rank_table.json"
    servers = [{"server_id": "10.0.0.1"}, {"server_id": "x", "container_ip": "10.0.0.2"}]
    table.write_text(json.dumps({"server_count": "2", "server_list": servers}))
    old = {"BATCH_TASK_INDEX": "1", "RANK_TABLE_FILE": str(table)}
    assert this_instance(2, True, old) == (1, ["10.0.0.1", "10.0.0.2"])
    assert this_instance(2, False, {"VC_TASK_INDEX": "1"}) == (1, ["127.0.0.1"])
    for bad in ({}, {"VC_TASK_INDEX": "2"}, {"VC_TASK_INDEX": "0"}, {**old, "RANK_TABLE_FILE": "/missing"}):
        with pytest.raises(InstanceError):
            this_instance(2, True, bad)


def test_the_script_installs_packages_and_exports_variables(tmp_path: Path) -> None:
    packages, tools, code = tmp_path / "packages", tmp_path / "tools", tmp_path / "code"
    for name in ("a-1.0-py3-none-any.whl", "my toolkit_linux-aarch64.run", "README.txt"):
        write(packages, name, "")
    conf = replace(CONFIG, packages=str(packages), glog_level=3, device_log_level=1, environment={"TEXT": "a 'b' $c"})
    files = code_files(conf, pack({}))
    assert {"run/a-1.0-py3-none-any.whl", "run/my toolkit_linux-aarch64.run", "boot.py", "code.tar.gz"} < files.keys()
    assert "run/README.txt" not in files
    script = files["ma-pre-start.sh"]
    assert isinstance(script, bytes)
    write(code, "ma-pre-start.sh", script.decode())
    for tool in ("pip", "sudo"):
        text = f'#!/bin/sh\necho {tool} "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/fail-{tool} ]\n'
        write(tools, tool, text).chmod(0o755)
    shell = f". {code}/ma-pre-start.sh; echo $GLOG_v $ASCEND_GLOBAL_LOG_LEVEL $ASCEND_GLOBAL_EVENT_ENABLE $TEXT"

    def run() -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-c", shell], env=env, capture_output=True, text=True, check=False)

    assert run().stdout == "3 1 0 a 'b' $c\n"
    installer = f"{code}/run/my toolkit_linux-aarch64.run"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"pip install {code}/run/a-1.0-py3-none-any.whl",
        f"sudo chmod +x {installer}",
        f"sudo {installer} --upgrade",
    ]
    for tool, words in (("sudo", "'my toolkit_linux-aarch64.run' could not"), ("pip", "the wheels could not be inst")):
        (tmp_path / f"fail-{tool}").touch()
        failed = run()
        assert failed.returncode == 1
        assert words.strip("'")[:20].replace("'", "") in failed.stderr


def test_packages_of_two_architectures_are_refused(tmp_path: Path) -> None:
    for name in ("a-1.0-cp39-cp39-linux_x86_64.whl", "toolkit_linux-aarch64.run"):
        (tmp_path / name).touch()
    with pytest.raises(Problems, match="packages for several architectures"):
        packages_of(replace(CONFIG, packages=str(tmp_path)))
    (tmp_path / "toolkit_linux-aarch64.run").unlink()
    assert [path.name for path in packages_of(replace(CONFIG, packages=str(tmp_path)))] == [
        "a-1.0-cp39-cp39-linux_x86_64.whl"
    ]


def test_messages_are_taken_once_from_a_log_that_grows(modelarts: ModelArts, tmp_path: Path) -> None:
    job: Any = SimpleNamespace(obs=open_cloud(settings(modelarts)).obs)
    channel = InstanceChannel(job, 0, "instance0")
    channel.log_file = tmp_path / "log" / "a.log"

    def received(content: bytes) -> list[str]:
        modelarts.write("/bench/out/log", content)
        channel.synchronize(CONFIG.output, "log")
        return [str(channel.receive(0.0)["sentence"]) for _ in range(len(channel._messages))]  # type: ignore[index]

    def line(number: int, text: str) -> bytes:
        return b'[flagperf] %d {"type": "warning", "sentence": "%s"}\n' % (number, text.encode())

    first, second, third = line(1, "first"), line(2, "second"), line(3, "third")
    assert received(b"") == []
    assert received(b"[ModelArts Service Log] start\n" + first + second[:20]) == ["first"]
    assert received(b"[ModelArts Service Log] start\n" + first + second) == ["second"]
    assert received(first + second) == []  # the log was started again
    assert received(first + second + third + b"[flagperf] x {}\n[flagperf] 4 {\n[flagperf] 5 []\n") == ["third"]
    assert (tmp_path / "log" / "a.log").read_bytes().startswith(b"[ModelArts Service Log]")
