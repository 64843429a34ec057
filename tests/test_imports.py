"""Directions of imports: edges may use cores, cores use nothing but cores; and importing the package is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import closeranks

ROOT = Path(closeranks.__file__).parent
PURE = ("events", "faults", "operations", "signs", "toml_text", "detect", "decide", "plan", "diagnose")
PURE_OF_CHECKPOINT = frozenset(
    {
        "box_table",
        "cover",
        "erasure",
        "extents",
        "format",
        "history",
        "image",
        "keys",
        "problems",
        "restore_plan",
        "retention",
    }
    | {"tiers"}
)
PURE_OF_SERVE = frozenset(
    {"words", "relay", "traffic", "policy_set", "life", "settings", "asking", "fallbacks", "policies", "stream"}
    | {"http.head", "http.known", "http.limits", "http.target", "sessions.record", "sessions.settings"}
    | {"sessions.slots", "sessions.timings"}
    | {"admin_settings", "drill_settings", "foreign", "probe_settings", "story"}
)
PURE_LIBRARIES = frozenset(
    {"__future__", "abc", "bisect", "collections", "dataclasses", "difflib", "enum", "fractions", "functools"}
    | {"hashlib", "heapq", "itertools", "math", "msgspec", "numpy", "operator", "re", "statistics", "string"}
    | {"types", "typing"}
    # Text in, values out: parsing reads no clock and no file of its own.
    | {"csv", "datetime", "html", "io", "json", "tomllib", "urllib.parse"}
    # The type of an argument: whoever calls brings the seeded generator, and nothing pure makes one.
    | {"random.Random"}
)
CLOCKS = frozenset({"now", "today", "utcnow"})
IMPURE_BUILTINS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint", "Random"})
IMPORT_LIMIT_S = 0.3


def _pure_files() -> list[Path]:
    roots = [ROOT / name for name in PURE] + [ROOT / f"{name}.py" for name in PURE]
    roots += [ROOT / "checkpoint" / f"{name}.py" for name in PURE_OF_CHECKPOINT]
    for name in PURE_OF_SERVE:
        path = ROOT / "serve" / name.replace(".", "/")
        roots.append(path if path.is_dir() else path.with_suffix(".py"))
    return sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))


def _imports(tree: ast.AST) -> set[str]:
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _is_pure(name: str) -> bool:
    top, *rest = name.split(".")
    if top == "closeranks":
        return bool(rest) and (
            rest[0] in PURE
            or (rest[0] == "checkpoint" and rest[1] in PURE_OF_CHECKPOINT)
            or (rest[0] == "serve" and (rest[1] in PURE_OF_SERVE or ".".join(rest[1:3]) in PURE_OF_SERVE))
        )
    return top in PURE_LIBRARIES or ".".join([top, *rest[:1]]) in PURE_LIBRARIES


@pytest.mark.parametrize("file", _pure_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_pure_file_imports_only_pure_things(file):
    impure = sorted(name for name in _imports(ast.parse(file.read_text())) if not _is_pure(name))
    assert not impure, f"{file.relative_to(ROOT)} is pure and must not import {', '.join(impure)}"


@pytest.mark.parametrize("file", _pure_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_pure_file_calls_no_builtin_that_touches_the_world(file):
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    impure = sorted({f.id for f in calls if isinstance(f, ast.Name)} & IMPURE_BUILTINS)
    impure += sorted({f.attr for f in calls if isinstance(f, ast.Attribute)} & CLOCKS)
    assert not impure, f"{file.relative_to(ROOT)} is pure and must not call {', '.join(impure)}"


def test_only_the_worker_library_and_the_zygote_import_torch():
    allowed = ("train", "run")
    users = [
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        if any(name.split(".")[0] == "torch" for name in _imports(ast.parse(file.read_text())))
    ]
    assert [user for user in users if user.split("/")[0] not in allowed] == []


def _in_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT.parent)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_closeranks_does_not_import_torch():
    assert _in_fresh_process("import sys, closeranks; print('torch' in sys.modules)") == "False"


def test_the_command_line_does_not_import_torch():
    assert _in_fresh_process("import sys, closeranks.cli.main; print('torch' in sys.modules)") == "False"


def test_importing_closeranks_is_quick():
    # CPU time, the best of three: a busy machine must not fail this.
    code = "import time; a = time.process_time(); import closeranks; print(time.process_time() - a)"
    assert min(float(_in_fresh_process(code)) for _ in range(3)) < IMPORT_LIMIT_S
