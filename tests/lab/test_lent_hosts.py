"""The second engine of the example plugin, on hosts that a made-up site lends, one of which loses power."""

import os
import re
from pathlib import Path

import pytest

from tests.helpers.plugin_packages import install_package
from tests.lab.lab import PYTHON, REPO
from tests.lab.runs import ClusterToy, assert_nothing_left, leftovers

# The site's program lends the first free hosts, and reaches a host by the process that it began with.
SITE = """
cd $(dirname $0); what=$1; word=$2; shift 2
case $what in
lend)
    set -- $(ls free | head -n $word)
    [ $# = $word ] || { echo $# hosts are free >&2; exit 75; }
    (cd free && rm $*) && echo lend $* >>journal && echo $* ;;
return) echo return $word >>journal && touch free/$word ;;
on) exec env -i PATH=$PATH nsenter --all --target=$(cat hosts/$word) -- "$@" ;;
esac
"""


@pytest.fixture
def lent(cluster: ClusterToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterToy:
    """Three hosts, which are the site's; the settings name its program instead of the hosts."""
    monkeypatch.setenv("PYTHONPATH", str(install_package(REPO / "tests/example_plugin", tmp_path)), prepend=os.pathsep)
    cluster.hosts = cluster.lab.hosts(3)
    for name in ("free", "hosts"):
        (cluster.root / name).mkdir()
        for host in cluster.hosts:
            (cluster.root / name / host.name).write_text(host.root.parent.name)
    (cluster.root / "site.sh").write_text(SITE)
    (cluster.lab.shared / cluster.root.name).mkdir()
    site = f"sh {cluster.root}/site.sh"
    (cluster.root / "flagperf.toml").write_text(
        f"[cluster]\npython = '{PYTHON}'\nreach = '{site} on {{host}}'\n"
        f"[engines.lend]\nlend = '{site} lend'\ntake_back = '{site} return'\n"
    )
    cluster.set(nodes="2x1", runtime="host", engine="lend", restart_wait=5, lease_time=2)
    return cluster


def train_and_cut_power(lent: ClusterToy, code: int) -> str:
    """Take the power of the second host in a training that leases devices; return the output and the site's journal."""
    saving = [f"--set=checkpoint_dir=/shared/{lent.root.name}", "--set=checkpoint_steps=1"]
    going = lent.start("-k", "converges", "--restarts=1", "--set=step_s=0.3", *saving)
    going.wait_for(lambda: all(lent.trains(host) for host in lent.hosts[:2]), "training on both hosts")
    assert all("lock" in [left.split()[0] for left in leftovers(host)] for host in lent.hosts[:2])
    lent.hosts[1].power_off()
    assert going.wait() == code, going.text
    return going.text + (lent.root / "journal").read_text()


def test_a_lent_host_that_loses_power_is_replaced_and_the_training_goes_on(lent: ClusterToy) -> None:
    text = train_and_cut_power(lent, 0)
    first_step = re.search(r"(?s) h2 is lost and did not .*: restart 1 of 1\n.*?  step (\d+) ", text)
    assert int(first_step[1] if first_step else 0) > 1, text
    (log,) = lent.toy.runs[-1].glob("alpha*/round1/h3_noderank1/rank1.out.log")
    assert "FINISHED" in log.read_text()
    # The lost host stays lent until the end, or the site would lend it again.
    assert text.endswith("lend h1 h2\nlend h3\nreturn h1\nreturn h3\nreturn h2\n")
    assert_nothing_left(lent.hosts)


def test_without_a_free_host_the_training_ends_and_gives_its_hosts_back(lent: ClusterToy) -> None:
    """The control of the replacement."""
    (lent.root / "free/h3").unlink()
    text = train_and_cut_power(lent, 1)
    assert "lend 1: expected 1 names, got 0 names and exit code 75: 0 hosts are free" in text
    assert text.endswith("lend h1 h2\nreturn h1\nreturn h2\n")
    assert_nothing_left(lent.hosts[:1])
