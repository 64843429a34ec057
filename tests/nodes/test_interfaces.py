import errno
import ipaddress
import socket

import pytest

from closeranks.nodes import interfaces as module
from closeranks.nodes.interfaces import Interface, InterfaceProblem, interfaces, own_address
from closeranks.nodes.words import Address

THREE = (Interface("lo", "127.0.0.1"), Interface("ib0", "10.1.0.7"), Interface("ib0", "fd00::7"))


def test_the_loopback_is_among_the_interfaces_and_no_link_local_address_is():
    found = interfaces()
    assert Interface("lo", "127.0.0.1") in found
    assert not [i for i in found if ipaddress.ip_address(i.address).is_link_local]


def test_every_address_listed_can_be_listened_on():
    for interface in interfaces():
        family = socket.AF_INET6 if ":" in interface.address else socket.AF_INET
        socket.create_server((interface.address, 0), family=family).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.7"])
def test_a_coordinator_on_the_loopback_is_reached_from_the_loopback(host):
    assert ipaddress.ip_address(own_address(Address(host=host, port=1))).is_loopback


def test_a_coordinator_elsewhere_is_reached_from_the_address_on_the_way_to_it():
    outside = [i.address for i in interfaces() if i.name != "lo" and ":" not in i.address]
    if not outside:
        pytest.skip("this machine has no other interface")
    assert own_address(Address(host=outside[0], port=1)) == outside[0]


def test_an_interface_is_named_by_its_name_or_its_address(monkeypatch):
    monkeypatch.setattr(module, "interfaces", lambda: THREE)
    coordinator = Address(host="10.1.0.1", port=1)
    assert own_address(coordinator, "ib0") == "10.1.0.7"
    assert own_address(coordinator, "fd00::7") == "fd00::7"


def test_of_two_addresses_that_of_the_coordinators_family_is_taken(monkeypatch):
    monkeypatch.setattr(module, "interfaces", lambda: THREE)
    assert own_address(Address(host="fd00::1", port=1), "ib0") == "fd00::7"


def test_an_interface_that_is_not_there_is_answered_by_those_that_are(monkeypatch):
    monkeypatch.setattr(module, "interfaces", lambda: THREE)
    problem = r"--interface ib1: expected one of lo \(127.0.0.1\), ib0 \(10.1.0.7\), ib0 \(fd00::7\)"
    with pytest.raises(InterfaceProblem, match=problem):
        own_address(Address(host="10.1.0.1", port=1), "ib1")


def test_a_name_that_cannot_be_resolved_is_told():
    with pytest.raises(InterfaceProblem, match="its name cannot be resolved"):
        own_address(Address(host="no such host", port=1))


def test_no_route_is_told_with_the_interfaces_there_are(monkeypatch):
    class NoRoute(socket.socket):
        def connect(self, _address):
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(module, "interfaces", lambda: THREE)
    monkeypatch.setattr(module.socket, "socket", NoRoute)
    with pytest.raises(InterfaceProblem, match=r"no route \(10.9.9.9: Network is unreachable\).*--interface: lo"):
        own_address(Address(host="10.9.9.9", port=1))
