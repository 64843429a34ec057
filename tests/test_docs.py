"""What the documents say about flags, files, plans and names is true of the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import typer

import closeranks
from closeranks.cli.main import VERBS, app_for
from closeranks.drill import plan
from closeranks.drill.fault import Kind, Moment
from closeranks.run.options import RunOptions, Sources, parse

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
DRILLS = (ROOT / "docs" / "drills.md").read_text()
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()


def commands(text, verb):
    return re.findall(rf"^    closeranks {verb} (.*?)(?:\s+#.*)?$", text, re.MULTILINE)


def flags_of(verb):
    command = typer.main.get_command(app_for([verb])).commands[verb]
    return {flag for option in command.params for flag in option.opts}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_run_command_is_accepted_and_names_a_script_that_exists():
    options: list[RunOptions] = []
    for command in commands(README, "run"):  # a run that is resumed takes over what the one before it was given
        options.append(parse(command.split(), Sources(earlier=lambda _: options[-1])))
    assert options
    assert all(isinstance(option, RunOptions) and (ROOT / option.target).is_file() for option in options)


@pytest.mark.parametrize("verb", ["report", "drill"])
def test_every_flag_of_a_shown_command_exists(verb):
    shown = [word for command in commands(README + DRILLS, verb) for word in command.split(" -- ")[0].split()]
    assert {word for word in shown if word.startswith("--")} <= flags_of(verb)
    assert shown


def test_every_flag_that_is_named_exists_in_some_command():
    known = {flag for verb in VERBS if verb != "run" for flag in flags_of(verb)}
    sources = Sources(earlier=lambda _: RunOptions(target="t.py"))
    for flag in set(re.findall(r"`(--[a-z-]+)", README + DRILLS + GUARANTEES)) - known:
        value = {"--on-incident": "true", "--keep": "last=5", "--on-term": "leave"}.get(flag, "5")
        nodes = ["--nnodes", "2", "--run-id", "r"]
        assert parse([*nodes, "--store", "ckpt", flag, value, "t.py"], sources)


def test_the_first_screen_is_a_sentence_a_command_and_its_output():
    screen = README.splitlines()[:8]
    assert screen[2].startswith("**closeranks keeps")
    assert screen[4] == "    make demo"
    assert screen[6].startswith("```")


def test_the_example_is_python_and_uses_names_that_exist():
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    used = {
        node.attr
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cr"
    }
    assert used == {"join", "Batches"}
    assert used <= set(closeranks.__all__)


def test_the_plan_that_is_shown_is_one_and_no_key_is_left_undocumented():
    shown = re.search(r"```toml\n(.*?)```", DRILLS, re.DOTALL)[1]
    assert plan.parse(shown, "drills.md") == plan.parse(shown, "drills.md")
    tree = tomllib.loads(shown)
    assert set(tree["run"]) == set(plan.RunSpec.__struct_fields__)
    assert set(tree["expect"]) == set(plan.Expect.__struct_fields__)
    for key in set(plan.FaultSpec.__struct_fields__) - set(tree["fault"][0]):
        assert f"`{key} =" in DRILLS


@pytest.mark.parametrize("kind", [Kind, Moment], ids=["kinds", "moments"])
def test_every_kind_and_every_moment_of_a_fault_is_explained(kind):
    explained = set(re.findall(r"^\| `([a-z0-9_-]+)` \|", DRILLS, re.MULTILINE))
    assert {str(value) for value in kind} <= explained


def test_what_random_drills_draw_from_is_what_the_page_says():
    drawn = [*plan._RANDOM_KINDS, *plan._RANDOM_MOMENTS]
    told = DRILLS[DRILLS.index("`--random` draws") :]
    assert all(f"`{name}`" in told for name in drawn)
