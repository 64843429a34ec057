"""Real etcd servers on loopback ports, with data in a temporary folder."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from tests.ports import free_ports

ETCD = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(ETCD is None, reason="etcd is not installed (Debian: apt-get install etcd-server)")
START_S = 20.0


class Members:
    """A cluster of one or more. Elections take a tenth of a second instead of a whole one."""

    def __init__(self, folder, count=1):
        self.folder = folder
        self.ports, self.peers = free_ports(count), free_ports(count)
        self.processes = {}
        for number in range(count):
            self.start(number)
        self.wait()

    @property
    def url(self):
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, number):
        client, peer = (f"http://127.0.0.1:{ports[number]}" for ports in (self.ports, self.peers))
        cluster = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.peers))
        flags = {"name": f"m{number}", "data-dir": self.folder / f"m{number}", "log-level": "error"}
        flags |= {"listen-client-urls": client, "advertise-client-urls": client, "listen-peer-urls": peer}
        flags |= {"initial-advertise-peer-urls": peer, "initial-cluster": cluster}
        flags |= {"heartbeat-interval": 20, "election-timeout": 200}
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [ETCD, *(f"--{name}={value}" for name, value in flags.items())],
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )

    def wait(self):
        """Until every member knows a leader."""
        deadline_s = time.monotonic() + START_S
        for number, process in self.processes.items():
            while not self._leader(number):
                assert process.poll() is None, (self.folder / f"m{number}.log").read_text()
                assert time.monotonic() < deadline_s, "etcd did not start in time"
                time.sleep(0.02)  # nothing to wait for: a server that is not there yet sends no word

    def leader(self):
        """The number of the member that leads. While they elect one, there is none."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            for number in self.processes:
                with contextlib.suppress(OSError):
                    member, leader = self._status(number)
                    if member == leader:
                        return number
            time.sleep(0.02)
        raise AssertionError("no member leads")

    def kill(self, number):
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self):
        for number in list(self.processes):
            self.kill(number)

    def ask(self, path, number=0, **question):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[number]}/v3/{path}", json.dumps(question).encode()
        )
        with urllib.request.urlopen(request, timeout=START_S) as response:  # noqa: S310
            return json.loads(response.read())

    def _status(self, number):
        answer = self.ask("maintenance/status", number)
        return answer["header"]["member_id"], answer.get("leader", "")

    def _leader(self, number):
        try:
            return self._status(number)[1]
        except (OSError, urllib.error.URLError):
            return ""
