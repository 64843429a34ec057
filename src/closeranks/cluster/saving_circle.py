"""The savers of several nodes: who leads follows from the newest term, and words go by way of the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from closeranks.cluster import saving_words
from closeranks.cluster.saving_words import Back, FromLead, ToLead
from closeranks.nodes import words
from closeranks.nodes.probes import Life
from closeranks.run.circle import Hearers, Role, role_of


class NodesCircle:
    """This node's place among the savers of several. Words of a node that does not lead, and from it, are dropped."""

    several = True

    def __init__(self, node: str, say: Callable[[words.FromNode], None], led: Callable[[], bool]) -> None:
        """``say`` tells the coordinator, if there is one; ``led``: whether this node may act."""
        self.node = node
        self._say = say
        self._led = led
        self._places: tuple[str, ...] = ()  # node by seat, under the newest term
        self._hearers: Hearers | None = None
        self._hopeless: words.Hopeless | None = None  # said again to a coordinator that comes later
        self.ask_for_lead: Callable[[], Awaitable[Life]] = _unknown
        self.on_step: Callable[[int, float], None] = lambda _step, _period_s: None  # it is closed on every node

    @property
    def role(self) -> Role:
        """Of this node."""
        return role_of(self.node, self._places)

    @property
    def led(self) -> bool:
        """Whether this node holds a grant: if another one has taken its place, it does not."""
        return self._led()

    @property
    def nodes(self) -> frozenset[str]:
        """Those with seats."""
        return frozenset(self._places)

    def attach(self, hearers: Hearers) -> None:
        """See Circle."""
        self._hearers = hearers

    def tell_all(self, word: FromLead) -> None:
        """See Circle."""
        if self.role is Role.LEAD:
            self._say(words.ToSavers(body=saving_words.encode(word)))

    def tell_lead(self, word: ToLead) -> None:
        """See Circle."""
        if self.role is Role.LEAD:
            self._hear_as_lead(self.node, word)
        elif self.role is Role.FOLLOWER:
            self._say(words.ToSavers(to=self._places[0], body=saving_words.encode(word)))

    def end_run(self, reason: str, exit_code: int = 1) -> None:
        """See Circle."""
        self._hopeless = words.Hopeless(reason=reason, exit_code=exit_code)
        self._say(self._hopeless)

    async def life_of_lead(self) -> Life:
        """See Circle."""
        return await self.ask_for_lead()

    # --- what is heard ------------------------------------------------------------------------------------------

    def seated(self, places: tuple[str, ...]) -> None:
        """A term begins with these nodes in its seats; none: nothing is said about them."""
        if places:
            self._places = places
            if self._hearers is not None:
                self._hearers.seated()

    def back(self, places: tuple[str, ...]) -> None:
        """There is a coordinator again, which tells who has the seats: what was said meanwhile was lost."""
        self.seated(places)
        if self._hopeless is not None:
            self._say(self._hopeless)
        self.tell_lead(Back())

    def hear(self, word: words.FromSaver) -> None:
        """A saver said something."""
        try:
            said = saving_words.decode(word.body)
        except msgspec.MsgspecError:  # of another version: as good as lost
            return
        if isinstance(said, ToLead):
            self._hear_as_lead(word.node, said)
        elif self._hearers is not None and self._places and word.node == self._places[0]:
            self._hearers.from_lead(said)

    def closed_everywhere(self, word: words.StepClosedEverywhere) -> None:
        """The coordinator counted a step."""
        if self.role is Role.LEAD:
            self.on_step(word.step, word.period_s)

    def _hear_as_lead(self, node: str, word: ToLead) -> None:
        if self._hearers is not None and self.role is Role.LEAD and node in self._places:
            self._hearers.to_lead(node, word)


async def _unknown() -> Life:
    return Life.UNKNOWN
