"""``closeranks manifest``: a run, written down for an engine that places it."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from closeranks.launch.kubernetes import Asked, ManifestProblem, claims_of, job_set, secret_of
from closeranks.launch.yaml_text import yaml_text
from closeranks.run.options import UsageError

_USAGE = 2


def register(app: typer.Typer) -> None:
    """Add the verb and its own verbs."""
    group = typer.Typer(name="manifest", help="Write a run down for an engine that places it.", no_args_is_help=True)
    group.callback()(lambda: None)  # one verb below it today: typer must not take it for the whole
    group.command("kubernetes")(kubernetes)
    app.add_typer(group, context_settings={"help_option_names": ["-h", "--help"]})


def kubernetes(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    options: Annotated[list[str], typer.Argument(metavar="-- [OPTIONS OF RUN] SCRIPT [ARGUMENTS]")],
    name: Annotated[str, typer.Option(help="Of the job, and so of its pods.")],
    image: Annotated[str, typer.Option(help="Holds closeranks, torch and the script.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that hold seats.")],
    spares: Annotated[int, typer.Option(min=0, help="Further nodes, which wait to replace a lost one.")] = 0,
    nproc_per_node: Annotated[int, typer.Option(min=1, help="Ranks (seats) on each node.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs that a pod asks for.")] = 0,
    namespace: Annotated[str, typer.Option(help="Left out by default: the one of kubectl.")] = "",
    claim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=/PATH", help="A persistent volume claim and where it is seen.")
    ] = None,
    domains_map: Annotated[str, typer.Option(help="A ConfigMap with nodes.json: labels by node.")] = "",
    evict_after: Annotated[int, typer.Option(min=0, help="Seconds until pods leave a silent node.")] = 10,
    job_restarts: Annotated[int, typer.Option(min=0, help="Begin anew so often when the run has ended in error.")] = 0,
) -> None:
    """Print a JobSet (jobset.x-k8s.io/v1alpha2) that runs a script on several nodes.

    Exit status: 0, or 2 if it cannot be rendered.
    """
    try:
        tree = job_set(
            Asked(
                name=name,
                image=image,
                nodes=nodes,
                options=tuple(options),
                spares=spares,
                nproc_per_node=nproc_per_node,
                gpus_per_node=gpus_per_node,
                namespace=namespace,
                claims=claims_of(claim or []),
                domains_map=domains_map,
                evict_after_s=evict_after,
                job_restarts=job_restarts,
            )
        )
    except (ManifestProblem, UsageError) as error:
        _refuse(str(error))
    typer.echo(f"# Needs the JobSet controller, and a Secret {secret_of(name)} with a long random text as its token.")
    typer.echo(yaml_text(tree), nl=False)


def _refuse(problem: str) -> NoReturn:
    typer.echo(f"closeranks manifest: {problem}", err=True)
    raise typer.Exit(_USAGE)
