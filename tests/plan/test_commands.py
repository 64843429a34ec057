"""The two commands as a user meets them: exit status, figures, errors that say the way out."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner

from closeranks.cli import fit as fit_command
from closeranks.cli import plan as plan_command
from closeranks.plan import published

DATA = Path(__file__).parent / "data"
app = typer.Typer()
plan_command.register(app)
fit_command.register(app)
FIRST = ["plan", "--gpus", "10000", "--gpu-mtbf-h", "50000", "--params", "175e9", "--store-gbps", "100"]


def run(*arguments, status=0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result


def as_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_one_page_answers_everything():
    page = run(*FIRST).stdout
    for text in (
        "fail every 3.692 h",
        "6.50 a day, 45.5 a week",
        "Save every 12.2 min (367 steps)",
        "Waste 8.19%",
        "$39,293 a day",
        "Recovery 381 s",
        "Spares: 13 nodes",
        "keep 6 checkpoints",
        "the peak is at 290,289",
        "GPU causes 74% of failures",
        "80 % warm in 20 s, from 13 hot spares",
        "assumed: PCIe: MTBF 200,000 h",
        "closeranks run --store STORE --save-every 733s --keep last=6 SCRIPT",
    ):
        assert text in page
    assert "assumed: GPU" not in page


def test_no_money_has_no_sign_and_less_than_none_has():
    free = run(*FIRST, "--price", "0", "--warm-share", "0.9").stdout
    assert "$0 " in free
    assert "$-0" not in free
    assert "-$0" not in free
    assert "-$68,519" in run(*FIRST, "--price", "1", "--repair-h", "2000").stdout


def test_json_has_the_same_figures():
    got = as_json(*FIRST)
    assert got["failures"]["mtbf_h"]["value"] == pytest.approx(3.6923, abs=5e-5)
    assert [part["name"] for part in got["failures"]["parts"]] == ["GPU", "PCIe", "power", "network"]
    assert got["save"]["interval_s"]["value"] == pytest.approx(733.25, abs=5e-3)
    saved = [row["net_per_day"] for row in got["helps"]]
    assert saved == sorted(saved, reverse=True)


def test_explain_puts_the_numbers_in():
    page = run(*FIRST, "--explain").stdout
    assert "1 / (0.2 + 0.05 + 0.0125 + 0.008333) = 3.692 h" in page
    assert "1.75e+11 x 12 = 2.1e+12 bytes" in page
    assert "24 x 10000 x 2 x 0.08186 = 39,293" in page


def test_your_own_count_gives_intervals():
    counted = ["--failures", "419", "--watched-gpu-h", str(54 * 24 * 16_384)]
    got = as_json("plan", "--gpus", "16384", "--params", "405e9", *counted)
    mtbf = got["failures"]["mtbf_h"]
    assert (mtbf["value"], mtbf["low"], mtbf["high"]) == pytest.approx((3.0931, 2.8106, 3.4120), abs=5e-5)
    assert got["save"]["interval_s"]["low"] < got["save"]["interval_s"]["value"] < got["save"]["interval_s"]["high"]
    assert got["waste"]["money_per_day"]["low"] < got["waste"]["money_per_day"]["high"]
    assert "your 419 failures" in got["failures"]["basis"]


def test_no_failure_yet_plans_with_the_lower_bound():
    got = as_json("plan", "--gpus", "8", "--params", "7e9", "--failures", "0", "--watched-gpu-h", str(720 * 8))
    assert got["failures"]["mtbf_h"]["value"] == pytest.approx(240.34190450064062)
    assert "no failure seen" in got["failures"]["basis"]


def test_a_contract_that_cannot_be_kept_is_explained():
    page = run(*FIRST, "--save-every-s", "1200", "--rpo-s", "600", "--rto-s", "300").stdout
    assert "an interval of 1200 s with a write of 21 s can lose 1221 s, promised at most 600 s" in page
    assert "RTO: recovery takes 381 s, promised at most 300 s" in page
    kept = as_json(*FIRST, "--rpo-s", "600")
    assert kept["save"]["interval_s"]["value"] == 579
    assert kept["warnings"] == []


def test_a_long_write_is_flagged():
    page = run("plan", "--gpus", "50000", "--write-s", "900").stdout
    assert "Young out of its regime" in page


def test_background_saves():
    got = as_json(*FIRST, "--background", "--pause-s", "2")
    assert got["save"]["interval_s"]["value"] == pytest.approx((2 * 2 * 3.6923076923 * 3600) ** 0.5)
    assert got["waste"]["share"]["value"] < as_json(*FIRST)["waste"]["share"]["value"]


CLUSTER = """
[hardware]
accelerators = 16384
price_per_accelerator_h = 2.5

[[part]]
name = "node"
mtbf_h = 3692.3
serves = 8

[[domain]]
name = "rack"
nodes_each = 8
per_day = 2e-3

[[domain]]
name = "fabric"
nodes_each = 0
per_day = 0.05

[job]
params = 405e9

[store]
gigabytes_per_s = 500.0
slowest_fold = 3.0

[repair]
burst_share = 0.05
"""


def test_a_cluster_file_with_domains(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    got = as_json("plan", str(path))
    assert got["failures"]["mtbf_h"]["value"] == pytest.approx(1.73, abs=2e-3)
    assert got["failures"]["node_losses_per_day"] == pytest.approx(119.8, abs=0.1)
    flagged = as_json("plan", str(path), "--price", "5")
    assert flagged["waste"]["money_per_day"]["value"] == pytest.approx(2 * got["waste"]["money_per_day"]["value"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "accelerators = 16384",
            "acelerators = 16384",
            'line 3: hardware.acelerators: unknown key; did you mean "accelerators"?',
        ),
        ("mtbf_h = 3692.3", "mtbf_h = -1.0", "part.mtbf_h: expected 0.001 to 1e+12, got -1"),
        ("mtbf_h = 3692.3", 'mtbf_h = "long"', "expected `float`, got `str`"),
        ("slowest_fold = 3.0", "slowest_fold = 0.5", "store.slowest_fold: expected 1 to 100, got 0.5"),
        ("burst_share = 0.05", "burst_share = 5", "a share, 0.05 for 5 % of events"),
        ("[job]\nparams = 405e9", "", "give job.params (--params 175e9)"),
        ("[job]", '[job]\nrecipe = "fp32 weight"', "did you mean 'fp32 weights'?"),
        ("[job]", "[job", "not TOML: "),
    ],
)
def test_wrong_cluster_files_name_the_key_the_bound_and_the_fix(tmp_path, old, new, message):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.replace(old, new))
    assert message in run("plan", str(path), status=2).stderr


def test_flags_are_checked_too():
    assert "say --gpus 1024" in run("plan", "--params", "1e9", status=2).stderr
    assert "NAME=MTBF_H" in run("plan", "--gpus", "8", "--params", "1e9", "--part", "NIC", status=2).stderr
    hopeless = run("plan", "--gpus", "100000000", "--params", "1e9", "--restart-s", "100000", status=2)
    assert "use fewer accelerators" in hopeless.stderr


@pytest.mark.parametrize("name", sorted(published.EXAMPLES))
def test_published_clusters_stand_beside_ours(name):
    page = run("plan", "--example", name).stdout
    assert "published" in page
    assert "why they differ" in page


def test_published_figures_that_should_agree_do():
    assert as_json("plan", "--example", "llama3")["failures"]["mtbf_h"]["value"] == pytest.approx(3.0931, abs=5e-5)
    assert as_json("plan", "--example", "rsc1-16k")["failures"]["mtbf_h"]["value"] == pytest.approx(1.80, abs=5e-3)
    assert as_json("plan", "--example", "rsc1")["failures"]["mtbf_h"]["value"] == pytest.approx(28.8, abs=0.1)
    assert "one of llama3, rsc1" in run("plan", "--example", "none", status=2).stderr


def test_the_plot_is_one_file_that_needs_nothing(tmp_path):
    path = tmp_path / "plan.html"
    run(*FIRST, "--plot", str(path))
    text = path.read_text()
    assert text.count("<svg") == 2
    assert "<polyline" in text
    for outside in ("<script", "http://", "https://", "url("):
        assert outside not in text


def test_fit_and_then_plan(tmp_path):
    out = tmp_path / "reliability.toml"
    page = run("fit", str(DATA / "lanl_excerpt.csv"), "--system", "20", "--units", "512", "--out", str(out)).stdout
    assert "150 failures" in page
    assert f"closeranks plan --reliability {out}" in page
    got = as_json("plan", "--gpus", "2048", "--unit-gpus", "4", "--reliability", str(out), "--params", "7e9")
    assert got["failures"]["parts"][0]["name"] == "hardware"
    assert got["failures"]["mtbf_h"]["low"] < got["failures"]["mtbf_h"]["value"] < got["failures"]["mtbf_h"]["high"]


def test_fit_lists_rows_that_it_cannot_read():
    page = run("fit", str(DATA / "lanl_excerpt.csv")).stdout
    assert "3 rows could not be read" in page
    assert "line 152" in page
    report = as_json("fit", str(DATA / "lanl_excerpt.csv"))
    assert [row["line"] for row in report["unparsed"]] == [152, 153, 154]


def test_fit_maps_columns_and_says_how_to_when_it_cannot(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("When,Box,Fault\n" + "".join(f"2026-01-{day:02}T00:00:00,b{day % 3},gpu\n" for day in range(1, 20)))
    assert "say --column start=NAME" in run("fit", str(path), status=2).stderr
    report = as_json("fit", str(path), "--column", "start=When", "--column", "unit=Box", "--column", "cause=Fault")
    assert report["failures"] == 19
    assert report["causes"][0]["name"] == "gpu"
    assert "expected NAME=VALUE" in run("fit", str(path), "--column", "start", status=2).output


def test_fit_with_its_own_window(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time,node,cause\n2026-01-02T00:00:00Z,a,gpu\n2026-01-03T00:00:00Z,a,gpu\n")
    window = ["--from", "2026-01-01T00:00:00Z", "--to", "2026-01-31T00:00:00Z", "--units", "10"]
    report = as_json("fit", str(path), *window)
    assert report["unit"]["mtbf_h"] == pytest.approx(30 * 24 * 10 / 2)
    assert report["system"]["mtbf_h"] == pytest.approx(30 * 24 / 2)


def test_a_cause_that_was_never_seen_is_bounded(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time,node,cause\n2026-01-02T00:00:00Z,a,gpu\n2026-01-03T00:00:00Z,a,gpu\n")
    report = as_json("fit", str(path), "--from", "2026-01-01", "--to", "2026-01-31", "--units", "1", "--cause", "PSU")
    unseen = next(cause for cause in report["causes"] if cause["name"] == "psu")
    assert unseen["unit"]["failures"] == 0
    assert unseen["unit"]["low_h"] == pytest.approx(240.34190450064062)


def test_a_job_with_an_end():
    page = run(*FIRST, "--work-h", "10").stdout
    assert "To the end: 49 saves" in page


HEAVY = {"asyncio", "numpy", "PIL", "pydantic", "rich", "scipy", "sqlite3", "tomllib", "torch"}


@pytest.mark.parametrize("more", [["--explain"], ["--json"]])
def test_a_page_needs_nothing_that_takes_long_to_import(more):
    script = (
        "import sys\nfrom closeranks.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(sorted({{name.split('.')[0] for name in sys.modules}} & {HEAVY!r}), file=sys.stderr)"
    )
    out = subprocess.run([sys.executable, "-c", script, *FIRST, *more], capture_output=True, text=True, check=True)
    assert out.stderr.strip() == "[]"
    assert "accelerators" in out.stdout


def test_a_count_needs_its_hours():
    assert "--watched-gpu-h" in run("plan", "--gpus", "8", "--params", "1e9", "--failures", "3", status=2).stderr


def test_the_curve_alone_as_an_image(tmp_path):
    path = tmp_path / "curve.svg"
    run(*FIRST, "--plot", str(path))
    assert path.read_text().startswith("<svg xmlns")
    assert "ends in .png, .svg or .html" in run(*FIRST, "--plot", str(tmp_path / "curve.gif"), status=2).output


def test_the_curve_can_be_a_png_and_a_plot_that_cannot_be_written_is_said(tmp_path):
    path = tmp_path / "curve.png"
    run(*FIRST, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "No such file" in run(*FIRST, "--plot", str(tmp_path / "none" / "curve.svg"), status=2).stderr


def test_a_job_that_hardly_trains_is_told_so():
    got = as_json("plan", "--gpus", "1000000", "--params", "175e9", "--store-gbps", "1000")
    assert got["recovery_day"]["share"] == pytest.approx(1)
    assert any("more than half of the time is lost" in text for text in got["warnings"])
    assert got["growth"]["verdict"].startswith("no: past")


def test_the_drawn_curves_are_well_formed(tmp_path):
    path = tmp_path / "curve.svg"
    run(*FIRST, "--plot", str(path))
    drawing = ET.fromstring(path.read_text())  # noqa: S314 - written a line above
    line = next(drawing.iter("{http://www.w3.org/2000/svg}polyline"))
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(places) == 13
    assert all(0 <= x <= 640 and 0 <= y <= 300 for x, y in places)
    heights = [y for _, y in places]
    assert heights.index(max(heights)) == 6  # lowest waste, drawn lowest
