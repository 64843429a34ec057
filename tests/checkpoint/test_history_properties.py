"""Writers of several terms, each with its own old look at the log, in every order that hypothesis finds."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.checkpoint.logs import entry, manifest

from closeranks.checkpoint.format import Claim, Commit, Pin, Retire, Unpin, Verified
from closeranks.checkpoint.history import EMPTY, Verification, fold, fold_all
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.stores.store import Listed
from closeranks.checkpoint.sweep import plan_sweep

WRITERS = st.integers(0, 2)
PLACES = st.integers(0, 40)
WAKES = st.sampled_from(["fresh", "fresh", "late"])
KINDS = st.sampled_from(["pin", "unpin", "held", "broken"])
TRUSTED = st.sampled_from([True, True, False])
MANY_PLACES = st.lists(PLACES, max_size=6) | st.just(list(range(40)))
GROUPS = st.sampled_from(["", "", "", "embeddings"])


@dataclass
class Writer:
    """What one process knows: how much of the log it has seen, the term it holds, and the save it is about."""

    seen: int = 0
    term: int = 0
    saving: object = None  # a Commit that it will append
    given_up: set = field(default_factory=set)


class ManyWriters(RuleBasedStateMachine):
    """A log that is appended to if the number is free, objects that are written and deleted, and no lock at all."""

    def __init__(self):
        super().__init__()
        self.log, self.histories = [], [EMPTY]
        self.writers = [Writer() for _ in range(3)]
        self.objects, self.refers = set(), {}  # keys in the store; attempt -> keys that its index refers to
        self.doomed = []  # plans of sweeps that were not carried out yet
        self.attempts = 0

    # --- what processes do --------------------------------------------------------------------------------------

    def append(self, writer, term, act):
        """As a store does it: the writer's next number is free, or the entry does not come to be."""
        if writer.seen != len(self.log):
            return False
        made = entry(len(self.log) + 1, term, act)
        before = self.histories[-1]
        after = fold(before, made)
        self.log.append(made)
        self.histories.append(after)
        self.check_entry(made, before, after)
        return True

    def writer(self, w, wakes):
        """The process, which looks at the log before it acts, or has not looked since it last did."""
        if wakes != "late":
            self.writers[w].seen = len(self.log)
        return self.writers[w]

    def numbers(self, places):
        """Generations by their place among those alive; a few that are not."""
        alive = sorted(self.histories[-1].generations)
        return tuple(alive[place % len(alive)] if alive and place < 35 else place for place in places)

    @initialize()
    def somebody_begins(self):
        self.claim(0, "fresh")

    @rule(w=WRITERS, wakes=WAKES, chance=st.integers(0, 3))
    def claim(self, w, wakes, chance=0):
        if chance:
            return  # terms that last long enough for something to happen under them
        writer = self.writer(w, wakes)
        term = self.histories[writer.seen].term + 1
        if self.append(writer, term, Claim(owner=f"writer {w}")):
            writer.term, writer.saving, writer.given_up = term, None, set()

    def write(self, writer, base, share, group, trusted):
        """The objects of a save, which may reuse some of those of a generation that the writer knows."""
        self.attempts += 1
        known = self.histories[writer.seen].generations
        bases = (sorted(known)[base % len(known)],) if known and share else ()
        made = manifest(writer.term, 1, nonce=self.attempts, bases=bases, group=group, trusted=trusted)
        own = image_key(made.attempt, 0)
        reused = [key for number in bases for key in sorted(self.refers[known[number].manifest.attempt])]
        self.refers[made.attempt] = {own, *reused[base % 2 :]}
        self.objects.add(own)
        return Commit(manifest=made)

    @rule(w=WRITERS, wakes=WAKES, base=PLACES, share=st.booleans(), group=GROUPS, trusted=TRUSTED)
    def begin_a_save(self, w, wakes, base, share, group, trusted):
        writer = self.writer(w, wakes)
        if writer.saving is not None:
            writer.given_up.add(writer.saving.manifest.attempt)
        writer.saving = self.write(writer, base, share, group, trusted)

    @precondition(lambda self: any(writer.saving for writer in self.writers))
    @rule(w=WRITERS, wakes=WAKES)
    def commit(self, w, wakes):
        writer = self.writer(w, wakes)
        if writer.saving is not None and self.append(writer, writer.term, writer.saving):
            writer.saving = None

    @rule(base=PLACES, share=st.booleans(), group=GROUPS, trusted=TRUSTED)
    def save(self, base, share, group, trusted):
        """The process that holds the newest term saves undisturbed, so that there is something to lose."""
        w = max(range(len(self.writers)), key=lambda w: self.writers[w].term)
        writer = self.writer(w, "fresh")
        self.append(writer, writer.term, self.write(writer, base, share, group, trusted))

    @rule(w=WRITERS, wakes=WAKES, places=MANY_PLACES, visiting=st.booleans())
    def retire(self, w, wakes, places, visiting):
        writer = self.writer(w, wakes)
        term = self.histories[writer.seen].term if visiting else writer.term
        self.append(writer, term, Retire(generations=self.numbers(places)))

    @rule(w=WRITERS, wakes=WAKES, place=PLACES, kind=KINDS, visiting=st.booleans())
    def mark(self, w, wakes, place, kind, visiting):
        (generation,) = self.numbers((place,))
        act = {
            "pin": Pin(generation=generation),
            "unpin": Unpin(generation=generation),
            "held": Verified(generation=generation, held=True),
            "broken": Verified(generation=generation, held=False),
        }[kind]
        writer = self.writer(w, wakes)
        self.append(writer, self.histories[writer.seen].term if visiting else writer.term, act)

    @rule(w=WRITERS, wakes=WAKES)
    def plan_a_sweep(self, w, wakes):
        writer = self.writer(w, wakes)
        history = self.histories[writer.seen]
        alive = [g.manifest for g in history.generations.values()]
        referred = set().union(*(self.refers[manifest.attempt] for manifest in alive if manifest.bases))
        given_up = writer.given_up if writer.term == history.term else set()
        listing = [Listed(key, 1, 0.0) for key in sorted(self.objects)]
        self.doomed.append([one.key for one in plan_sweep(history, listing, referred, given_up)])

    @precondition(lambda self: self.doomed)
    @rule(place=PLACES)
    def carry_a_sweep_out(self, place):
        self.objects.difference_update(self.doomed.pop(place % len(self.doomed)))

    # --- what must hold -----------------------------------------------------------------------------------------

    def check_entry(self, made, before, after):
        is_claim = isinstance(made.act, Claim)
        stale = made.term != (before.term + 1 if is_claim else before.term) or (before.term == 0 and not is_claim)
        if stale:
            assert (after.generations, after.retired, after.term) == (before.generations, before.retired, before.term)
            assert made.number in after.void
        if isinstance(made.act, Commit):
            lost = set(made.act.manifest.bases) - set(before.generations)
            assert not (lost and made.number in after.generations), "a commit and the loss of its base both won"
        gone = set(before.generations) - set(after.generations)
        assert gone <= set(made.act.generations) if isinstance(made.act, Retire) else not gone
        for number in gone:
            self.check_may_go(before, before.generations[number])

    def check_may_go(self, before, generation):
        mates = [g for g in before.generations.values() if g.manifest.group == generation.manifest.group]
        assert not generation.pinned
        assert generation.number != max(g.number for g in mates)
        good = [g.number for g in mates if g.manifest.trusted and g.verified != Verification.BROKEN]
        held = [g.number for g in mates if g.manifest.trusted and g.verified == Verification.HELD]
        assert generation.number not in (max(good, default=0), max(held, default=0))

    @invariant()
    def every_generation_has_all_its_objects(self):
        for generation in self.histories[-1].generations.values():
            missing = self.refers[generation.manifest.attempt] - self.objects
            assert not missing, f"generation {generation.number} has lost {sorted(missing)}"

    @invariant()
    def every_generation_was_committed_by_the_newest_claimant(self):
        good_claims = [made.number for made in self.log if isinstance(made.act, Claim)]
        good_claims = [number for number in good_claims if number not in self.histories[-1].void]
        for generation in self.histories[-1].generations.values():
            assert generation.term == sum(number < generation.number for number in good_claims)

    def teardown(self):
        """However the log is cut into parts, all who read it know the same."""
        for cut in range(0, len(self.log) + 1, 7):
            assert fold_all(fold_all(EMPTY, self.log[:cut]), self.log[cut:]) == self.histories[-1]
        committed = [g.manifest.attempt for g in self.histories[-1].generations.values()]
        assert len(committed) == len(set(committed))


ManyWriters.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
test_writers_of_several_terms_leave_one_truth_and_nothing_that_it_needs_is_swept = ManyWriters.TestCase
