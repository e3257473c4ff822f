"""Slurm on hosts of the lab: slurmctld on the first, slurmd on all; the machine itself is the login node."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self, final

from tests.helpers.waiting import until
from tests.lab.built import built
from tests.lab.lab import Lab, LabHost
from tests.lab.needs import path_of

FOLDER = "/shared/slurm"
KILL_WAIT_S = 30
CONF = """\
ClusterName=lab
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=900
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmctldTimeout=10
SlurmdTimeout={node_timeout}
InactiveLimit=0
KillWait={kill_wait}
MinJobAge=300
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
SlurmdParameters=config_overrides
PlugStackConfig={folder}/{name}.plugins
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=2 State=UP
"""
CGROUPS = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainDevices=no\nConstrainCores=no\n"


@final
class Slurm:
    """Start it with ``with``; its hosts are worn afterwards."""

    def __init__(
        self, lab: Lab, hosts: Sequence[LabHost], *, gpus: int = 8, node_timeout_s: int = 5, pyxis: bool = False
    ) -> None:
        self.hosts = list(hosts)
        self._gpus = gpus
        self._pyxis = pyxis
        self._node_timeout_s = node_timeout_s  # many hosts on few cores answer slowly
        self._here = lab.folder / "shared" / "slurm"
        self.conf = self._here / "login.conf"

    def __enter__(self) -> Self:
        self._here.mkdir(exist_ok=True)
        key = self._here / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.write_conf()
        munge = [path_of("munged"), "--foreground", "--force", f"--socket={FOLDER}/munge.socket"]
        munge += [f"--key-file={FOLDER}/munge.key", "--pid-file=/run/munged.pid", "--seed-file=/run/munge.seed"]
        self.hosts[0].start([*munge, f"--log-file={FOLDER}/munged.log"])
        until((self._here / "munge.socket").exists, "munged")
        for host in self.hosts:
            host.run(["mkdir", "-p", "/etc/slurm", "/var/spool/slurmctld", "/var/spool/slurmd"])
        self._install(self.hosts[0])
        self.hosts[0].run([path_of("slurmctld")])
        for host in self.hosts:
            self.start_node(host)
        self.wait_until_idle()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.power_off()

    def write_conf(self) -> None:
        """Write slurm.conf for the hosts, and for the machine, which sees the shared folder elsewhere."""
        head = self.hosts[0]
        if self._pyxis:
            shutil.copy(built("pyxis_double"), self._here / "pyxis.so")
        for name, folder in (("slurm.conf", FOLDER), ("login.conf", str(self._here))):
            nodes = "\n".join(
                f"NodeName={host.name} NodeAddr={host.address} CPUs=4 RealMemory=4000 Gres=gpu:{self._gpus}"
                for host in self.hosts
            )
            text = CONF.format(
                controller=head.name, address=head.address, folder=folder, name=name, kill_wait=KILL_WAIT_S,
                node_timeout=self._node_timeout_s, nodes=nodes,
            )  # fmt: skip
            (self._here / name).write_text(text)
            (self._here / f"{name}.plugins").write_text(f"required {folder}/pyxis.so\n" if self._pyxis else "")

    def start_node(self, host: LabHost) -> None:
        """Start a host's slurmd; a host that was off needs this again."""
        self._install(host)
        devices = "; ".join(
            f"[ -e /dev/nvidia{n} ] || mknod -m 666 /dev/nvidia{n} c 195 {n}" for n in range(self._gpus)
        )
        host.run(["sh", "-c", devices])
        (host.root / "etc/slurm/gres.conf").write_text(f"Name=gpu File=/dev/nvidia[0-{self._gpus - 1}]\n")
        (host.root / "etc/slurm/cgroup.conf").write_text(CGROUPS)
        host.run([path_of("slurmd")])

    def _install(self, host: LabHost) -> None:
        (host.root / "etc/slurm/slurm.conf").write_bytes((self._here / "slurm.conf").read_bytes())

    def command(self, *argv: str, check: bool = True, stdin: str = "") -> str:
        """Run a command of Slurm as the machine's user; its output."""
        done = subprocess.run(argv, env=self.env, input=stdin, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    @property
    def queue(self) -> list[str]:
        """The numbers of all jobs that are pending or have nodes."""
        return self.command("squeue", "--noheader", "--format=%i").split()

    def nodes_of_jobs(self) -> dict[str, str]:
        """The nodes of each running job."""
        lines = self.command("squeue", "--noheader", "--states=running", "--format=%i %N").splitlines()
        return dict(line.split() for line in lines)

    @property
    def last_job(self) -> int:
        jobs = self.command("scontrol", "--oneliner", "show", "job").splitlines()
        return max((int(one.split()[0].removeprefix("JobId=")) for one in jobs if one.startswith("JobId=")), default=0)

    def update(self, host: LabHost, **settings: str) -> None:
        self.command("scontrol", "update", f"node={host.name}", *(f"{key}={text}" for key, text in settings.items()))

    def allocate(self, *options: str) -> str:
        """A job without a script, as by ``salloc``; its number."""
        name = f"by-hand-{os.urandom(4).hex()}"
        self.command("salloc", "--no-shell", "--quiet", f"--job-name={name}", *options)
        (number,) = self.command("squeue", "--noheader", "--format=%i", f"--name={name}").split()
        return number

    def recover(self) -> None:
        """Cancel all jobs, use all nodes again and remove the logs of rounds, after a test that failed."""
        self.command("scancel", "--quiet", "--user=root", check=False)
        self.command(
            "scontrol", "update", f"node={','.join(host.name for host in self.hosts)}", "state=resume", check=False
        )

    def wait_until_idle(self) -> None:
        """Wait until no job is left and every node can take jobs."""

        def idle() -> bool:
            states = self.command("sinfo", "--noheader", "--Node", "--format=%T", "--partition=main").split()
            return states == ["idle"] * len(self.hosts) and not self.queue

        try:
            until(idle, "idle nodes", 30)
        except TimeoutError:
            raise AssertionError(self.command("sinfo") + self.command("squeue")) from None
