"""Nodes as network namespaces on one bridge: their links can be cut, one way, by port, or with losses. Needs root.

::

    hub namespace:  bridge, and the nftables table that drops what is cut
       | veth | veth | veth
    n0 .1  n1 .2  n2 .3        10.213.0.0/24; no node sees the host's network, so stands never meet
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Self

from closeranks.drill.nodes import marked
from closeranks.drill.nodes.stand import Stand, owner_is_gone, signals_held, stand_name, sweep_processes

_RUN: Final = Path("/run/netns")
_NEEDED: Final = ("ip", "nft", "nsenter")
_NETWORK: Final = "10.213.0"
_TABLE: Final = "cuts"
_DOWN_S: Final = 5.0


class Cut(NamedTuple):
    """Packets from ``source`` to ``target`` that do not arrive. One way: cut the other direction, too, for both."""

    source: str
    target: str
    only_ports: frozenset[int] = frozenset()  # TCP packets from or to them
    but_ports: frozenset[int] = frozenset()  # all others
    percent: int = 100


class NamespaceStand(Stand):
    """See ``Stand``; and links between nodes can be cut and healed."""

    can_cut = True

    def __enter__(self) -> Self:
        """Sweep what others left, then set up.

        Raises:
            RuntimeError: not possible here, see ``why_not``; nothing was set up.
        """
        problem = why_not()
        if problem:
            raise RuntimeError(f"network namespaces cannot be used: {problem}")
        sweep_processes()
        sweep_namespaces()
        try:
            self._set_up()
        except BaseException:
            with signals_held():
                self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End every process and remove the namespaces; the links go with them."""
        with signals_held():
            try:
                super().__exit__()
            finally:
                self._tear_down()

    # --- cutting ------------------------------------------------------------------------------------------------

    def cut(self, cuts: Iterable[Cut]) -> None:
        """From now on these packets are dropped, and no others: what was cut before is healed."""
        rules = "\n".join(f"add rule bridge {_TABLE} forward {rule}" for cut in cuts for rule in self._rules(cut))
        # One transaction: there is no instant at which neither the old nor the new rules hold.
        self._hub("nft", "-f", "-", text=f"flush chain bridge {_TABLE} forward\n{rules}\n")

    def heal(self) -> None:
        """Every packet arrives again, but for nodes without power."""
        self.cut(())

    def apart(self, some: Collection[str]) -> list[Cut]:
        """The cuts that separate ``some`` nodes from all others."""
        others = [node for node in self.nodes if node not in some]
        return [cut for a in some for b in others for cut in (Cut(a, b), Cut(b, a))]

    def power_off(self, node: str) -> None:
        """The link goes down first, so that no farewell of its kernel leaves."""
        self._inside(node, "ip", "link", "set", "eth0", "down")
        self.kill(node)

    def power_on(self, node: str) -> None:
        """The link is up again; nothing runs yet."""
        self._inside(node, "ip", "link", "set", "eth0", "up")

    # --- set-up -------------------------------------------------------------------------------------------------

    def address(self, node: str) -> str:
        """Where it is reached."""
        return f"{_NETWORK}.{1 + self.nodes.index(node)}"

    def _way_in(self, node: str) -> list[str]:
        return ["nsenter", f"--net={_RUN / self._space(node)}"]

    def _space(self, node: str) -> str:
        return f"{self.name}-{node}"

    def _set_up(self) -> None:
        _do("ip", "netns", "add", self._space("hub"))
        self._hub("ip", "link", "add", "bridge", "type", "bridge")
        self._hub("ip", "link", "set", "bridge", "up")
        self._hub("nft", "-f", "-", text=f"table bridge {_TABLE} {{ chain forward {{ {_HOOK} }}; }}\n")
        for node in self.nodes:
            _do("ip", "netns", "add", self._space(node))
            ends = ("name", node, "type", "veth", "peer", "name", "eth0", "netns", self._space(node))
            self._hub("ip", "link", "add", *ends)
            self._hub("ip", "link", "set", node, "master", "bridge", "up")
            self._inside(node, "ip", "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self._inside(node, "ip", "link", "set", device, "up")

    def _tear_down(self) -> None:
        with contextlib.ExitStack() as all_of_them:
            for path in _RUN.glob(f"{self.name}-*"):
                all_of_them.callback(_remove, path.name)

    def _hub(self, *words: str, text: str = "") -> None:
        self._inside("hub", *words, text=text)

    def _inside(self, node: str, *words: str, text: str = "") -> None:
        _do(*self._way_in(node), *words, text=text)

    def _rules(self, cut: Cut) -> list[str]:
        way = f'iifname "{cut.source}" oifname "{cut.target}"'
        losses = "" if cut.percent >= 100 else f"numgen random mod 100 < {cut.percent} "  # noqa: PLR2004 - of 100
        if cut.only_ports:
            ports = _set_of(cut.only_ports)
            return [f"{way} ether type ip tcp {end} {ports} {losses}drop" for end in ("sport", "dport")]
        if cut.but_ports:
            ports = _set_of(cut.but_ports)
            # Not one rule with two "!=": nft 1.0.6 makes "not both" of it. Address resolution belongs to neither plane.
            kept = [f"{way} ether type ip tcp {end} {ports} accept" for end in ("sport", "dport")]
            return [*kept, f"{way} ether type ip {losses}drop"]
        return [f"{way} {losses}drop"]


_HOOK = "type filter hook forward priority 0; policy accept;"


@functools.cache
def why_not() -> str:
    """What stands in the way of network namespaces on this machine, empty if nothing does: one is made, and removed."""
    if os.geteuid() != 0:
        return "they need root"
    missing = [tool for tool in _NEEDED if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: iproute2, nftables, util-linux)"
    space = f"{stand_name()}-try"
    try:
        _do("ip", "netns", "add", space)
        _do("ip", "netns", "exec", space, "nft", "-f", "-", text=f"add table bridge {_TABLE}\n")
    except RuntimeError as error:  # root of a container may have neither right
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
    return ""


def sweep_namespaces() -> None:
    """Remove namespaces of stands without an owner left."""
    for path in _RUN.glob("crd-*"):
        if owner_is_gone(path.name):
            _remove(path.name)


def _remove(space: str) -> None:
    """What still runs in it ends first: a namespace lives as long as one of its processes."""
    name, _, node = space.rpartition("-")
    try:
        marked.kill(f"{name}/{node}")
    finally:
        end_s = time.monotonic() + _DOWN_S
        while (_RUN / space).exists() and time.monotonic() < end_s:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def _set_of(ports: Collection[int]) -> str:
    return "{ " + ", ".join(map(str, sorted(ports))) + " }"


def _do(*words: str, text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
