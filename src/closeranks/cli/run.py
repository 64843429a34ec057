"""``closeranks run``: start a script on several ranks and keep it alive."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from closeranks.decide.policy import Sourced, read_policy, shown
from closeranks.launch.outcome import NODE_ALONE
from closeranks.launch.slurm import SlurmProblem, slurm_defaults
from closeranks.run.folder import FolderError, claim, default_folder, read_run_file, release
from closeranks.run.guardian import guard
from closeranks.run.options import (
    AUTO,
    STORE_AUTHORITY,
    HelpAsked,
    PolicyAsked,
    RunOptions,
    Sources,
    Target,
    UsageError,
    View,
    parse,
    tiers_of,
)
from closeranks.run.telling import drop_untold, tell

EXIT_USAGE = 2
RESOLVE_AGAIN_S = 1.0

HELP = """\
usage: closeranks run [options] SCRIPT [arguments of the script]

Runs SCRIPT once per rank, watches the ranks, and recovers from their failures.

examples:
  closeranks run --nproc-per-node 4 --spares 1 train.py --lr 3e-4
  closeranks run --nproc-per-node 2 -m package.train
  closeranks run --nproc-per-node 2 --no-python ./train.sh
  closeranks run --nnodes 3 --node-rank 0 --nproc-per-node 8 --run-id r1 --authority etcd://etcd:2379 train.py

what to run:
  --nproc-per-node N    ranks (seats) on each machine (default 1)
  -m, --module          SCRIPT is the name of a module, as for python -m
  --no-python           SCRIPT is any command
  --standalone          accepted for torchrun's sake: every run is

recovery:
  --spares N            warmed processes that wait to replace a lost one (default 0)
  --max-restarts N      restarts of the whole group from nothing (default 3, or as the policy says)
  --min-deadline S      least silence of a rank that counts as stuck, in seconds (learned from the run)
  --max-deadline S      silence that always counts as stuck (learned from the run)
  --silence S           allowed silence of the output of a script without the library (default 900)
  --join-timeout S      from the first rank that joins to the last (default 600, or as the policy says)
  --grace S             from the request to end to SIGKILL, for each process (default 30)
  --policy FILE         what may be done about which fault, budgets, quarantine, canary (docs/recovery.md)
  --show-policy         print the policy that would hold, each value with its origin, and run nothing
  --on-incident CMD     shell command, called when an incident opens and closes;
                        CLOSERANKS_INCIDENT, CLOSERANKS_INCIDENT_EDGE and others tell it which

state that lasts:
  --store PATH|URL      save protected state there: a folder, s3://bucket/prefix, gs://..., az://...
  --resume RUN|auto     go on where the run in that folder ended (its script, options and store are used unless
                        given anew); auto: go on if the store holds anything, else begin
  --save-every N|TIME   save every N steps, or every 90s, 10m, 2h (default: chosen from measured write time and
                        failure rate, and journalled with its reason)
  --rpo TIME            lose at most so much work: an upper bound of the interval
  --reliability FILE    what closeranks fit learned of this cluster: how often jobs lose their state
  --keep POLICY         what is kept, e.g. last=3,hourly=24,daily=7,every=1000 (default last=3; pinned checkpoints
                        and the last verified one always are)
  --verify-every TIME   read the newest checkpoint as a restart would (default 1h; never)
  --tiers FILE          further homes of the state: memory of peers, local disk (docs/checkpoints.md)
  --job NAME            a store belongs to one job (default: the name of the script)

several nodes (the same command on each; docs/nodes.md):
  --nnodes N|MIN:MAX    nodes that hold seats; any further supervisor of the run waits as a spare node (default 1);
                        MIN:MAX: so few may go on with fewer seats where no other comes in --node-patience
  --node-rank K         number of this node, 0 and up
  --run-id NAME         the same on all nodes, new for every run (also --rdzv-id)
  --authority WHERE     where the leader is elected: etcd://HOST:PORT[,...], sqlite:PATH on a shared machine, or store
                        (default where --store is given); any node may then be lost
  --rdzv-endpoint HOST:PORT
                        without an authority: where the node of rank 0 leads; its loss ends the run
  --interface NAME|ADDR network to the other nodes (default: the route to the authority or the endpoint)
  --token-file FILE     secret of the run, at least 16 characters (default: CLOSERANKS_TOKEN)
  --tls-cert FILE, --tls-key FILE, --tls-ca FILE
                        encrypt what nodes say to each other; each node shows a certificate of that CA
  --domains FILE        failure domains of the nodes: spares, and peers that keep saves, are chosen across them
  --on-partition replace|wait
                        seats of a node that is out of reach are given to others once that is safe, or kept for it
                        (default replace)
  --node-patience TIME  how long a missing node is waited for where nothing can take its seats, and a missing authority
                        once ranks have paused (default 10m)
  --on-term stop|leave  SIGTERM to one node stops the whole run in order (default); or this node alone leaves, once
                        others have taken its seats; where none can, the run stops
  --probe-command CMD   second opinion on a silent node, e.g. by ipmitool; {host} and {node} are replaced;
                        exit code 0: it has power, 10: it certainly has none

health of the node (docs/health.md):
  --look-every TIME     from one look at devices, memory, disk and clocks to the next (default 10s)
  --kernel-log FILE|auto
                        hear what the kernel says: a file that it is written to, or its own records (/dev/kmsg)

other:
  --run-dir DIR         folder for journal and logs (default runs/<time>-<id>); never overwritten
  --start fork|spawn    fork workers from a process that has imported torch, or start each anew (default fork)
  --view auto|live|text|none
                        what the console shows (default auto: live on a terminal)

exit code: 0 when the job completed; 130 or 143 when it was stopped by Ctrl-C or SIGTERM; 2 when it could not
begin as it was asked for; 75 when one of several nodes cannot take part or was given up, which says nothing of the
job; otherwise that of the first incident that could not be recovered (128 + n for signal n).
"""


class _NodeRefused(Exception):
    """This one of several nodes cannot take part; nothing was started on it, and others may well go on."""


def register(app: typer.Typer) -> None:
    """Add the verb. Its words are read here and not by typer, because those after the script are the script's."""
    raw = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}

    @app.command("run", context_settings=raw, add_help_option=False)
    def run(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        """Run a training script and keep it alive."""
        raise typer.Exit(main(words or []))


def main(argv: Sequence[str]) -> int:
    """Run the command line after ``closeranks run``; the exit code."""
    try:
        options = _with_absolute_paths(parse(argv, Sources(_earlier, _slurm, _policy)))
        _require_target(options)
        _require_files(options)
        _require_identity(options)
        folder = _folder(options, tuple(argv))
    except HelpAsked:
        sys.stdout.write(HELP)
        return 0
    except PolicyAsked as asked:
        from closeranks.run.brain import effective  # the controller: only where it is asked for

        sys.stdout.write(shown(effective(asked.options)))
        return 0
    except _NodeRefused as problem:
        tell(f"closeranks run: {problem}", sys.stderr)
        return NODE_ALONE
    except UsageError as error:
        tell(f"closeranks run: {error}", sys.stderr)
        return EXIT_USAGE
    if options.view is not View.NONE:
        spares = f" and {options.spares} spare{'s' if options.spares > 1 else ''}" if options.spares else ""
        tell(f"closeranks: starting {options.seats} seats{spares} in {folder}", sys.stdout)
    try:
        code = guard(folder, options.seats)
    except OSError as error:
        release(folder)
        tell(f"closeranks run: the supervisor cannot be started: {error}", sys.stderr)
        return 1 if options.nnodes == 1 else NODE_ALONE
    drop_untold()
    return code


def _slurm(given: Mapping[str, object]) -> Mapping[str, object]:
    """What Slurm knows of this task."""
    try:
        return slurm_defaults(os.environ, given)
    except SlurmProblem as error:
        raise UsageError(f"--slurm: {error}") from None


def _policy(path: str) -> Sourced:
    """Read now: what the file becomes later is not this run's policy."""
    try:
        return read_policy(Path(path).read_text(encoding="utf-8"), path)
    except OSError as error:
        raise UsageError(f"--policy: {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--policy: {error}") from None


def _earlier(folder: str) -> RunOptions:
    """The options of a run that is to be resumed."""
    try:
        file = read_run_file(Path(folder))
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"--resume {folder}: expected the folder of a run, got: {error}; give one below runs/, or auto"
        ) from None
    if file.options.store is None:
        raise UsageError(f"--resume {folder}: that run had no --store, so none of its state is left; start it anew")
    return file.options


def _with_absolute_paths(options: RunOptions) -> RunOptions:
    """A run is resumed from anywhere: what names a place on this machine must not depend on where one stands."""
    store, resume = options.store, options.resume
    files = ("tiers", "reliability", "domains", "token_file", "tls_cert", "tls_key", "tls_ca")
    given = {name: path for name in files if (path := getattr(options, name)) is not None}
    if options.kernel_log not in (None, AUTO):
        given["kernel_log"] = options.kernel_log
    return msgspec.structs.replace(
        options,
        store=store if store is None or "://" in store else str(Path(store).absolute()),
        resume=resume if resume in (None, AUTO) else str(Path(resume).absolute()),
        **{name: str(Path(path).absolute()) for name, path in given.items()},
    )


def _require_files(options: RunOptions) -> None:
    """What is wrong with a file is said before anything is started."""
    try:
        tiers_of(options)
        if options.reliability is not None:
            from closeranks.run.earlier import known_losses  # numpy: only where it is asked for

            known_losses(None, options.reliability)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    except ValueError as error:  # TiersError and those of the file of closeranks fit
        raise UsageError(str(error)) from None


def _require_identity(options: RunOptions) -> None:
    """What a node of several needs to be one is said before anything is started."""
    if options.nnodes == 1:
        return
    from closeranks.authority.opening import open_register  # what one node alone does not need
    from closeranks.authority.register import RegisterRefused
    from closeranks.checkpoint.problems import CheckpointProblem, StoreProblem
    from closeranks.cluster.identity import IdentityProblem

    try:
        _wait_for_identity(options)
        if options.rdzv_endpoint is None:
            open_register(options.authority or STORE_AUTHORITY, options.run_id or "", options.store)
    except (IdentityProblem, StoreProblem) as problem:
        if isinstance(problem, IdentityProblem) and not _of_this_node(problem):
            raise UsageError(str(problem)) from None
        raise _NodeRefused(str(problem)) from None
    except (RegisterRefused, CheckpointProblem) as problem:
        raise UsageError(str(problem)) from None


def _wait_for_identity(options: RunOptions) -> None:
    """See that this node can say who it is. A pod has a name only once it runs: that of the first one is waited for.

    Raises:
        IdentityProblem: see there; of a name that has no address within ``--join-timeout``, too.
    """
    from closeranks.cluster.identity import IdentityProblem, identity_of
    from closeranks.nodes.interfaces import NameUnresolved
    from closeranks.run.brain import settings_of

    until_s = time.monotonic() + settings_of(options).deadlines.nodes_s
    waiting = False
    while True:
        try:
            identity_of(options, os.environ)
        except IdentityProblem as problem:
            if not isinstance(problem.__cause__, NameUnresolved) or time.monotonic() >= until_s:
                raise
            if not waiting:
                waiting = True
                tell(f"closeranks run: waiting for the name: {problem}", sys.stderr)
        else:
            return
        time.sleep(RESOLVE_AGAIN_S)


def _of_this_node(problem: BaseException) -> bool:
    """Whether this machine is to blame, and not what every node was told: it has no such interface, or file."""
    from closeranks.nodes.interfaces import InterfaceProblem

    cause = problem.__cause__
    return isinstance(problem, InterfaceProblem | OSError) or (cause is not None and _of_this_node(cause))


def _require_target(options: RunOptions) -> None:
    """What does not exist is refused here, in place of N processes that fail, restart and fail again."""
    {
        Target.SCRIPT: _require_script,
        Target.MODULE: _require_module,
        Target.COMMAND: _require_command,
    }[options.kind](options.target)


def _require_script(target: str) -> None:
    script = Path(target)
    if not script.is_file():
        hint = "it is a folder" if script.is_dir() else "no such file"
        raise UsageError(
            f"script {target}: {hint} (seen from {Path.cwd()}); use -m for a module, --no-python for another command"
        )
    try:
        script.open("rb").close()
    except OSError as error:
        raise UsageError(f"script {target}: {error.strerror}") from None


def _require_module(target: str) -> None:
    package = target.partition(".")[0]  # looking below it would import it
    if package not in sys.builtin_module_names and PathFinder.find_spec(package, [str(Path.cwd()), *sys.path]) is None:
        raise UsageError(
            f"module {target}: {package!r} is found neither in {Path.cwd()} nor among the installed packages; "
            "leave -m out for the path of a script"
        )


def _require_command(target: str) -> None:
    if shutil.which(target) is None:
        raise UsageError(f"command {target}: not found, or not executable (seen from {Path.cwd()})")


def _folder(options: RunOptions, argv: tuple[str, ...]) -> Path:
    wanted = options.run_dir
    now_utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = now_utc if options.run_id is None else f"{options.run_id}-n{options.node_rank}-{now_utc}"
    folder = default_folder(name) if wanted is None else Path(wanted)
    try:
        return claim(folder, options, ("closeranks", "run", *argv))
    except FolderError as error:  # among them a full disk
        raise (UsageError if options.nnodes == 1 else _NodeRefused)(str(error)) from None
