import pytest

from closeranks.launch.hostlist import HostlistProblem, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("gpu[008-010,3]", ["gpu008", "gpu009", "gpu010", "gpu3"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
        ("x[1-2],user@y,z[7]", ["x1", "x2", "user@y", "z7"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
    ],
)
def test_hosts_come_in_the_order_of_the_list_with_their_zeros(text, hosts):
    assert list(expand(text)) == hosts


@pytest.mark.parametrize("text", ["", "a,,b", "n[", "n[1-3", "n]", "n[]", "n[a]", "n[3-1]", "n[1-9999999]", "n[1-]"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(HostlistProblem, match="host list"):
        expand(text)


def test_a_list_of_more_hosts_than_any_cluster_has_is_refused_before_it_is_made():
    with pytest.raises(HostlistProblem, match="at most 65536 hosts, got 1000000000000"):
        expand("n[0-9999][0-9999][0-9999]")
