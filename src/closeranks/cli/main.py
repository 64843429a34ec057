"""``closeranks``: finds the verb, imports that verb's module and nothing else."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, NoReturn, TextIO, cast

import typer

from closeranks.run.telling import drop_untold, tell

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERBS: Final = {
    "run": ("closeranks.cli.run", "Run a training script and keep it alive."),
    "launch": ("closeranks.cli.launch", "Start a run on several hosts by ssh."),
    "manifest": ("closeranks.cli.manifest", "Write a run down for an engine that places it."),
    "report": ("closeranks.cli.report", "Show goodput and incidents of a run."),
    "plan": ("closeranks.cli.plan", "Answer how often a job will fail, how often to save, and what it costs."),
    "fit": ("closeranks.cli.fit", "Learn failure rates, with their uncertainty, from a trace of failures."),
    "simulate": ("closeranks.cli.simulate", "Play policies on a virtual cluster under the real controller."),
    "serve": ("closeranks.cli.serve", "Answer from several model replicas, of which any may die."),
    "ckpt": ("closeranks.cli.ckpt", "Look at checkpoints, check, compare, keep, drill and convert them."),
    "probe": ("closeranks.cli.probe", "Try this machine before it is trusted with work."),
    "diagnose": ("closeranks.cli.diagnose", "Name the fault behind a failed job from its logs, and who caused it."),
    "nodes": ("closeranks.cli.nodes", "Show what is remembered of nodes; keep one out, or let it in again."),
    "drill": ("closeranks.cli.drill", "Run a command under a plan of faults; the verdict is the exit status."),
    "drill-nodes": ("closeranks.cli.drill_nodes", "Break whole nodes of a job at random, on this machine."),
}


def main() -> None:
    """The entry point of the ``closeranks`` command."""
    open_closed_streams()
    answers = _Answers(1, "w", closefd=False)
    sys.stdout = _buffered_as(sys.stdout, answers)
    try:
        app_for(sys.argv[1:])()
    except OSError as error:
        if error is not answers.problem:
            raise
        _unanswered(error, 1)
    except SystemExit as end:
        answers.problem = None  # what a verb has passed over, such as one whose purpose is not what it prints
        drop_untold()
        if answers.problem is None:
            raise
        _unanswered(answers.problem, end.code or 1)


def _unanswered(problem: OSError, code: str | int) -> NoReturn:
    drop_untold()
    if not isinstance(problem, BrokenPipeError):  # else whoever read had enough
        tell(f"closeranks: standard output: {problem.strerror}", sys.stderr)
    sys.exit(code)


def _buffered_as(stream: TextIO, raw: io.FileIO) -> io.TextIOWrapper:
    """A text stream into ``raw`` that keeps back as much as ``stream`` does: with PYTHONUNBUFFERED nothing."""
    through = getattr(stream, "write_through", False)
    buffer = cast("BinaryIO", raw) if through else io.BufferedWriter(raw)  # as Python's own streams are made
    return io.TextIOWrapper(
        buffer, stream.encoding, stream.errors, line_buffering=stream.isatty(), write_through=through
    )


class _Answers(io.FileIO):
    """Standard output, and why it did not take what was said."""

    problem: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """See RawIOBase."""
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            raise


def open_closed_streams() -> None:
    """Standard streams that were closed by whoever started us lead nowhere: the next file would take their place."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it has the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8"))


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command line, of which only the verb that is asked for is more than its help text."""
    app = typer.Typer(
        name="closeranks",
        help="Keeps large training jobs doing useful work while their parts fail.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for verb, (module, summary) in VERBS.items():
        if verb == asked:
            importlib.import_module(module).register(app)
        else:
            app.command(verb, help=summary)(_unused)
    return app


def _unused() -> None:
    """Stands for a verb whose module was not imported, in lists of commands."""


def _show_version(value: bool) -> None:
    if value:
        from closeranks.version import version  # a tenth of a second that no other command has to wait for

        typer.echo(f"closeranks {version()}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
