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


def test_streams_that_were_closed_before_the_start_lead_nowhere_also_for_what_is_started(tmp_path):
    """The next file that was opened took the place of the output, and what was printed went into it."""
    code = (
        "import os, subprocess, sys\n"
        "from closeranks.cli.main import open_closed_streams\n"
        "open_closed_streams()\n"
        "print('lost'); print('lost', file=sys.stderr); assert sys.stdin.read() == ''\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "    subprocess.run(['sh', '-c', 'echo lost; echo lost >&2'], check=True)\n"
        "    file.write(str(file.fileno()))\n"
    )
    closing = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    subprocess.run(closing, env={"PYTHONPATH": str(SOURCE)}, check=True)
    assert int((tmp_path / "file").read_text()) > 2


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


def start(*command):
    code = "import sys; from closeranks.cli.main import main; sys.argv[0] = 'closeranks'; main()"
    return [*command, sys.executable, "-c", code], {"PYTHONPATH": str(SOURCE)}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this kernel has no disk that is always full")
@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "plan --example llama3", "run --help", "run --show-policy x"]
)
def test_an_answer_that_the_disk_does_not_take_is_an_error_in_one_sentence(arguments):
    """It was a traceback, or, where the text was short, no word at all and exit code 0."""
    command, env = start()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, *arguments.split()], env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "closeranks: standard output: No space left on device\n")


def test_who_reads_no_more_of_an_answer_is_told_nothing():
    command, env = start("sh", "-c", '"$@" | true', "sh")
    done = subprocess.run([*command, "run", "--help"], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
