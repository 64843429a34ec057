import json

import pytest

from closeranks.launch.domains import DomainsFile, DomainsProblem, domains_of, read, topology_domains

FILE = DomainsFile(
    "domains.toml",
    """
    levels = ["cooling"]
    [node.n0]
    rack = "r7"
    [host."gpu[001-002]"]
    rack = "r8"
    power = "p2"
    [host.gpu003]
    cooling = "c1"
    """,
)
LABELS = DomainsFile(
    "nodes.json",
    json.dumps(
        {
            "gpu-1": {
                "topology.kubernetes.io/zone": "a",
                "topology.k8s.aws/network-node-layer-3": "nn-9",
                "kubernetes.io/arch": "amd64",
            },
            "gpu-2": {},
        }
    ),
)


def test_a_node_is_found_by_its_hostname_or_by_its_own_name_which_wins():
    assert domains_of("n5", "gpu002", FILE) == {"rack": "r8", "power": "p2"}
    assert domains_of("n0", "gpu002", FILE) == {"rack": "r7", "power": "p2"}
    assert domains_of("n5", "gpu003.cluster.local", FILE) == {"cooling": "c1"}


def test_of_a_node_that_the_file_does_not_name_nothing_is_known():
    assert domains_of("n5", "other", FILE) == {}
    assert domains_of("n5", "gpu-2", LABELS) == {}
    assert domains_of("n5", "other") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[hosts.a]\nrack = 'r'", "domains.toml: unknown key 'hosts'; did you mean \"host\"\\?"),
        ("[node.n0]\nrakc = 'r'", "domains.toml: node.n0: unknown key 'rakc'; did you mean \"rack\"\\?"),
        ("[node.n0]\nquux = 'r'", "known: chassis, rack"),
        ("[node.n0]\nrack = 7", "domains.toml: node.n0.rack: expected a name, got 7"),
        ("[node]\nn0 = 'r7'", "node.n0: expected level = name, got 'r7'"),
        ("node = 1", "node: expected a table, got 1"),
        ("levels = 'x'", "levels: expected a list of names"),
        ("[host.a]\nrack = 'r'\n[host.'a,b']\nrack = 's'", "host a is there twice, the second time in 'a,b'"),
        ("[host.'a[']\nrack = 'r'", "host: host list 'a\\['"),
        ("[host", "domains.toml: not TOML"),
    ],
)
def test_what_is_not_understood_is_an_error_that_says_where(text, problem):
    with pytest.raises(DomainsProblem, match=problem):
        domains_of("n9", "nobody", DomainsFile("domains.toml", text))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "torn.toml").write_bytes(b"\xff")
    assert read(None) is None
    for name in ("torn.toml", "missing.toml"):
        with pytest.raises(DomainsProblem, match=f"--domains .*{name}: cannot be read"):
            read(str(tmp_path / name))


def test_labels_of_kubernetes_nodes_that_name_places_count_and_the_others_do_not():
    assert domains_of("n0", "gpu-1", LABELS) == {"zone": "a", "switch1": "nn-9"}


def test_a_pod_says_on_which_machine_it_is():
    assert domains_of("n0", "job-node-0-3", LABELS, {"CLOSERANKS_MACHINE": "gpu-1"})["zone"] == "a"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "nodes.json: not JSON"),
        ("[]", 'expected {"node name"'),
        ('{"a": 1}', 'expected {"node name"'),
        ('{"a": {"kubernetes.io/arch": "amd64"}}', "no label of any node names a place"),
        ('{"me": {"topology.kubernetes.io/zone": 1}}', "me: topology.kubernetes.io/zone: expected text, got 1"),
    ],
)
def test_labels_that_cannot_be_are_refused(text, problem):
    with pytest.raises(DomainsProblem, match=problem):
        domains_of("n0", "me", DomainsFile("nodes.json", text))


def test_slurms_switches_are_counted_from_the_node_up():
    assert topology_domains("spine.rack1.node1", "switch.switch.node") == {"switch1": "rack1", "switch2": "spine"}
    assert topology_domains("block7.node.with.dots", "block.node") == {"block1": "block7"}
    assert topology_domains("node1", "node") == {}
    assert topology_domains("", "") == topology_domains("node1", "switch.node") == {}


def test_the_file_wins_over_variables_and_those_over_slurms_topology():
    variables = {
        "SLURM_TOPOLOGY_ADDR": "top.node1",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node",
        "CLOSERANKS_DOMAIN_SWITCH1": "named",
        "CLOSERANKS_DOMAIN_RACK": "r1",
        "CLOSERANKS_DOMAIN_ZONE": "",
    }
    assert domains_of("n0", "gpu001", FILE, variables) == {"switch1": "named", "rack": "r7", "power": "p2"}
