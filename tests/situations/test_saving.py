"""State that lasts: whatever dies, a run with a store goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.reading import read_index
from closeranks.checkpoint.stores.opening import open_store
from closeranks.drill.verdict import Final
from closeranks.events import (
    CheckpointCommitted,
    CheckpointsRetired,
    CheckpointVerified,
    Decided,
    IncidentClosed,
    Rung,
    RunResumed,
    SaveFailed,
    SaveIntervalChosen,
    SignalReceived,
    StateLoaded,
    StepClosed,
    TierReached,
)
from real_run import eventually, gone
from situations.trial import SOURCE, Trial

pytestmark = pytest.mark.process

SCRIPT = str(Path(__file__).with_name("lasting.py"))
STEPS = 24
TWO = ("--nproc-per-node", "2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Final]:
    """The final states of the run that nothing disturbs and that saves nothing."""
    trial = Trial(tmp_path_factory.mktemp("whole"), *TWO, SCRIPT, str(STEPS))
    try:
        ended = trial.end()
    finally:
        trial.clean_up()
    assert ended.code == 0, ended.output
    return ended.finals


def kill_everything(trial: Trial) -> None:
    """What a power cut leaves of processes: nothing, all at the same time."""
    kill_tree(trial.process)


def kill_tree(process: subprocess.Popen[Any]) -> None:
    tree = [process.pid, *_descendants(process.pid)]
    for pid in tree:
        os.kill(pid, signal.SIGSTOP)  # so that nobody notices the end of another
    for pid in tree:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: all(gone(pid) for pid in tree), 10.0)


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children.extend(map(int, (task / "children").read_text().split()))
    return [found for child in children for found in (child, *_descendants(child))]


def test_a_run_that_is_killed_whole_goes_on_bit_for_bit(start, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "20")
    store = tmp_path / "store"
    first = start("", *TWO, "--store", str(store), "--save-every", "4", script=(SCRIPT, str(STEPS)))
    first.wait_for(StepClosed, step=19)
    assert eventually(lambda: _committed(first) >= 7, 60.0), first.output()
    kill_everything(first)
    monkeypatch.delenv("LASTING_HOLD")
    second = start("", "--resume", str(first.folder), script=())
    ended = second.end()
    assert ended.code == 0, ended.output
    loaded = ended.events(StateLoaded)[0]
    resumed = ended.events(RunResumed)[0]
    assert loaded.step == resumed.step >= 7
    assert [e.step for e in ended.events(StepClosed)] == list(range(loaded.step + 1, STEPS))
    assert ended.finals == whole


def _committed(trial: Trial) -> int:
    lines = (trial.folder / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines if '"CheckpointCommitted"' in line]
    return max((event["step"] for event in events), default=-1)


def test_a_group_that_dies_as_a_whole_goes_on_from_memory(start, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "14")
    trial = start("", *TWO, "--store", str(tmp_path / "store"), "--save-every", "4", script=(SCRIPT, str(STEPS)))
    trial.wait_for(CheckpointCommitted)
    trial.see(StepClosed, step=13)
    for seat in range(2):
        trial.strike(seat)
    trial.wait_for(StateLoaded)
    trial.let_go("go")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert Rung.COLD_RESTART in [e.rung for e in ended.events(Decided)]
    loaded = ended.events(StateLoaded)[0]
    assert "memory" in loaded.source
    assert ended.events(IncidentClosed)[-1].steps_lost == 13 - loaded.step
    assert ended.finals == whole


def test_a_notice_is_enough_to_save(start, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "9")
    first = start("", *TWO, "--store", str(tmp_path / "store"), "--save-every", "1000", script=(SCRIPT, str(STEPS)))
    first.wait_for(StepClosed, step=8)
    first.process.send_signal(signal.SIGTERM)
    first.wait_for(SignalReceived)
    first.let_go("go")
    ended = first.end()
    assert ended.code == 143, ended.output
    last = ended.events(StepClosed)[-1].step
    assert ended.events(CheckpointCommitted)[-1].step == last
    assert f"step {last} is in the store" in ended.output
    monkeypatch.delenv("LASTING_HOLD")
    second = start("", "--resume", str(first.folder), script=()).end()
    assert second.code == 0, second.output
    assert [e.step for e in second.events(StepClosed)] == list(range(last + 1, STEPS))
    assert second.finals == whole


def test_sharded_state_goes_on_from_the_newest_snapshot(start, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_KIND", "sharded")
    undisturbed = start("", *TWO, script=(SCRIPT, str(STEPS))).end()
    assert undisturbed.code == 0, undisturbed.output
    monkeypatch.setenv("LASTING_HOLD", "14")
    trial = start("", *TWO, "--store", str(tmp_path / "store"), "--save-every", "4", script=(SCRIPT, str(STEPS)))
    trial.wait_for(CheckpointCommitted)
    trial.see(StepClosed, step=13)
    trial.strike(1)
    trial.wait_for(StateLoaded)
    trial.let_go("go")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert ended.events(StateLoaded)[0].step >= 3
    assert ended.finals == undisturbed.finals


def test_a_run_goes_on_with_another_number_of_seats(start, tmp_path):
    first = start("", "--nproc-per-node", "4", "--store", str(tmp_path / "store"), script=(SCRIPT, "8")).end()
    assert first.code == 0, first.output
    run = str(next(p for p in tmp_path.glob("*/run") if (p / "final").exists()))
    second = start("", "--resume", run, "--nproc-per-node", "2", script=(SCRIPT, "12")).end()
    assert second.code == 0, second.output
    assert second.events(StateLoaded)[0].step == 7
    assert [e.step for e in second.events(StepClosed)] == list(range(8, 12))


def test_a_store_that_fails_costs_saves_and_not_the_run_but_the_exit_code_says_so(start, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "9")
    store = tmp_path / "store"
    trial = start("", *TWO, "--store", str(store), "--save-every", "4", script=(SCRIPT, str(STEPS)))
    trial.wait_for(CheckpointCommitted)
    for name in ("data", "log"):
        (store / name).rename(store / f"{name}.away")
        (store / name).write_text("no folder any more")
    trial.let_go("go")
    ended = trial.end(within_s=120.0)
    assert ended.code == 74, ended.output
    assert ended.events(SaveFailed)
    assert "NOT durable" in ended.output
    assert ended.events(StepClosed)[-1].step == STEPS - 1, "training goes on"


def test_a_keeper_that_is_killed_is_replaced(start, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "9")
    trial = start("", *TWO, "--store", str(tmp_path / "store"), "--save-every", "4", script=(SCRIPT, str(STEPS)))
    trial.wait_for(CheckpointCommitted)
    for pid in _descendants(trial.process.pid):
        if b"closeranks.checkpoint.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    trial.let_go("go")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert ended.events(CheckpointCommitted)[-1].step == STEPS - 1
    assert ended.finals == whole


def test_a_store_that_holds_a_run_is_not_used_by_accident(start, tmp_path):
    store = str(tmp_path / "store")
    assert start("", "--store", store, script=(SCRIPT, "3")).end().code == 0
    again = start("", "--store", store, script=(SCRIPT, "3")).end()
    assert again.code == 2
    assert "holds checkpoints of this job already, up to step 2" in again.output
    assert "--resume auto" in again.output
    other = start("", "--store", store, "--job", "another", script=(SCRIPT, "3")).end()
    assert other.code == 2
    assert "lasting" in other.output
    assert start("", "--store", store, "--resume", "auto", script=(SCRIPT, "5")).end().code == 0


def test_the_interval_is_chosen_and_old_checkpoints_are_given_up(start, tmp_path):
    store = str(tmp_path / "store")
    ended = start("", *TWO, "--store", store, "--save-every", "2", "--keep", "last=2", script=(SCRIPT, "60")).end()
    assert ended.code == 0, ended.output
    assert ended.events(CheckpointsRetired)
    chosen = start("", *TWO, "--store", f"{store}2", script=(SCRIPT, "60")).end()
    assert chosen.code == 0, chosen.output
    assert chosen.events(SaveIntervalChosen)
    assert chosen.events(CheckpointCommitted)[-1].step == 59, "a run that completes always saves its end"


def test_a_checkpoint_is_tried_out_by_a_spare(start, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "14")  # until that has happened: the newest checkpoint stays
    saving = ("--store", str(tmp_path / "store"), "--save-every", "4", "--verify-every", "0.4s")
    trial = start("", *TWO, "--spares", "1", *saving, script=(SCRIPT, str(STEPS)))
    while "equal bit for bit" not in trial.wait_for(CheckpointVerified, held=True).event.detail:
        pass
    trial.let_go("go")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert not [e for e in ended.events(CheckpointVerified) if "it was" in e.detail or "could not" in e.detail]


def test_a_run_whose_store_was_taken_over_ends(start, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTING_HOLD", "9")
    store = str(tmp_path / "store")
    first = start("", "--store", store, "--save-every", "4", script=(SCRIPT, str(STEPS)))
    first.wait_for(CheckpointCommitted)
    monkeypatch.delenv("LASTING_HOLD")
    second = start("", "--store", store, "--resume", "auto", script=(SCRIPT, str(STEPS))).end()
    assert second.code == 0, second.output
    first.let_go("go")
    ended = first.end()
    assert ended.code == 1, ended.output
    assert "another run has taken the store over" in ended.output
    third = start("", "--store", store, "--resume", "auto", script=(SCRIPT, str(STEPS))).end()
    assert third.code == 0, third.output
    assert third.finals == second.finals, "the first run changed nothing after the second had begun"


@pytest.fixture
def peers(monkeypatch):
    """Memory of three other nodes: a process for each."""
    monkeypatch.setenv("CLOSERANKS_PEER_TOKEN", "a secret of this test")
    command = [sys.executable, "-m", "closeranks", "ckpt", "hold-memory", "--listen", "127.0.0.1:0", "--limit", "64M"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        for _ in range(3)
    ]
    try:
        yield [process.stdout.readline().rsplit(" ", 1)[1].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_what_only_other_nodes_hold_is_enough_to_go_on(start, whole, peers, tmp_path, monkeypatch):
    tiers = tmp_path / "tiers.toml"
    targets = ", ".join(f'"{peer}"' for peer in peers)
    tiers.write_text(
        f'[[tier]]\nkind = "peers"\ntargets = [{targets}]\ncode = "2+1"\n\n'
        '[[tier]]\nkind = "durable"\nevery_steps = 1000\n'
    )
    monkeypatch.setenv("LASTING_HOLD", "20")
    options = ("--store", str(tmp_path / "store"), "--save-every", "4", "--tiers", str(tiers))
    first = start("", *TWO, *options, script=(SCRIPT, str(STEPS)))
    in_store = first.wait_for(CheckpointCommitted).event.step
    newest = -1
    while newest <= in_store:
        newest = first.wait_for(TierReached, tier="peers").event.step
    kill_everything(first)
    monkeypatch.delenv("LASTING_HOLD")
    ended = start("", "--resume", str(first.folder), script=()).end()
    assert ended.code == 0, ended.output
    loaded = ended.events(StateLoaded)[0]
    assert loaded.step >= newest, "the store had only an older save"
    assert "peers" in loaded.source
    assert ended.finals == whole


def test_the_last_state_reaches_a_store_that_was_not_due(start, tmp_path):
    tiers = tmp_path / "tiers.toml"
    tiers.write_text(
        f'[[tier]]\nkind = "disk"\ntargets = ["{tmp_path}/disk"]\n\n[[tier]]\nkind = "durable"\nevery_steps = 1000\n'
    )
    options = ("--store", str(tmp_path / "store"), "--save-every", "1", "--tiers", str(tiers))
    ended = start("", *TWO, *options, script=(SCRIPT, str(STEPS))).end()
    assert ended.code == 0, ended.output
    assert ended.events(CheckpointCommitted)[-1].step == STEPS - 1
    assert ended.events(TierReached)


def _newest_digests(store):
    """What the newest generation holds, by its digests."""
    opened = open_store(str(store))
    newest = CommitLog(opened).refresh().newest()
    indices = [read_index(opened, ref) for ref in newest.manifest.shards]
    return newest.manifest.step, [extent.xxh3 for index in indices for extent in index.extents], indices[0].shared


# The name of this host may have no address.
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1")


@pytest.mark.timeout(300)  # six interpreters that import torch, one after the other
@pytest.mark.parametrize("launcher", [(), TORCHRUN])
def test_the_same_script_lasts_without_the_supervisor(tmp_path, launcher):
    def begin(store, **more):
        environment = os.environ | {
            "PYTHONPATH": str(SOURCE),
            "CLOSERANKS_STORE": str(tmp_path / store),
            "CLOSERANKS_SAVE_EVERY": "4",
            "CLOSERANKS_RUN_DIR": str(tmp_path),  # where the script looks for its signal to go on
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        command = [sys.executable, "-W", "ignore", *launcher, SCRIPT, "10"]
        return subprocess.Popen(command, env=environment | more, start_new_session=True)

    cut = begin("cut", LASTING_HOLD="6")
    assert eventually(lambda: len(list(tmp_path.glob("cut/log/*.json"))) >= 2, 60.0)
    kill_tree(cut)
    assert _newest_digests(tmp_path / "cut")[0] == 3
    assert [run.wait(150) for run in (begin("cut"), begin("whole"))] == [0, 0]
    assert _newest_digests(tmp_path / "cut") == _newest_digests(tmp_path / "whole")


def test_what_was_saved_while_a_seat_was_corrupt_is_written_off(start, tmp_path):
    store = tmp_path / "store"
    saving = ("--store", str(store), "--save-every", "1", "--keep", "last=50")
    script = (str(Path(__file__).with_name("rank.py")), "corrupt-saved", "300")  # a save is asked for many steps ahead
    trial = start("", "--nproc-per-node", "4", *saving, script=script)
    ended = trial.end()
    assert ended.code == 0, ended.output
    off = [event for event in ended.events(CheckpointVerified) if not event.held]
    history = CommitLog(open_store(str(store))).refresh()
    assert off
    # Once it is written off the retention may give it up; alive and good it is not.
    assert not [event for event in off if (one := history.generations.get(event.generation)) and one.is_good]
    assert all(event.generation in {*history.retired, *history.generations} for event in off)
    assert history.newest().manifest.step == 299, "what was saved after the seat was healed is good"
