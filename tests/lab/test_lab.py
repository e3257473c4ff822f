"""The lab itself: what no test that uses it would notice. A broken switch fails the tests that use it."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import running
from tests.helpers.waiting import until
from tests.lab.lab import Lab
from tests.lab.place import Place, traces

REPO = Path(__file__).resolve().parents[2]


def test_a_worn_host_comes_back_as_new(lab: Lab) -> None:
    def have_file() -> list[bool]:
        return [(host.root / "root/file").exists() for host in (one, two)]

    one, two = lab.hosts(2)
    for host in (one, two):
        host.run(["touch", "/root/file"])
    one.link(False)
    assert lab.hosts(2) == [one, two]
    assert have_file() == [False, True]
    lab.hosts(2, fresh=True)
    assert have_file() == [False, False]


# A lab of another process: one host is frozen, and a program uses its Slurm.
OWNER = """
import os, subprocess, sys
from tests.lab.lab import Lab
lab = Lab()
hosts = lab.hosts(2)
hosts[1].docker()
hosts[0].freeze()
slurm = {**os.environ, "SLURM_CONF": str(lab.place.folder / "shared/slurm/login.conf")}
srun = subprocess.Popen(["sleep", "600"], env=slurm, stdout=subprocess.DEVNULL, start_new_session=True)
print(lab.place.number, flush=True)
sys.stdin.read()
"""


def left(place: Place) -> list[str]:
    """Return what is there of a lab, and the processes of this machine that use its Slurm."""
    clients = [one.pid for one in running() if one.environment.get("SLURM_CONF", "").startswith(f"{place.folder}/")]
    return [*traces(place), *(f"pid {pid}" for pid in (*place.cgroup().pids(), *clients))]


def test_two_labs_stand_beside_each_other_and_one_goes_alone(lab: Lab) -> None:
    mine, _ = lab.hosts(2)
    with Lab() as other:
        theirs, _ = other.hosts(2)
        assert other.place.subnet != lab.place.subnet
        assert [host.run(["ssh", "h2", "hostname"]).stdout for host in (theirs, mine)] == ["h2\n"] * 2
        assert traces(other.place) != []
    until(lambda: not left(other.place), "the end of the other lab")
    assert mine.run(["ssh", "h2", "hostname"]).stdout == "h2\n"


def test_nothing_is_left_of_a_lab_whose_owner_was_killed(lab: Lab) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=pipe, stdout=pipe, text=True, cwd=REPO)
    assert process.stdout is not None
    place = Place(int(process.stdout.readline()))
    assert traces(place) != []
    process.kill()
    process.communicate()
    until(lambda: not left(place), "the end of the lab")
