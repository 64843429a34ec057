"""``closeranks simulate`` as a user meets it."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner

from closeranks.cli import simulate as command
from closeranks.observe.report import report_of
from closeranks.simulate.lesson import expected_units

CLUSTER = "[hardware]\naccelerators = 1024\n[job]\nparams = 7e9\n[saving]\nwrite_s = 60\n"
app = typer.Typer()
command.register(app)
app.command("other")(lambda: None)


def run(*arguments, status=0):
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def files(tmp_path):
    for name, text in {
        "cluster.toml": CLUSTER,
        "rare.toml": "save_every_s = 40000\nspares = 4\n",
        "often.toml": "save_every_s = 2000\nspares = 4\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_lesson_stands_beside_its_exact_figures():
    found = json.loads(run("--example", "lesson", "--replicas", 12, "--json").stdout)
    with_checkpoints, without = found["rows"]
    assert with_checkpoints["expected_units"] == pytest.approx(118.69, abs=5e-3)
    assert without["expected_units"] == pytest.approx(667.65, abs=5e-3)
    for row in found["rows"]:
        half = row["simulated"]["high"] - row["simulated"]["mean"]
        assert abs(row["simulated"]["mean"] - row["expected_units"]) < 2 * half


def test_the_formula_of_the_lesson_counts_runs_of_units_without_a_fault():
    assert expected_units(1, 1, 0.5) == 2
    assert expected_units(2, 2, 0.5) == 6


def test_policies_are_compared_through_the_same_faults(files):
    arguments = [files / "cluster.toml", "--policy", files / "rare.toml", "--policy", files / "often.toml"]
    result = run(
        *arguments, "--replicas", 6, "--days", 30, "--plot", files / "out.png", "--journal", files / "journal", "--json"
    )
    found = json.loads(result.stdout)
    assert [row["name"] for row in found["results"]] == ["rare", "often"]
    (difference,) = found["differences"]
    assert difference["verdict"] == "often is better"
    assert difference["goodput"]["low"] > 0
    assert (files / "out.png").read_bytes().startswith(b"\x89PNG")
    from closeranks.journal import read

    records = read(files / "journal" / "journal.jsonl").records
    assert report_of(records).ettr == pytest.approx(found["results"][0]["goodput"]["mean"], abs=0.2)
    run(*arguments, "--journal", files / "journal", status=2)


def test_a_page_and_an_image_need_nothing_else(files):
    for name in ("out.svg", "out.html"):
        run(files / "cluster.toml", "--replicas", 2, "--days", 2, "--plot", files / name)
    drawn = ET.fromstring((files / "out.svg").read_text())  # noqa: S314 - written a line above
    assert drawn.tag.endswith("svg")
    assert "Where the time went" in (files / "out.html").read_text()


def test_what_is_shown_names_intervals_assumptions_and_the_seed(files):
    page = run(files / "cluster.toml", "--replicas", 3, "--days", 5, "--seed", 7).stdout
    for text in ("3 replicas from seed 7", "goodput in closed form", "assumed:", "[limits]", "as planned"):
        assert text in page


def test_a_published_cluster_can_be_simulated():
    found = json.loads(run("--example", "opt175b", "--replicas", 2, "--days", 3, "--json").stdout)
    assert found["accelerators"] == 992


def test_a_log_can_be_played_again(files):
    lines = ["start,unit,end", *(f"2026-01-0{day}T00:00:00Z,n{day},2026-01-0{day}T06:00:00Z" for day in range(1, 6))]
    (files / "log.csv").write_text("\n".join(lines) + "\n")
    found = json.loads(
        run(files / "cluster.toml", "--replay", files / "log.csv", "--days", 9, "--replicas", 1, "--json").stdout
    )
    assert "5 failures of the log instead of drawn losses of nodes" in found["assumed"]
    assert found["results"][0]["rungs"]["cold restart"] >= 5


def test_a_real_log_is_played_to_its_end_at_its_own_rate_under_a_plan_for_it(files):
    log = Path(__file__).parent.parent / "plan" / "data" / "lanl_excerpt.csv"
    found = json.loads(run(files / "cluster.toml", "--replay", log, "--system", 20, "--replicas", 1, "--json").stdout)
    noted = next(text for text in found["assumed"] if "of the log" in text)
    assert found["mtbf_h"] == pytest.approx(24 * found["days"] / int(noted.split()[0]))
    (result,) = found["results"]
    assert result["outcomes"] == {"stopped": 1}
    assert 0.5 < result["goodput"]["mean"] < 1
    assert result["worst_loss_s"] < 86_400  # time in which no node was there is no training that was lost


def test_a_storm_counts_its_episodes():
    found = json.loads(run("--storm", 20, "--seed", 3, "--json").stdout)
    assert found["episodes"] == 20
    assert found["broken"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--example lesson"),
        (["--plot", "out.gif", "--example", "lesson"], ".png, .svg or .html"),
        (["--example", "nonesuch"], "llama3"),
        (["--example", "opt175b", "--days", "-3"], "--days: expected above 0"),
        (["--twin", "."], "journal.jsonl"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(arguments, told):
    assert told in run(*arguments, status=2).stderr


def test_an_unknown_key_of_a_cluster_is_named(files):
    (files / "cluster.toml").write_text(CLUSTER + '[[fault]]\nkind = "hang"\nper_days = 1\n')
    assert "per_day" in run(files / "cluster.toml", status=2).stderr
