"""The drill on a local Ray cluster of several nodes. Ray is no dependency: `pip install ray` to run it."""

import os
import subprocess
import sys

import pytest
from tests.launch.drill import NODES, SPARES, require_recovered, strike, write_script

ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written to the home folder
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(NODES + SPARES - 1):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def start(cluster, folder):
    words = ["--nodes", str(NODES), "--spares", str(SPARES)]
    options = ["--nproc-per-node", "1", "--view", "text", str(write_script(folder)), str(folder)]
    with (folder / "0.out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "closeranks.launch.ray", *words, "--", *options],
            cwd=folder,
            env=os.environ | {"RAY_ADDRESS": cluster.address},
            stdout=out,
            stderr=out,
        )


def test_a_node_is_lost_under_ray(cluster, tmp_path):
    process = start(cluster, tmp_path)
    try:
        strike(tmp_path)
        assert process.wait(200) == 0, (tmp_path / "0.out").read_text()
    finally:
        process.kill()
        process.wait()
    require_recovered(tmp_path)
