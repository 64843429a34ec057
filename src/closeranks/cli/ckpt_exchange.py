"""``closeranks ckpt export`` and ``import``: the verbs that need torch, which is imported when they are asked for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from closeranks.checkpoint.problems import CheckpointProblem, StoreRefused
from closeranks.cli import ckpt_text as text
from closeranks.cli.ckpt_target import PROBLEM, USAGE, fail, progress, session, store_or_new

if TYPE_CHECKING:
    from types import ModuleType


class Form(StrEnum):
    """Formats of other libraries."""

    AUTO = "auto"
    SAFETENSORS = "safetensors"
    DCP = "dcp"
    TORCH = "torch"


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def export(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store, or the folder of a run.", show_default=False)],
    generation: Annotated[
        str,
        typer.Argument(metavar="GENERATION", help="A number of ls; or newest, verified, step:N.", show_default=False),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A file for safetensors, a folder for DCP; must be new.")],
    form: Annotated[Form, typer.Option("--format", help="auto: safetensors if OUT ends so, else DCP.")] = Form.AUTO,
    as_json: AsJson = False,
) -> None:
    """Write a generation for other tools: one safetensors file, or a torch DCP folder.

    Every byte is checked on the way. An existing OUT is left alone.
    """
    if form is Form.AUTO:
        form = Form.SAFETENSORS if out.suffix == ".safetensors" else Form.DCP
    if form is Form.TORCH:
        fail("--format torch can be imported, not exported: it is a pickle; use safetensors or dcp", USAGE)
    if out.exists():
        fail(f"{out}: there is one already, and it is left alone; choose another name or remove it", USAGE)
    if not out.absolute().parent.is_dir():
        fail(f"{out}: the folder {out.absolute().parent} does not exist; make it first", USAGE)
    with session(store) as opened:
        chosen = opened.generation(generation)
        exchange = _exchange()
        write = exchange.export_safetensors if form is Form.SAFETENSORS else exchange.export_dcp
        with progress("exporting") as told, _said():
            done = write(opened.text, out, chosen.number, told)
    if as_json:
        text.put_json({"out": str(out), "format": form.value} | done._asdict())
    else:
        what = f"generation {done.generation} (step {done.step})"
        text.say(f"{what}: {done.tensors:,} tensors, {text.size(done.written_bytes)} in {out}")


def import_(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="A store; made if it does not exist.", show_default=False)
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A DCP folder, a safetensors file, or one of torch.save.", show_default=False
        ),
    ],
    form: Annotated[Form, typer.Option("--format", help="auto: by what SOURCE is.")] = Form.AUTO,
    job: Annotated[str, typer.Option(help="The job that the store belongs to.")] = "default",
    step: Annotated[int, typer.Option(min=0, help="The step that it shows.")] = 0,
    under: Annotated[str, typer.Option(help="Name of the state, where SOURCE has tensors at its top.")] = "model",
    as_json: AsJson = False,
) -> None:
    """Commit another tool's checkpoint as a new generation; no code in it is run."""
    if not source.exists():
        fail(f"{source}: no such file or folder (seen from {Path.cwd()})", USAGE)
    if form is Form.AUTO:
        form = _form_of(source)
    exchange = _exchange()
    read = {
        Form.DCP: exchange.import_dcp,
        Form.SAFETENSORS: exchange.import_safetensors,
        Form.TORCH: exchange.import_torch,
    }[form]
    with _said():
        done = read(source, store_or_new(store), exchange.Origin(job=job, step=step, under=under))
    if as_json:
        text.put_json({"source": str(source), "format": form.value} | done._asdict())
    else:
        size = text.size(done.written_bytes)
        text.say(f"generation {done.generation} (step {done.step}): {done.tensors:,} tensors, {size} from {source}")


def _form_of(source: Path) -> Form:
    if source.is_dir():
        if (source / ".metadata").exists():
            return Form.DCP
        fail(f"{source}: expected a DCP checkpoint, got a folder without .metadata; name a file, or --format", USAGE)
    return Form.SAFETENSORS if source.suffix == ".safetensors" else Form.TORCH


def _exchange() -> ModuleType:
    try:
        from closeranks.train import exchange
    except ModuleNotFoundError as error:
        fail(f"export and import need {error.name}: pip install 'closeranks[train]'", PROBLEM)
    return exchange


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Problems as messages; what torch remarks about its own libraries is not for the user of a command."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            yield
    except StoreRefused as problem:
        fail(str(problem), USAGE)
    except CheckpointProblem as problem:
        fail(str(problem), PROBLEM)
    except OSError as problem:
        fail(f"{problem.filename or ''}: {problem.strerror or problem}".lstrip(": "), PROBLEM)
