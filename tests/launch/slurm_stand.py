"""A Slurm cluster of several nodes on this machine: one slurmctld and a slurmd per node, in a folder of its own.

Nothing of a Slurm that may be installed on the machine is read or changed. All of it ends with ``tear_down``.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.ports import free_ports
from tests.real_run import eventually

BINARIES = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
NODES = 4

_CONFIG = """\
ClusterName=stand
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
TopologyPlugin=topology/tree
SwitchType=switch/none
SlurmdTimeout=10
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1
{nodes}
PartitionName=all Nodes=node[1-{count}] Default=YES MaxTime=10 State=UP
"""
_TOPOLOGY = """\
SwitchName=rack1 Nodes=node[1-2]
SwitchName=rack2 Nodes=node[3-4]
SwitchName=spine Switches=rack[1-2]
"""


def missing() -> str:
    """Why there can be no stand here; empty: there can."""
    absent = [name for name in BINARIES if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurmctld slurmd slurm-client"
    return "" if os.geteuid() == 0 else "slurmd runs as root only"


class SlurmStand:
    """Nodes node1 to node4, two below each of two switches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host, ports = socket.gethostname(), free_ports(NODES + 1)
        nodes = "\n".join(
            f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for number, port in enumerate(ports[1:], 1)
        )
        config = _CONFIG.format(
            host=host, port=ports[0], user=getpass.getuser(), folder=folder, nodes=nodes, count=NODES
        )
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(config)
        (folder / "topology.conf").write_text(_TOPOLOGY)
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for number in range(1, NODES + 1):
            self.start_node(f"node{number}")
        if not eventually(lambda: self.states().count("idle") == NODES, 20):
            self.tear_down()
            raise RuntimeError(f"Slurm does not come up: {self._last_words()}")

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """SIGKILL to a node's slurmd. What it started lives on and is the caller's to kill."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def states(self) -> list[str]:
        """One word per node."""
        return self.ask("sinfo", "--noheader", "--Node", "--format=%t").split()

    def ask(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(
            command, env=self._environment | variables, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def submit(self, script: Path, *options: str, **variables: str) -> int:
        """Hand a batch script in, from the folder where it lies; the number of the job."""
        said = self.ask("sbatch", "--parsable", *options, script.name, cwd=script.parent, **variables)
        assert said.strip().isdigit(), said
        return int(said)

    def job(self, number: int) -> dict[str, str]:
        """What Slurm says of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def told(self, number: int) -> str:
        """All that Slurm says of a job, and what its controller wrote about it."""
        log = (self.folder / "slurmctld.log").read_text().splitlines()
        return "\n".join([str(self.job(number)), *(line for line in log if f"JobId={number}" in line)])

    def tear_down(self) -> None:
        """End every job and every daemon."""
        if "slurmctld" in self._daemons:
            self.ask("scancel", "--state=RUNNING", "--signal=KILL", "--full", "--partition=all")
            eventually(lambda: not self.ask("squeue", "--noheader", "--states=RUNNING,COMPLETING").strip(), 10)
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(command, env=self._environment, stdout=out, stderr=out)

    def _last_words(self) -> str:
        return "; ".join(f"{path.name}: {path.read_text()[-300:]}" for path in sorted(self.folder.glob("*.out")))
