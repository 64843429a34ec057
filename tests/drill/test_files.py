import errno
import os

import msgspec
import pytest

from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.opening import open_store
from closeranks.drill.fault import Fault, Kind, Lasting, Moment
from closeranks.drill.files import DrilledFiles, Planned, files_of_drill
from closeranks.drill.inject import claims_of

TEXT = [memoryview(b"twelve bytes")]


def disk(tmp_path, kind, lasting=Lasting.STUCK):
    fault = Fault(kind=kind, seat=0, step=3, moment=Moment.SNAPSHOT, lasting=lasting)
    claim = tmp_path / "claim"
    return DirectoryStore(tmp_path / "store", DrilledFiles([Planned(fault, claim)])), claim


@pytest.mark.parametrize(("kind", "said"), [(Kind.NO_SPACE, "ENOSPC"), (Kind.IO_ERROR, "EIO")])
def test_a_disk_fails_from_the_strike_on_and_not_before(tmp_path, kind, said):
    store, claim = disk(tmp_path, kind)
    store.write("data/first", TEXT)
    claim.touch()
    with pytest.raises(StoreProblem, match=said):
        store.write("data/second", TEXT)
    assert store.read("data/first", 100) == b"twelve bytes"


def test_a_torn_write_that_says_it_is_whole_is_noticed_where_it_can_be_repeated(tmp_path):
    store, claim = disk(tmp_path, Kind.TORN_WRITE)
    claim.touch()
    with pytest.raises(StoreProblem, match="EIO"):
        store.write("data/torn", TEXT)


@pytest.mark.parametrize(
    ("lasting", "failures"), [(Lasting.TRANSIENT, [0]), (Lasting.INTERMITTENT, [0, 3]), (Lasting.STUCK, list(range(6)))]
)
def test_a_disk_fails_once_every_third_time_or_always(tmp_path, lasting, failures):
    fault = Fault(kind=Kind.NO_SPACE, seat=0, step=3, moment=Moment.SNAPSHOT, lasting=lasting)
    claim = tmp_path / "claim"
    claim.touch()
    files = DrilledFiles([Planned(fault, claim)])
    failed = []
    for number in range(6):
        try:
            files.mkdir(tmp_path / str(number))
        except OSError as error:
            failed.append((number, error.errno))
    assert failed == [(number, errno.ENOSPC) for number in failures]


def test_stores_have_plain_files_outside_drills_and_in_those_that_leave_disks_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("CLOSERANKS_DRILL", raising=False)
    assert files_of_drill() is None
    path = tmp_path / "faults.json"
    path.write_bytes(msgspec.json.encode([Fault(kind=Kind.KILL, seat=0, step=1, moment=Moment.APPLY)]))
    monkeypatch.setenv("CLOSERANKS_DRILL", str(path))
    assert files_of_drill() is None


def test_the_store_of_a_drilled_run_fails_once_a_worker_has_left_its_claim(monkeypatch, tmp_path):
    path = tmp_path / "faults.json"
    kill = Fault(kind=Kind.KILL, seat=0, step=1, moment=Moment.APPLY)
    full = Fault(kind=Kind.NO_SPACE, seat=0, step=1, moment=Moment.SNAPSHOT, lasting=Lasting.STUCK)
    path.write_bytes(msgspec.json.encode([kill, full]))
    monkeypatch.setenv("CLOSERANKS_DRILL", str(path))
    store = open_store(str(tmp_path / "store"))
    store.write("data/first", TEXT)
    claims = claims_of(path)
    claims.mkdir()
    os.close(os.open(claims / "1", os.O_CREAT | os.O_WRONLY, 0o600))
    with pytest.raises(StoreProblem, match="ENOSPC"):
        store.write("data/second", TEXT)
