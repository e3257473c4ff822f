"""Runs on hosts over SSH and in containers: what a user sees, what is in the reports, and that nothing stays."""

import pytest

from pytest_flagperf.commands import main
from tests.lab.lab import LabHost
from tests.lab.runs import POD, ClusterToy, assert_nothing_left


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


def test_caches_that_a_user_may_not_clear_are_a_warning_in_the_report(cluster: ClusterToy) -> None:
    host = cluster.hosts[0]
    host.add_user("bench")
    cluster.set(clear_caches=True)
    output = cluster.passed(f"--cluster=bench@{host.address}", "--nodes=1x1")
    assert "caches: clear-caches is set, but only root can clear the file caches - log in as root" in output
    sentence = "the host's caches could not be cleared: /proc/sys/vm/drop_caches: Permission denied"
    assert f"round 1: {host.address}: {sentence}" in output
    report = (cluster.toy.runs[-1] / "report.html").read_text()
    assert "caches could not be cleared: /proc/sys/vm/drop_caches: Permission denied" in report


def test_a_command_reaches_containers_and_a_killed_one_is_replaced(cluster: ClusterToy) -> None:
    cluster.use_pods(nodes="2x1")
    going = cluster.start("-k", "converges", "--set=step_s=0.3")
    going.wait_for(lambda: "step 1 " in going.text, "training")
    cluster.hosts[1].run(["pkill", "-KILL", "-f", "stdin.readline"])
    going.wait_for(lambda: "h2 is back" in going.text, "the host again")
    assert going.wait(180) == 0, going.text
    assert cluster.round_json()["state"] == "finished"
    for host in cluster.hosts:
        host.run(["docker", "rm", "-f", POD])
    assert_nothing_left(cluster.hosts)
