"""Faults of ranks, containers and engines on hosts: the messages, and that nothing is left."""

import json
import re
import shlex
from contextlib import suppress

from tests.helpers.trees import write
from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy, assert_nothing_left

_SLOW = "--set=step_s=0.3"


def test_what_an_engine_that_stays_away_keeps_is_reported_and_removed_by_the_next_run(cluster: ClusterToy) -> None:
    cluster.hosts = cluster.hosts[:1]
    cluster.use_docker(nodes="1x1")
    host = cluster.hosts[0]
    going = cluster.start("-k", "converges", _SLOW)
    going.wait_for(lambda: cluster.trains(host), "the training")
    host.kill_dockerd()
    assert going.wait() == 0, going.text
    assert re.search(r"h1: container \w+ remains until the next run on this host removes it: no process", cluster.page)
    host.docker()
    assert len(host.containers()) == 1
    output = cluster.passed()
    assert re.search(r"leftovers: a dead run left container flagperf-\S+ of /tmp/\S+; removed", output)


def kill_agent(host: LabHost, *, with_reaper: bool) -> None:
    """Kill the round's agent on a host. Its reaper is a fork of it and has the lock of the log folder open, too."""
    holders = []
    for one in host.processes():
        with suppress(OSError):
            handles = (host.root / f"proc/{one.pid}/fd").iterdir()
            holders += [one.pid for handle in handles if str(handle.readlink()).endswith("/agent.lock")][:1]
    assert len(holders) >= 2, holders
    killed = list(map(str, holders if with_reaper else holders[:1]))
    host.run(["kill", "-STOP", *killed])  # none of them gets to act on the other's death
    host.run(["kill", "-9", *killed])


def test_the_container_of_an_agent_that_is_killed_with_its_janitor_is_removed(cluster: ClusterToy) -> None:
    cluster.use_docker(nodes="2x1")
    going = cluster.start("-k", "converges", _SLOW)
    going.wait_for(lambda: cluster.trains(cluster.hosts[1]), "the training")
    (container,) = cluster.hosts[1].containers()
    kill_agent(cluster.hosts[1], with_reaper=True)
    assert going.wait() == 1, going.text
    assert "round 1: the agent on h2 is gone: " in going.text
    assert f"removed after the end of the round: container {container['Names']}" in cluster.page
    assert cluster.round_json()["missing"] == []
    assert_nothing_left(cluster.hosts)


ODD = "a b\t'c' \"d\" $HOME \\ ; & | * é\nsecond=line"
SHOWN = """
import json, os
print("SHOWN", json.dumps({name: text for name, text in os.environ.items() if name.startswith("TOY_")}))
"""


def test_the_vendors_environment_reaches_all_ranks_whole(cluster: ClusterToy) -> None:
    text = f"export TOY_ODD={shlex.quote(ODD)}\nTOY_PLAIN=plain\nexport TOY_EMPTY=\necho noise; false\n"
    write(cluster.root, "vendors/cpu/alpha-plain/config/environment_variables.sh", text)
    program = cluster.root / "suites/alpha/plain/run_pretraining.py"
    program.write_text(program.read_text().replace("driver.run(main)", SHOWN + "driver.run(main)"))
    cluster.passed()
    logs = sorted(cluster.toy.runs[-1].glob("*/round1/*/rank*.out.log"))
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("SHOWN ")]
    expected = {"TOY_ODD": ODD, "TOY_PLAIN": "plain", "TOY_EMPTY": ""}
    assert [json.loads(line.removeprefix("SHOWN ")) for line in lines] == [expected] * 2
    paths = [path for path in cluster.toy.runs[-1].rglob("*") if path.is_file() and b"second=line" in path.read_bytes()]
    assert {path.name for path in paths} == {"rank0.out.log", "rank1.out.log"}  # the ranks printed it themselves
