"""What the folder promises as a whole: purity, sources, units, a complete list of modules."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import closeranks.plan

MODULES = sorted(module.name for module in pkgutil.iter_modules(closeranks.plan.__path__))
FORBIDDEN = {"asyncio", "os", "pathlib", "random", "socket", "subprocess", "threading", "time", "torch", "scipy"}


def test_the_list_of_modules_is_complete():
    assert sorted(closeranks.plan.__all__) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_no_clock_file_socket_thread_or_own_randomness(name):
    tree = ast.parse(Path(inspect.getfile(import_module(f"closeranks.plan.{name}"))).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    assert not imported & FORBIDDEN
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input", "default_rng"}


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_names_its_source(name):
    if name in {"checks", "elementwise"}:
        pytest.skip("argument checks and elementary functions are not mathematics of the planner")
    module = import_module(f"closeranks.plan.{name}")
    for label, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not label.startswith("_"):
            assert "Source:" in (value.__doc__ or ""), f"{name}.{label}"


def test_importing_the_mathematics_brings_nothing_heavy():
    script = (
        "import sys; from closeranks.plan import interval, scaling, rates, spares; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch','scipy','pandas','matplotlib','asyncio'}))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
