import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import closeranks
from closeranks.cli.main import VERBS, app_for

SOURCE = Path(closeranks.__file__).parent.parent


def invoke(*arguments):
    return CliRunner().invoke(app_for(arguments), arguments)


def test_help_lists_every_verb():
    result = invoke("--help")
    assert result.exit_code == 0
    for verb, (_, summary) in VERBS.items():
        assert verb in result.output
        assert summary.split()[0] in result.output


def test_an_unknown_verb_is_refused():
    result = invoke("reprot")
    assert result.exit_code == 2
    assert "No such command 'reprot'" in result.output


def test_the_version_can_be_asked_for():
    result = invoke("--version")
    assert (result.exit_code, result.output.split()[0]) == (0, "closeranks")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_the_program_imports_no_verb(verb):
    code = f"import sys, closeranks.cli.main as m; m.app_for(['--help']); print({VERBS[verb][0]!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "arguments",
    [
        "plan --gpus 10000 --gpu-mtbf-h 50000 --params 175e9 --store-gbps 100 --explain",
        "plan --example llama3",
        "plan --gpus 1024 --params 7e9 --failures 12 --watched-gpu-h 1e6 --json",
    ],
)
def test_plan_imports_nothing_that_takes_longer_than_its_answer(arguments):
    heavy = {"torch", "numpy", "pydantic", "scipy", "pandas", "PIL", "asyncio", "multiprocessing", "importlib.metadata"}
    code = (
        "import atexit, sys\n"
        "from closeranks.cli.main import main\n"
        f"sys.argv = ['closeranks', *{arguments.split()!r}]\n"
        f"atexit.register(lambda: sys.stderr.write(repr(sorted({heavy!r} & set(sys.modules)))))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]"
