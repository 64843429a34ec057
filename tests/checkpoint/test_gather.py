"""Phase one and two of a save, with writers that are late, fail, or are not who they say."""

import msgspec
import pytest
from tests.checkpoint.hooked_store import HookedStore

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Extent, Manifest, ShardIndex
from closeranks.checkpoint.gather import Patience, gather, publish_failure, publish_index, unfinished
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import Damaged, SaveFailed, StoreProblem
from closeranks.checkpoint.reading import read_index
from closeranks.checkpoint.shard_index import encode_index
from closeranks.checkpoint.stores.memory import MemoryStore

ATTEMPT = attempt_name(1, 7, "0000abcd")


@pytest.fixture
def store():
    return HookedStore(MemoryStore())


def index(writer, attempt=ATTEMPT, **more):
    extent = Extent(at=0, length=8, object=image_key(attempt, writer), begin=0, stored=8, xxh3="0" * 32)
    return ShardIndex(
        **{"format": 1, "attempt": attempt, "writer": writer, "image_bytes": 8, "slices": (), "extents": (extent,)}
        | more
    )


class Clock:
    """Time that passes only while somebody waits; what is to happen meanwhile happens then."""

    def __init__(self, *meanwhile):
        self.now_s, self.meanwhile = 0.0, list(meanwhile)

    def wait(self, pause_s):
        assert pause_s > 0, "a look without a pause would be a busy wait"
        self.now_s += pause_s
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def patience(self, limit_s=10.0):
        return Patience(limit_s, lambda: self.now_s, self.wait)


def test_it_waits_for_all_writers_and_gives_their_shards_in_order(store):
    publish_index(store, index(2))
    clock = Clock(lambda: publish_index(store, index(0)), lambda: publish_index(store, index(1)))
    gathered = gather(store, ATTEMPT, 3, clock.patience())
    assert [ref.writer for ref in gathered.shards] == [0, 1, 2] and gathered.bases == ()
    assert [read_index(store, ref) for ref in gathered.shards] == [index(writer) for writer in range(3)]


def test_the_bases_of_all_writers_are_those_of_the_commit(store):
    publish_index(store, index(0), (9,))
    publish_index(store, index(1, bases=(4,)))
    publish_index(store, index(2))
    assert gather(store, ATTEMPT, 3, Clock().patience()).bases == (4, 9)


def test_a_reference_covers_every_byte_of_the_index(store):
    ref = publish_index(store, index(0))
    data = store.read(ref.object, 10_000)
    store.inner.delete([ref.object])
    store.inner.create(ref.object, data.replace(b'"length":8', b'"length":9'))
    with pytest.raises(Damaged):
        read_index(store, ref)


def test_a_writer_that_says_it_failed_ends_the_wait_at_once_with_its_problem(store):
    publish_index(store, index(0))
    clock = Clock(lambda: publish_failure(store, ATTEMPT, 1, "no space left on /scratch"))
    with pytest.raises(SaveFailed, match="writer 1: no space left on /scratch"):
        gather(store, ATTEMPT, 3, clock.patience())
    assert clock.now_s < 1


def test_at_the_deadline_the_missing_writers_are_named(store):
    publish_index(store, index(1))
    clock = Clock()
    with pytest.raises(SaveFailed, match="writers 0, 2 of 3 did not finish in time"):
        gather(store, ATTEMPT, 3, clock.patience(limit_s=5.0))
    assert clock.now_s == pytest.approx(5.0)


def test_thousands_of_missing_writers_are_counted_not_listed(store):
    with pytest.raises(SaveFailed, match="and 4992 more of 5000") as raised:
        gather(store, ATTEMPT, 5000, Clock().patience(limit_s=0.0))
    assert len(str(raised.value)) < 300


def test_what_is_there_at_the_deadline_counts(store):
    publish_index(store, index(0))
    assert len(gather(store, ATTEMPT, 1, Clock().patience(limit_s=0.0)).shards) == 1


def test_the_wait_may_be_given_up_from_outside(store):
    def stop():
        raise SaveFailed("asked to stop")

    with pytest.raises(SaveFailed, match="asked to stop"):
        gather(store, ATTEMPT, 1, Clock(stop).patience())


def test_looks_become_rare_while_a_slow_writer_is_waited_for(store):
    looks = []
    store.before = lambda method, _: looks.append(1) if method == "list" else None
    with pytest.raises(SaveFailed):
        gather(store, ATTEMPT, 1, Clock().patience(limit_s=60.0))
    assert len(looks) < 80


@pytest.mark.parametrize("hook", ["before", "after"])
def test_an_index_whose_answer_was_lost_is_published_once(store, hook):
    def lose(method, _):
        if method == "create":
            setattr(store, hook, lambda *_: None)
            raise StoreProblem("the answer was lost", doubtful=True)

    setattr(store, hook, lose)
    ref = publish_index(store, index(0))
    assert read_index(store, ref) == index(0)


def test_two_processes_that_take_themselves_for_the_same_writer_are_told(store):
    publish_index(store, index(0))
    with pytest.raises(SaveFailed, match="another process has saved as writer 0"):
        publish_index(store, index(0, local={"other": True}))


@pytest.mark.parametrize("lie", [{"attempt": attempt_name(1, 8, "0000abcd")}, {"writer": 1}, {"format": 2}])
def test_an_index_that_is_not_of_this_attempt_is_not_gathered(store, lie):
    store.create(index_key(ATTEMPT, 0), encode_index(msgspec.structs.replace(index(0), **lie)))
    with pytest.raises(Damaged, match="expected format 1"):
        gather(store, ATTEMPT, 1, Clock().patience())


@pytest.mark.parametrize("data", [b"", b"[]\n", b"\xff\n", b'{"format":1}\n'])
def test_garbage_is_not_gathered(store, data):
    store.create(index_key(ATTEMPT, 0), data)
    with pytest.raises(Damaged, match="expected the index of a shard"):
        gather(store, ATTEMPT, 1, Clock().patience())


def test_a_successor_knows_which_attempts_of_a_dead_lead_never_happened(store):
    log = CommitLog(store)
    term = log.claim("first")
    done = publish_index(store, index(0))
    log.commit(term, Manifest(attempt=ATTEMPT, step=7, world=1, layout="replicated", shards=(done,)))
    other = attempt_name(1, 8, "0000abce")
    publish_index(store, index(1, attempt=other))
    assert unfinished(store, log.refresh()) == (), "the lead may still commit it"
    CommitLog(store).claim("second")
    assert [(one.attempt, one.indexed) for one in unfinished(store, log.refresh())] == [(other, (1,))]
