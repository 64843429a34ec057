"""Saving and loading as a library, by one process with a real keeper: what users of other libraries complain about."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from blake3 import blake3
from tests.checkpoint.test_capture import state_bits, trained
from torch import nn

import closeranks
import closeranks.checkpoint as ck
from closeranks.checkpoint import keeper_durable
from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drill_files import FailingFiles, Fault
from closeranks.checkpoint.entries import decode_entry, encode_entry
from closeranks.checkpoint.format import Commit
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Publish
from closeranks.checkpoint.keeper_work import Images, Mailbox, Ticket
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import Fenced, NothingToRestore, SaveFailed, StoreRefused
from closeranks.checkpoint.shard_index import decode_index, encode_index
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.writing import Options
from closeranks.train.capture import capture, copy_into
from closeranks.train.tree import NotProtectable

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
DEADLINE_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def checkpointer(store: Path) -> Iterator[ck.Checkpointer]:
    made = ck.Checkpointer(store, retention="last=20", settings=ck.Settings(deadline_s=DEADLINE_S))
    yield made
    with contextlib.suppress(SaveFailed):
        made.close()


def value_of(store: Path, **which: int) -> float:
    """Of the one tensor in the store, all of whose elements are equal."""
    state: dict[str, Any] = {"w": torch.zeros(1000)}
    with ck.Checkpointer(store) as reader:
        reader.load(state, **which)
    assert len(state["w"].unique()) == 1
    return float(state["w"][0])


def generations(store: Path) -> dict[int, int]:
    """Step of each generation."""
    history = CommitLog(DirectoryStore(store)).refresh()
    return {number: one.manifest.step for number, one in history.generations.items()}


def image_files(store: Path) -> list[Path]:
    """Oldest first."""
    return sorted(store.rglob("w00000.safetensors"), key=lambda path: path.stat().st_mtime_ns)


def flip_last_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


# --- saving -----------------------------------------------------------------------------------------------------


def test_a_save_sees_the_step_at_which_it_was_taken_not_what_comes_next(
    store: Path, checkpointer: ck.Checkpointer
) -> None:
    w = torch.full((1000,), 1.0)
    saving = checkpointer.save({"w": w}, step=1, wait=False)
    w.fill_(2.0)
    assert saving.result().step == 1
    assert value_of(store) == 1.0


def test_saves_back_to_back_all_become_durable_each_with_its_own_values(
    store: Path, checkpointer: ck.Checkpointer
) -> None:
    w, savings = torch.zeros(1000), []
    for step in range(6):
        w.fill_(step)
        savings.append(checkpointer.save({"w": w}, step=step, wait=False))
    saved = [saving.result() for saving in savings]
    assert [one.step for one in saved] == list(range(6))
    assert [value_of(store, generation=one.generation) for one in saved] == list(range(6))


def kill_in_mid_save(checkpointer: ck.Checkpointer, state: dict[str, Any], step: int) -> Any:
    """An asynchronous save whose keeper dies before it can write."""
    assert checkpointer.keeper_pid is not None
    pid = checkpointer.keeper_pid
    os.kill(pid, signal.SIGSTOP)
    saving = checkpointer.save(state, step=step, wait=False)
    os.kill(pid, signal.SIGKILL)
    return saving


def test_an_interrupted_save_is_told_at_the_next_one_and_the_same_step_can_be_saved_again(
    store: Path, checkpointer: ck.Checkpointer
) -> None:
    state = {"w": torch.full((1000,), 1.0)}
    checkpointer.save(state, step=0)
    saving = kill_in_mid_save(checkpointer, state, 1)
    end_s = time.monotonic() + DEADLINE_S
    while not saving.done():
        assert time.monotonic() < end_s
    state["w"].fill_(3.0)
    with pytest.raises(SaveFailed, match=r"the save of step 1 failed: the keeper .* was killed by SIGKILL"):
        checkpointer.save(state, step=1)
    checkpointer.save(state, step=1)
    assert list(generations(store).values()) == [0, 1]
    assert value_of(store) == 3.0


def test_a_killed_keeper_is_an_error_of_close_unless_it_was_heard_of_before(checkpointer: ck.Checkpointer) -> None:
    state = {"w": torch.zeros(1000)}
    checkpointer.save(state, step=0)
    saving = kill_in_mid_save(checkpointer, state, 1)
    with pytest.raises(SaveFailed, match="SIGKILL"):
        saving.result()
    checkpointer.save(state, step=2)
    kill_in_mid_save(checkpointer, state, 3)
    with pytest.raises(SaveFailed, match="the save of step 3 failed"):
        checkpointer.close()
    with pytest.raises(SaveFailed, match="was closed"):
        checkpointer.save(state, step=4)


def test_a_full_disk_fails_one_save_loudly_and_the_next_one_works(store: Path, checkpointer: ck.Checkpointer) -> None:
    state = {"w": torch.full((300_000,), 1.0)}
    checkpointer.save({"w": torch.zeros(1)}, step=0)
    assert checkpointer.keeper_pid is not None
    before = resource.prlimit(checkpointer.keeper_pid, resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    with pytest.raises(SaveFailed, match=r"the save of step 1 failed: .*store"):
        checkpointer.save(state, step=1)
    resource.prlimit(checkpointer.keeper_pid, resource.RLIMIT_FSIZE, before)
    checkpointer.save(state, step=1)
    assert list(generations(store).values()) == [0, 1]


def test_one_write_error_that_passes_is_tried_again_and_is_no_failure(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FailingFiles([Fault(errno=errno.EIO, call="pwrite", below="safetensors")])
    monkeypatch.setattr(keeper_durable, "open_store", lambda text: DirectoryStore(Path(text), files))
    arena, w = Arena.create("test"), torch.full((1000,), 4.0)
    copy_into(capture({"w": w}, {}, 0, 1), arena, 3)
    durable = keeper_durable.Durable(KeeperConfig(store=str(store), job="default", owner="test", lead=True))
    publish = Publish(
        save=1, step=3, attempt=attempt_name(durable.open().term, 3, "0" * 8), writers=(0,), world=1, lead=True,
        layout="replicated", deadline_s=DEADLINE_S,
    )  # fmt: skip
    durable.save(Ticket(Images(publish, [arena], Options()), "durable", 0.0, Mailbox()))
    assert files._seen[0] > 1, "the error was never given"
    assert value_of(store) == 4.0


def test_memory_is_flat_over_fifty_saves(checkpointer: ck.Checkpointer) -> None:
    state, grown = {"w": torch.zeros(2_000_000)}, []

    def resident_bytes() -> int:
        assert checkpointer.keeper_pid is not None
        pages = [
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (os.getpid(), checkpointer.keeper_pid)
        ]
        return sum(pages) * resource.getpagesize()

    for step in range(50):
        state["w"][step] = step
        saving = checkpointer.save(state, step=step, wait=False)
        if step in {9, 49}:
            saving.result()
            grown.append(resident_bytes())
    # The keeper maps the arenas of its last two saves, which may be one and the same: forty would be a leak.
    assert grown[1] - grown[0] < 2 * state["w"].nbytes, "copies of the state were kept"


def test_an_error_that_ends_the_training_is_not_hidden_by_a_lost_save(store: Path) -> None:
    def train() -> None:
        state = {"w": torch.zeros(1000)}
        with ck.Checkpointer(store) as checkpointer:
            checkpointer.save(state, step=0)
            kill_in_mid_save(checkpointer, state, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def test_a_store_of_another_job_is_refused_with_the_way_out(store: Path) -> None:
    with ck.Checkpointer(store, job="mine") as checkpointer:
        checkpointer.save({"w": torch.zeros(1)}, step=0)
    with ck.Checkpointer(store, job="theirs") as other:
        with pytest.raises(StoreRefused, match="expected the store of job 'theirs', got that of job 'mine'"):
            other.save({"w": torch.zeros(1)}, step=0)
        with pytest.raises(StoreRefused, match="'mine'"):
            other.load({"w": torch.zeros(1)})


@pytest.mark.parametrize("killed", [False, True])
def test_a_writer_that_was_taken_over_stays_out_whatever_it_tries(store: Path, killed: bool) -> None:
    state = {"w": torch.full((1000,), 1.0)}
    stale = ck.Checkpointer(store)
    with ck.Checkpointer(store) as successor:
        stale.save(state, step=0)
        successor.save({"w": torch.full((1000,), 2.0)}, step=1)
        if killed:
            assert stale.keeper_pid is not None
            os.kill(stale.keeper_pid, signal.SIGKILL)
        heard = []
        for step in range(2, 5):
            with pytest.raises((SaveFailed, Fenced)) as caught:
                stale.save(state, step=step)
            heard.append(type(caught.value))
        assert heard[1:] == [Fenced, Fenced]
        successor.save({"w": torch.full((1000,), 3.0)}, step=2)
    stale.close()
    assert list(generations(store).values()) == [0, 1, 2]
    assert value_of(store) == 3.0


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(closeranks.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_lost_save_that_nobody_asked_about_is_the_exit_code_of_the_process(store: Path) -> None:
    done = python(
        """
        import os, signal, sys, torch
        import closeranks.checkpoint as ck
        from closeranks.train import kept_checkpointers
        state = {"w": torch.zeros(10)}
        ck.save(sys.argv[1], state, step=0)
        (kept,) = kept_checkpointers._kept.values()
        os.kill(kept.keeper_pid, signal.SIGSTOP)
        ck.async_save(sys.argv[1], state, step=1)
        os.kill(kept.keeper_pid, signal.SIGKILL)
        print("trained")
        """,
        str(store),
    )
    assert (done.returncode, done.stdout) == (1, "trained\n")
    assert "the save of step 1 failed: the keeper" in done.stderr


def test_a_process_that_ends_without_waiting_has_saved(store: Path) -> None:
    done = python(
        """
        import sys, torch
        import closeranks.checkpoint as ck
        ck.async_save(sys.argv[1], {"w": torch.full((1000,), 7.0)}, step=1)
        """,
        str(store),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert value_of(store) == 7.0


def test_importing_the_package_does_not_import_torch_and_names_are_found_at_their_first_use() -> None:
    done = python(
        "import sys, closeranks.checkpoint as ck; print('torch' in sys.modules, callable(ck.save), dir(ck)[0])"
    )
    assert done.stdout.split() == ["False", "True", "Checkpointer"]
    with pytest.raises(AttributeError, match="no attribute 'sav'; it exports Checkpointer"):
        _ = ck.sav


# --- loading ----------------------------------------------------------------------------------------------------


def two_generations(store: Path) -> tuple[dict[str, Any], list[Any]]:
    """Of a model and its optimizer; their bits at each."""
    model, optimizer = trained()
    state, bits = {"model": model, "optimizer": optimizer}, []
    with ck.Checkpointer(store, settings=ck.Settings(options=Options(incremental=False))) as checkpointer:
        for step in range(2):
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpointer.save(state, step=step)
            bits.append(state_bits(model, optimizer))
    return state, bits


def test_a_damaged_generation_is_passed_over_and_said_and_none_is_half_applied(store: Path) -> None:
    _, bits = two_generations(store)
    older, newer = image_files(store)
    flip_last_byte(newer)
    model, optimizer = trained(1)
    state = {"model": model, "optimizer": optimizer}
    with ck.Checkpointer(store) as checkpointer:
        loaded = checkpointer.load(state)
        assert (loaded.step, state_bits(model, optimizer)) == (0, bits[0])
        assert any("expected blake3" in note or "expected xxh3" in note for note in loaded.notes)
        flip_last_byte(older)
        fresh, fresh_optimizer = trained(2)
        before = state_bits(fresh, fresh_optimizer)
        with pytest.raises(NothingToRestore, match=r"generation \d+: .*generation \d+: "):
            checkpointer.load({"model": fresh, "optimizer": fresh_optimizer})
        assert state_bits(fresh, fresh_optimizer) == before


def strip_digests(store: Path, *, sign_again: bool) -> None:
    """As somebody would who wants changed bytes to be loaded; the log is changed to fit, or not."""
    for file in store.rglob("w00000.json"):
        index = decode_index(file.read_bytes(), "index")
        extents = tuple(msgspec.structs.replace(extent, xxh3="", blake3="") for extent in index.extents)
        data = encode_index(msgspec.structs.replace(index, extents=extents))
        file.chmod(0o600)
        file.write_bytes(data)
        for log in store.glob("log/*.json") if sign_again else ():
            entry = decode_entry(log.read_bytes(), int(log.stem), str(log))
            if isinstance(entry.act, Commit) and entry.act.manifest.attempt == index.attempt:
                (ref,) = entry.act.manifest.shards
                ref = msgspec.structs.replace(ref, length=len(data), blake3=blake3(data).hexdigest())
                manifest = msgspec.structs.replace(entry.act.manifest, shards=(ref,))
                log.chmod(0o600)
                log.write_bytes(encode_entry(msgspec.structs.replace(entry, act=Commit(manifest=manifest))))


@pytest.mark.parametrize("sign_again", [False, True])
def test_a_checkpoint_without_digests_is_refused(store: Path, sign_again: bool) -> None:
    with ck.Checkpointer(store) as checkpointer:
        checkpointer.save({"w": torch.ones(1000)}, step=0)
    strip_digests(store, sign_again=sign_again)
    live = torch.zeros(1000)
    with ck.Checkpointer(store) as checkpointer, pytest.raises(NothingToRestore, match=r"digest|blake3"):
        checkpointer.load({"w": live})
    assert not live.any()


def test_no_store_and_a_step_that_does_not_exist_are_told_apart(store: Path) -> None:
    with ck.Checkpointer(store) as checkpointer:
        with pytest.raises(NothingToRestore, match="got nothing at all; is it the first run, or another path"):
            checkpointer.load({"w": torch.zeros(1)})
        checkpointer.save({"w": torch.zeros(1)}, step=0)
        with pytest.raises(NothingToRestore, match="none of step 5"):
            checkpointer.load({"w": torch.zeros(1)}, step=5)
        with pytest.raises(NothingToRestore, match="there is no generation 99"):
            checkpointer.load({"w": torch.zeros(1)}, generation=99)


def test_a_module_level_save_and_load_bring_everything_back(store: Path) -> None:
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "extra": {"seen": [1]}}
    torch.manual_seed(3)
    ck.save(store, state, step=8, data_position={"epoch": 1, "sample": 77})
    drawn = torch.rand(3)
    fresh, fresh_optimizer = trained(1, 0)
    other: dict[str, Any] = {
        "model": fresh, "optimizer": fresh_optimizer, "extra": {},
        "scheduler": torch.optim.lr_scheduler.StepLR(fresh_optimizer, 3, 0.5),
        "scaler": torch.amp.GradScaler("cpu"),
    }  # fmt: skip
    loaded = ck.load(store, other)
    assert (loaded.step, loaded.data_position) == (8, {"epoch": 1, "sample": 77})
    assert state_bits(*(other[name] for name in ("model", "optimizer", "scheduler", "scaler"))) == state_bits(
        model, optimizer, scheduler, scaler
    )
    assert other["extra"] == {"seen": [1]}
    assert torch.equal(torch.rand(3), drawn)


def test_a_model_without_memory_is_refused_by_name_and_the_next_save_works(checkpointer: ck.Checkpointer) -> None:
    with pytest.raises(NotProtectable, match=r"^model/weight: expected a tensor with memory"):
        checkpointer.save({"model": nn.Linear(2, 2, device="meta")}, step=0)
    checkpointer.save({"model": nn.Linear(2, 2)}, step=0)


def test_a_part_of_the_state_has_an_interval_and_versions_of_its_own(checkpointer: ck.Checkpointer) -> None:
    rest, table = {"w": torch.arange(4.0)}, {"rows": torch.zeros(1000)}
    checkpointer.save(rest, step=0)
    for step in range(1, 4):
        table["rows"][step] = step
        checkpointer.save(table, step=step, part="embeddings")
    checkpointer.save(rest, step=10)
    loaded = {"rows": torch.zeros(1000)}
    found = checkpointer.load(loaded, part="embeddings")
    assert (found.step, loaded["rows"].nonzero().flatten().tolist()) == (3, [1, 2, 3])
    assert checkpointer.load(loaded, part="embeddings", step=2).step == 2
    assert checkpointer.load({"w": torch.zeros(4)}).step == 10
    with pytest.raises(NothingToRestore):
        checkpointer.load(loaded, part="another")
    with pytest.raises(ValueError, match=r"part='\.\./x'"):
        checkpointer.save(table, step=4, part="../x")
