"""The replay on lab hosts: a clean process repeats what it reads from the states, and nothing of them stays."""

import json

from tests.lab.lab import PYTHON
from tests.lab.random_faults import BASE, SHORT
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.plugin.conftest import SHARED_TRAINING


def options(cluster: ClusterToy, folder: str = "") -> list[str]:
    """Give a cluster a training that can be repeated; return options for its states in a folder that all hosts see."""
    cluster.toy.suite("alpha", BASE, SHARED_TRAINING)
    (cluster.root / "suites/conftest.py").write_text(SHORT.conftest)
    shared = cluster.lab.shared / cluster.root.name
    shared.mkdir()
    shared.chmod(0o777)
    place = folder or f"/shared/{shared.name}"
    return ["-k", "throughput", "--replay", "--set=step_s=0.05", f"--set=checkpoint_dir={place}"]


def states(cluster: ClusterToy) -> list[str]:
    return [path.name for path in (cluster.lab.shared / cluster.root.name).glob("*.states/*")]


def repeated(cluster: ClusterToy, *arguments: str) -> tuple[str, str]:
    """Run a training that is repeated, and leaves nothing; return what its verdicts got."""
    code, text = cluster.run(*arguments)
    assert_nothing_left(cluster.hosts)
    assert not [*(cluster.lab.shared / cluster.root.name).glob("*.states")]
    [case] = json.loads((cluster.toy.runs[-1] / "results.json").read_text())["cases"]
    got = {verdict["name"]: verdict["got"] for test in case["verdicts"].values() for verdict in test}
    assert code == (got["repeated"] in ("differs", "not repeated")), text
    assert got["repeated"] in cluster.page
    return got["repeated"], got["repeatable"]


def test_a_training_on_two_hosts_is_repeated_unless_its_states_are_damaged(cluster: ClusterToy) -> None:
    arguments = options(cluster)
    assert repeated(cluster, *arguments)[1] == "equal bit by bit"
    differs, by = repeated(cluster, *arguments, "--set=fault=damage")
    assert (differs, by[:10]) == ("differs", "differs by")


def test_an_interrupted_training_leaves_no_states(cluster: ClusterToy) -> None:
    going = cluster.start(*options(cluster))
    going.wait_for(lambda: states(cluster), "a state")
    going.interrupt()
    assert going.wait() == 2
    assert (states(cluster), [*cluster.lab.shared.glob("*/*.states")]) == ([], [])
    assert_nothing_left(cluster.hosts)


def test_the_last_start_is_repeated(cluster: ClusterToy) -> None:
    repeated_steps, equal = repeated(cluster, *options(cluster), "--restarts=1", "--drill=rank", "--drill-here")
    assert (len([*cluster.toy.runs[-1].glob("*/failed1-round1")]), equal) == (1, "equal bit by bit")
    assert int(repeated_steps.split()[2]) > 15, repeated_steps


def test_a_container_has_another_place_for_the_states_than_its_host(cluster: ClusterToy) -> None:
    del cluster.hosts[1:]
    arguments = options(cluster, "/states")
    cluster.use_docker(nodes="1x2")
    mounts = [*cluster.lab.container_options(PYTHON), f"-v /shared/{cluster.root.name}:/states"]
    cluster.set(container_opt=[" ".join(mounts)])
    assert repeated(cluster, *arguments)[1] == "equal bit by bit"
