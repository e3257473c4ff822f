"""Runs on hosts over SSH: what a user sees, what is in the reports, and that nothing stays."""

from typing import Any

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.stored.live_record import HOST, LiveFile, live_files
from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy, assert_nothing_left


def test_a_run_on_another_host_can_be_watched_while_it_runs(cluster: ClusterToy) -> None:
    cluster.use_nvidia(nodes="1x2")
    going = cluster.start("-k", "converges", "--set=step_s=0.7")

    def hosts() -> dict[str, dict[str, Any]]:
        """The latest values of each host."""
        latest: dict[str, dict[str, Any]] = {}
        for entry in (
            entry for path in cluster.toy.runs for file in live_files(path) for entry in LiveFile(file).new()
        ):
            if entry["kind"] == HOST:
                latest.setdefault(entry["host"], {}).update(entry)
        return latest

    going.wait_for(lambda: hosts().get("h1", {}).keys() >= {"ranks", "samples"}, "the ranks and the samples of h1", 60)
    assert hosts().keys() == {"h1"}
    host = hosts()["h1"]
    assert list(host["ranks"]) == ["0", "1"]
    assert len(host["samples"]["devices"]) == 2
    for device in host["samples"]["devices"].values():
        assert device.keys() >= {"power", "temperature", "utilization", "memory_used", "memory_total"}
    assert host["samples"]["host"].keys() == {"cpu", "memory"}
    assert going.wait() == 0, going.text


def four_that_sum_up(cluster: ClusterToy) -> list[LabHost]:
    hosts = cluster.lab.hosts(4)
    cluster.settings(hosts, nodes="4x2", runtime="host")
    file = cluster.root / "flagperf.toml"
    file.write_text(file.read_text().replace("[cluster]\n", "[cluster]\nmax_whole_hosts = 3\n"))
    return hosts


def test_the_kept_logs_of_hosts_whose_figures_are_wrong_are_fetched(cluster: ClusterToy) -> None:
    hosts = four_that_sum_up(cluster)
    program = cluster.root / "suites/alpha/plain/run_pretraining.py"
    wrong = '"e2e_time": rank.age() + 100 * (rank.world.rank >= 2)'
    program.write_text(program.read_text().replace('"e2e_time": rank.age()', wrong))
    code, output = cluster.run("-k", "converges")
    assert code == 1
    (run,) = cluster.toy.runs
    (log, *_) = run.glob("alpha*/fetched_logs/round1/h*_noderank*/rank*.out.log")
    assert f"round1: the logs of {log.parent.name[:2]} are in {log.parent}" in output
    (record,) = run.glob("alpha*/round1/round.json")
    outcome = record.with_name("outcome.json")
    assert record.stat().st_mtime_ns < outcome.stat().st_mtime_ns, "written again after it was measured"
    assert_nothing_left(hosts)


def test_many_hosts_sum_up_their_logs_and_keep_them_until_someone_looks(
    cluster: ClusterToy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = four_that_sum_up(cluster)
    code, output = cluster.run("-k", "converges")
    assert code == 0, output
    remark = "the logs and series of 1 host stay there (flagperf show --fetch-logs fetches them); those of 3 hosts were"
    assert f"{remark} compared with their summaries" in cluster.page
    (run,) = cluster.toy.runs
    folders = {folder.name[:2]: folder for folder in run.glob("alpha*/round1/h*_noderank*")}
    (kept,) = [name for name, folder in folders.items() if not [*folder.glob("rank*.out.log")]]
    assert kept != "h1"
    assert sorted(path.name for path in folders[kept].iterdir()) == ["milestones.json", "monitors.json", "summary.json"]

    def show(hosts: str) -> tuple[int, str]:
        code = main(["show", str(run), f"--fetch-logs={hosts}"])
        return code, capsys.readouterr().out

    monkeypatch.chdir(cluster.root)
    assert main(["verify", str(run)]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert show("h1") == (1, "no logs to fetch: none of h1 kept its logs\n")
    code, output = show("all")
    assert code == 0, output
    (log,) = run.glob(
        f"alpha*/fetched_logs/round1/{kept}_noderank{int(kept[1]) - 1}/rank{2 * int(kept[1]) - 1}.out.log"
    )
    assert output == f"{log.parent.parents[2].name} round1: the logs of {kept} are in {log.parent}\n"
    assert "FINISHED" in log.read_text()
    assert main(["verify", str(run)]) == 0, capsys.readouterr().out
    assert_nothing_left(hosts)
