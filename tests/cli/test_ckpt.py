import json
import os
import re

import msgspec
import numpy as np
import pytest
from tests.checkpoint.stored import FROZEN, Stored, value
from typer.testing import CliRunner

from closeranks.checkpoint.format import Retire
from closeranks.checkpoint.history import Verification
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.writing import Options
from closeranks.cli.main import app_for


@pytest.fixture
def root(tmp_path):
    return tmp_path / "ckpt"


@pytest.fixture
def stored(root):
    """Generations 2, 3 and 4 of the steps 10, 20 and 30."""
    stored = Stored(DirectoryStore(root))
    for step in (10, 20, 30):
        stored.save(step)
    return stored


@pytest.fixture(autouse=True)
def _as_wide_as_a_pipe(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # make sets it


def ckpt(*arguments):
    arguments = ["ckpt", *map(str, arguments)]
    return CliRunner().invoke(app_for(arguments), arguments)


def in_json(*arguments, code=0):
    result = ckpt(*arguments, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def attempt_of(stored, generation):
    return stored.log.refresh().generations[generation].manifest.attempt


# --- ls and show ------------------------------------------------------------------------------------------------


def test_all_generations_are_listed_the_newest_last(root, stored):
    result = ckpt("ls", root)
    assert result.exit_code == 0
    rows = re.findall(r"^ +(\d) +(\d\d) +2023-11-14 22:1\d:20Z +10\.5 kB +2 +not yet", result.stdout, re.MULTILINE)
    assert rows == [("2", "10"), ("3", "20"), ("4", "30")]


def test_the_list_for_programs_has_every_fact(root, stored):
    listed = in_json("ls", root)
    assert (listed["job"], listed["term"], listed["retired"]) == ("job", 1, 0)
    assert [one["generation"] for one in listed["generations"]] == [2, 3, 4]
    assert set(listed["generations"][0]) == {
        "attempt", "bases", "committed_wall_s", "generation", "group", "image_bytes", "kept_because", "layout",
        "pinned", "run", "step", "trusted", "verified", "verified_detail", "world",
    }  # fmt: skip


def test_what_is_not_usual_is_remarked(root, stored):
    stored.save(40, manifest={"trusted": False})
    stored.save(50, manifest={"group": "embeddings"})
    ckpt("pin", root, 2, "--label", "release")
    output = ckpt("ls", root).stdout
    assert "pinned: release" in output
    assert "not trusted: corruption was suspected" in output
    assert "only the part 'embeddings'" in output


def test_a_store_without_a_commit_is_listed_as_such(root):
    Stored(DirectoryStore(root))
    result = ckpt("ls", root)
    assert result.exit_code == 0
    assert "nothing has been committed yet" in result.stdout


def test_a_generation_is_shown_by_part_or_tensor_by_tensor(root, stored):
    assert re.search(r"^model +2 +1\.54 kB", ckpt("show", root).stdout, re.MULTILINE)
    tensors = ckpt("show", root, "step:10", "--tensors").stdout
    assert re.search(r"^model/weight +F32 +\[24, 8\] +768 B +0\.\.1 \(2\)", tensors, re.MULTILINE)
    shown = in_json("show", root, 3)
    assert (shown["step"], shown["shared"]) == (20, {"epoch": 2})
    assert shown["tensors"][0] == {
        "name": FROZEN, "dtype": "F32", "shape": [24, 8], "stored_bytes": 768, "writers": [0, 1],
    }  # fmt: skip


def test_control_characters_of_a_name_do_not_reach_the_terminal(root):
    stored = Stored(DirectoryStore(root))
    stored.save(10, names=("evil\x1b[2J",))
    output = ckpt("show", root, "--tensors").stdout
    assert "\x1b" not in output
    assert "evil\\x1b[2J" in output


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("99", 2, "generation 99 is not there; alive: 2, 3, 4"),
        ("10", 2, "alive: 2, 3, 4; for a step: step:10"),
        ("step:11", 2, "step 11 is not there; steps: 10, 20, 30"),
        ("latest", 2, "expected a number, newest, verified or step:N, got 'latest'"),
        ("verified", 1, "no generation is verified; a restore drill makes one: closeranks ckpt restore-drill"),
    ],
)
def test_a_generation_that_is_not_there_is_refused_with_those_that_are(root, stored, text, code, message):
    result = ckpt("show", root, text)
    assert result.exit_code == code
    assert message in result.stderr


def test_a_retired_generation_is_said_to_be_retired(root, stored):
    stored.log.append_as_visitor(Retire(generations=(2,)))
    result = ckpt("show", root, 2)
    assert (result.exit_code, "generation 2 was retired; alive: 3, 4" in result.stderr) == (2, True)


# --- what is no store -------------------------------------------------------------------------------------------


def run_folder(folder, store):
    folder.mkdir()
    (folder / "run.json").write_bytes(msgspec.json.encode({"run": "r", "options": {"store": store}, "later": 1}))
    return folder


def test_the_folder_of_a_run_stands_for_its_store(tmp_path, root, stored):
    assert ckpt("ls", run_folder(tmp_path / "run", str(root))).stdout == ckpt("ls", root).stdout


def torn_run_folder(folder):
    run_folder(folder, "x")
    (folder / "run.json").write_bytes(b"{")
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "absent", "no such folder"),
        (lambda folder: folder, "the folder is empty: no checkpoint was ever saved here"),
        (lambda folder: ((folder / "train.py").touch(), folder)[1], "json; it holds 'train.py'"),
        (lambda folder: ((folder / ".metadata").touch(), folder)[1], "it holds a checkpoint of torch.distributed"),
        (lambda folder: ((folder / "a.pt").touch(), folder)[1], "it holds files of torch.save; to take it over:"),
        (lambda folder: ((folder / "a.pt").touch(), folder / "a.pt")[1], "expected a folder, got a file"),
        (lambda folder: run_folder(folder / "run", None), "this run had no --store, so nothing of it was saved"),
        (lambda folder: torn_run_folder(folder / "run"), "run.json: cannot be read"),
        (lambda folder: (Stored(DirectoryStore(folder / "c")), folder / "c/log")[1], "a part of a store; give "),
        (lambda folder: (Stored(DirectoryStore(folder / "c")), folder)[1], "not a store itself; did you mean "),
        (lambda _: "s4://bucket/x", "got s4://"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_what_is_no_store_is_said_to_be_what_it_is_and_nothing_is_made_there(tmp_path, make, message, verb):
    target = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = ckpt(verb, target)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_entry_is_read_from_its_copy_and_verify_names_both(root, stored):
    before = in_json("ls", root)
    (root / "log" / "0000000003.json").write_bytes(b"garbage")
    assert in_json("ls", root) == before
    assert "damaged, read from its copy: entry 3 of the log; see verify" in ckpt("ls", root).stdout
    result = ckpt("verify", root)
    assert result.exit_code == 1
    assert "log: DAMAGED in 1 place\n" in result.stdout
    assert "log/0000000003.json: entry 3 is read from log-copy/0000000003.json" in result.stdout
    assert "the other copy of each of these entries is" in result.stdout
    assert result.stdout.count("all digests hold") == 3
    (damage,) = in_json("verify", root, code=1)["log"]
    assert (damage["object"], damage["served_by"]) == ("log/0000000003.json", "log-copy/0000000003.json")


def test_verify_names_a_damaged_copy_whose_entry_is_sound(root, stored):
    (root / "log-copy" / "0000000002.json").write_bytes(b"garbage")
    assert ckpt("ls", root).stdout.count("damaged") == 0
    result = ckpt("verify", root)
    assert result.exit_code == 1
    assert "log-copy/0000000002.json: entry 2 is read from log/0000000002.json" in result.stdout


def test_a_damaged_log_is_a_problem_with_its_place(root, stored):
    (root / "log" / "0000000003.json").write_bytes(b"garbage")
    (root / "log-copy" / "0000000003.json").write_bytes(b"garbage")
    result = ckpt("ls", root)
    assert result.exit_code == 1
    assert "log/0000000003.json" in result.stderr
    assert "Traceback" not in result.output


# --- verify -----------------------------------------------------------------------------------------------------


def test_a_sound_store_is_sound(root, stored):
    result = ckpt("verify", root)
    assert result.exit_code == 0
    assert result.stdout.count("all digests hold") == 3


def test_damage_names_the_object_the_bytes_and_the_tensors_in_them(root, stored):
    key = image_key(attempt_of(stored, 3), 1)
    stored.damage(key, -10)
    result = ckpt("verify", root)
    assert result.exit_code == 1
    assert f"{key}: bytes 4096 to 5248 (writer 1)" in result.stdout
    assert f"model/weight[12:24, 0:8], {FROZEN}[12:24, 0:8], optimizer/state/0/exp_avg[12:24, 0:8]" in result.stdout
    assert "newest sound one: generation 4 (step 30)" in result.stdout
    (damage,) = in_json("verify", root, 3, code=1)["generations"][0]["damage"]
    assert (damage["object"], damage["begin"], damage["length"]) == (key, 4096, 1152)


def test_all_damage_is_named_and_not_only_the_first(root, stored):
    attempt = attempt_of(stored, 4)
    stored.damage(image_key(attempt, 0), 100)
    stored.store.delete([image_key(attempt, 1)])
    stored.damage(index_key(attempt_of(stored, 2), 1), 40)
    found = in_json("verify", root, code=1)
    damage = {
        one["generation"]: [(d["writer"], d["tensors"][0]) for d in one["damage"]] for one in found["generations"]
    }
    assert damage == {
        2: [(1, "all of this writer")],
        3: [],
        4: [(0, "the header of the image"), (1, "the header of the image")],
    }
    assert len(found["generations"][2]["damage"][1]["tensors"]) == 4


def test_bytes_that_generations_share_are_read_once(root, stored, monkeypatch):
    read = []
    inner = DirectoryStore.read_into
    monkeypatch.setattr(
        DirectoryStore, "read_into", lambda self, key, *rest: read.append((key, *rest)) or inner(self, key, *rest)
    )
    ckpt("verify", root)
    assert len(read) == len({(key, begin) for key, begin, _ in read})


# --- diff -------------------------------------------------------------------------------------------------------


def test_two_generations_are_compared_tensor_by_tensor(root, stored):
    found = in_json("diff", root, 2, "newest")
    assert (found["a"]["step"], found["b"]["step"], found["equal"]) == (10, 30, 1)
    changed = {one["name"]: one for one in found["changed"]}
    assert set(changed) == {"model/weight", "optimizer/state/0/exp_avg", "step"}
    largest = np.abs(value("model/weight", 10).astype(float) - value("model/weight", 30)).max()
    assert changed["model/weight"]["largest"] == pytest.approx(largest)
    assert (changed["step"]["largest"], changed["step"]["differing"]) == (20.0, 1)
    assert found["values"] == [["shared/epoch", "1", "3"]]


def test_a_generation_does_not_differ_from_itself_and_nothing_is_read(root, stored):
    found = in_json("diff", root, 3, 3)
    assert (found["equal"], found["changed"], found["values"], found["read_bytes"]) == (4, [], [], 0)


def test_the_same_state_in_another_layout_is_equal(root, stored):
    stored.save(30, world=3)
    found = in_json("diff", root, 4, 5)
    assert (found["equal"], found["changed"]) == (4, [])
    assert found["read_bytes"] > 0


def test_nan_and_one_changed_element_are_counted(root, stored):
    def spoil(name, array):
        if name == "model/weight":
            array = array.copy()
            array[3, 3] = np.nan
        return array

    stored.save(30, change=spoil)
    (changed,) = in_json("diff", root, 4, 5)["changed"]
    assert (changed["differing"], changed["largest"], changed["not_finite"]) == (1, None, [0, 1])
    assert "0 and 1 not finite" in ckpt("diff", root, 4, 5).stdout


def test_tensors_that_only_one_has_are_named(root, stored):
    stored.save(30, names=("model/weight", "model/new"))
    output = ckpt("diff", root, 4, 5).stdout
    assert f"only in the first: {FROZEN}, optimizer/state/0/exp_avg" in output
    assert "only in the second: model/new" in output
    assert "equal bit for bit: 2 tensors; different: 0 tensors" in output


def test_damage_ends_a_comparison_with_its_place(root, stored):
    stored.damage(image_key(attempt_of(stored, 3), 1), -10)
    result = ckpt("diff", root, 2, 3)
    assert result.exit_code == 1
    assert "bytes 4096 to 5248" in result.stderr


# --- what changes the log ---------------------------------------------------------------------------------------


def test_a_drill_that_holds_makes_a_generation_verified(root, stored):
    assert in_json("restore-drill", root)["held"] is True
    assert stored.log.refresh().generations[4].verified is Verification.HELD
    assert re.search(r"^ +4 .* held", ckpt("ls", root).stdout, re.MULTILINE)


def test_a_drill_that_does_not_hold_is_told_and_kept(root, stored):
    stored.damage(image_key(attempt_of(stored, 4), 0), -1)
    result = ckpt("restore-drill", root)
    assert result.exit_code == 1
    assert "generation 4 (step 30): BROKEN:" in result.stdout
    assert "BROKEN" in ckpt("ls", root).stdout


def test_a_pin_keeps_and_an_unpin_lets_go(root, stored):
    assert ckpt("pin", root, "step:10", "--label", "release").exit_code == 0
    dry = in_json("gc", root, "--keep", "last=1", "--dry-run")
    assert (dry["retired"], dry["kept"]["2"]) == ([3], "pinned as release")
    assert ckpt("unpin", root, 2).exit_code == 0
    assert in_json("gc", root, "--keep", "last=1", "--dry-run")["retired"] == [2, 3]
    again = ckpt("unpin", root, 2)
    assert (again.exit_code, "generation 2 is not pinned" in again.stderr) == (1, True)


def test_a_dry_run_tells_what_would_go_and_changes_nothing(root, stored):
    before = stored.objects()
    dry = in_json("gc", root, "--keep", "last=1", "--dry-run")
    assert stored.objects() == before
    done = in_json("gc", root, "--keep", "last=1")
    assert (dry["keys"], dry["freed_bytes"], dry["retired"]) == (done["keys"], done["freed_bytes"], done["retired"])
    assert {key for key in before if key not in stored.objects()} == set(done["keys"])
    assert ckpt("verify", root).exit_code == 0


def test_without_a_policy_only_what_was_given_up_goes(root, stored):
    dead = stored.attempt(99)
    stored.store.create(f"data/{dead}/w00000.json", b"left over")
    stored.log.claim("successor")
    done = in_json("gc", root)
    assert (done["retired"], done["keys"]) == ([], [f"data/{dead}/w00000.json"])


def test_a_policy_that_is_none_is_refused_with_the_nearest_key(root, stored):
    result = ckpt("gc", root, "--keep", "lats=3")
    assert (result.exit_code, "did you mean 'last'?" in result.stderr) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written_is_a_problem_in_words(root, stored):
    (root / "log").chmod(0o500)
    result = ckpt("pin", root, 2)
    (root / "log").chmod(0o700)
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_every_verb_has_help_and_the_group_has_examples():
    verbs = ("ls", "show", "verify", "diff", "restore-drill", "pin", "unpin", "gc", "export", "import")
    top = ckpt("--help").stdout
    assert all(verb in top for verb in verbs)
    assert "closeranks ckpt diff ./ckpt step:1000 newest" in top
    assert all(ckpt(verb, "--help").exit_code == 0 for verb in verbs)


def test_incremental_generations_are_listed_with_what_they_build_on(root, stored):
    stored.save(40, manifest={"bases": (4,)}, options=Options())
    assert "builds on 4" in ckpt("ls", root).stdout


def test_a_claim_by_another_writer_does_not_hinder_a_visitor(root, stored):
    session_term = stored.term
    stored.log.claim("another")
    assert ckpt("pin", root, 2).exit_code == 0
    assert stored.log.refresh().term == session_term + 1
