"""``closeranks ckpt``: look at checkpoints, check them, compare them, keep them or let them go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
import typer

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.comparing import compare
from closeranks.checkpoint.examining import Examined, examine
from closeranks.checkpoint.format import FORMAT, Entry, Pin, Retire, Unpin
from closeranks.checkpoint.history import Generation, History, fold
from closeranks.checkpoint.log_copies import LogDamage, examine_log
from closeranks.checkpoint.restore_drill import drill
from closeranks.checkpoint.retention import Policy, choose
from closeranks.checkpoint.sweep import sweep
from closeranks.cli import ckpt_exchange
from closeranks.cli import ckpt_text as text
from closeranks.cli.ckpt_memory import hold_memory
from closeranks.cli.ckpt_target import PROBLEM, USAGE, Session, fail, progress, session

_STORE_HELP = "A store (folder or URL), or the folder of a run."
_GENERATION_HELP = "A number of ls; or newest, verified, step:N."
Target = Annotated[str, typer.Argument(metavar="STORE", help=_STORE_HELP, show_default=False)]
Chosen = Annotated[str, typer.Argument(metavar="[GENERATION]", help=_GENERATION_HELP)]
Named = Annotated[str, typer.Argument(metavar="GENERATION", help=_GENERATION_HELP, show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

_HELP = """Look at checkpoints, check them, compare them, keep them or let them go.

STORE is what closeranks run --store was given (a folder, s3://bucket/prefix, gs://..., az://...), or a run's folder.
GENERATION is a number that ls shows; or newest, verified, step:1200.
"""
_EXAMPLES = """Examples:

  closeranks ckpt ls ./ckpt                         all generations

  closeranks ckpt show runs/20261129T101500Z-1a2b   what its newest holds

  closeranks ckpt verify ./ckpt                     reads every byte

  closeranks ckpt diff ./ckpt step:1000 newest      which tensors changed

  closeranks ckpt restore-drill ./ckpt              makes the newest verified

  closeranks ckpt pin ./ckpt 17 --label release     keeps it for good

  closeranks ckpt gc ./ckpt --keep last=3,daily=7 --dry-run

  closeranks ckpt export ./ckpt newest model.safetensors

Exit status: 0 done and sound; 1 damage, or a store that does not answer; 2 no such store or generation, or bad options.
"""


def register(app: typer.Typer) -> None:
    """Add the verb and its own verbs."""
    group = typer.Typer(name="ckpt", help=_HELP, epilog=_EXAMPLES, no_args_is_help=True)
    group.command("ls")(ls)
    group.command("show")(show)
    group.command("verify")(verify)
    group.command("diff")(diff)
    group.command("restore-drill")(restore_drill)
    group.command("pin")(pin)
    group.command("unpin")(unpin)
    group.command("gc")(gc)
    group.command("export")(ckpt_exchange.export)
    group.command("import")(ckpt_exchange.import_)
    group.command("hold-memory")(hold_memory)
    app.add_typer(group, context_settings={"help_option_names": ["-h", "--help"]})


def ls(store: Target, as_json: AsJson = False) -> None:
    """List all generations, the newest last."""
    with session(store) as opened:
        history = opened.history
        if as_json:
            kept = history.shielded()
            text.put_json(
                {
                    "store": opened.store.url,
                    "job": opened.identity.job,
                    "term": history.term,
                    "owner": history.owner,
                    "generations": [text.generation_json(one, kept) for one in history.generations.values()],
                    "retired": len(history.retired),
                }
            )
            return
        if not history.generations:
            text.say(f"{opened.store.url}: job {opened.identity.job!r}: nothing has been committed yet")
            return
        text.list_generations(history)
        held_by = f"term {history.term}, claimed by {history.owner}" if history.term else "no term was claimed yet"
        text.say(f"job {opened.identity.job!r}; {len(history.retired)} retired; {held_by}", style="dim")
        if opened.log.repaired:
            text.say(f"damaged, read from its copy: {text.entries(opened.log.repaired)}; see verify", style="yellow")


def show(
    store: Target,
    generation: Chosen = "newest",
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what one generation holds."""
    with session(store) as opened:
        chosen = opened.generation(generation)
        indices = opened.open(chosen).indices
        if not as_json:
            text.show_generation(chosen, indices, every_tensor=tensors)
            return
        shared = next((index.shared for index in indices.values() if index.writer == 0), None)
        text.put_json(
            text.generation_json(chosen, opened.history.shielded())
            | {
                "data_position": chosen.manifest.data_position,
                "versions": chosen.manifest.versions,
                "tensors": text.tensors_of(indices),
                "shared": shared,
            }
        )


def verify(
    store: Target,
    generation: Annotated[
        str, typer.Argument(metavar="[GENERATION]", help=f"{_GENERATION_HELP} Default: all.")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Read every byte and compare it with its digests; name the damaged objects, bytes and tensors."""
    with session(store) as opened:
        chosen = _all_or_one(opened, generation)
        in_log = examine_log(opened.store, opened.history.last)
        if not as_json:
            text.show_log_damage(in_log)
        found: list[Examined] = []
        for one in _examined(opened, chosen):
            found.append(one)
            if not as_json:
                text.show_examined(one)
        sound = [one for one in found if not one.damage]
        is_sound = len(sound) == len(found) and not in_log
        if as_json:
            text.put_json({"store": opened.store.url, "sound": is_sound, "generations": found, "log": in_log})
        else:
            if in_log:
                text.say(_way_out_of_log(in_log))
            if len(sound) < len(found):
                text.say(_way_out(found, opened.history))
        if not is_sound:
            raise typer.Exit(PROBLEM)


def _examined(opened: Session, chosen: list[Generation]) -> Iterator[Examined]:
    """One after the other; the bar is gone whenever there is something to print."""
    bars: list[Callable[[int, int], None]] = []

    def tell(done: int, total: int) -> None:
        bars[-1](done, total)

    work = examine(opened.store, chosen, tell)
    for _ in chosen:
        with progress("reading") as told:
            bars.append(told)
            one = next(work)
        yield one


def _all_or_one(opened: Session, generation: str) -> list[Generation]:
    if generation != "all":
        return [opened.generation(generation)]
    if not opened.history.generations:
        fail(f"{opened.store.url}: no checkpoint has been committed yet, so there is nothing to verify", PROBLEM)
    return list(opened.history.generations.values())


def _way_out_of_log(damage: Iterable[LogDamage]) -> str:
    served = [one for one in damage if one.served_by]
    if not served:
        return "put these entries back from a backup of the store: once its summary is damaged too, it cannot be opened"
    return (
        "what is damaged in the log is not used: the other copy of each of these entries is, and nothing is lost while "
        f"that one is sound; make a backup of the store, and see to its disk (cp {served[0].served_by} "
        f"{served[0].object} and so on puts a damaged one back)"
    )


def _way_out(found: list[Examined], history: History) -> str:
    sound = [one for one in found if not one.damage and history.generations[one.generation].is_good]
    mend = "damaged objects can be put back from a copy; then run closeranks ckpt restore-drill"
    if not sound:
        return f"none of these is sound; {mend}, or restore from another tier"
    newest = sound[-1]
    return (
        f"newest sound one: generation {newest.generation} (step {newest.step}); a restart finds it by itself; {mend}"
    )


def diff(
    store: Target,
    first: Annotated[str, typer.Argument(metavar="A", help=_GENERATION_HELP, show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help=_GENERATION_HELP, show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help="List every difference.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two generations: which tensors differ, by how much, and what else.

    Exit status 0 also where they differ.
    """
    with session(store) as opened:
        pair = opened.generation(first), opened.generation(second)
        with progress("comparing") as told:
            found = compare(opened.open(pair[0]), opened.open(pair[1]), told)
        if as_json:
            kept = opened.history.shielded()
            sides = {name: text.generation_json(one, kept) for name, one in zip(("a", "b"), pair, strict=True)}
            text.put_json(sides | msgspec.structs.asdict(found))
            return
        names = (f"generation {one.number} (step {one.manifest.step})" for one in pair)
        text.say(f"from {' to '.join(names)}", style="bold")
        text.show_difference(found, everything=everything)


def restore_drill(store: Target, generation: Chosen = "newest", as_json: AsJson = False) -> None:
    """Load a generation into scratch memory and note in the log whether it held."""
    with session(store) as opened:
        chosen = opened.generation(generation)
        with progress("loading") as told:
            found = drill(opened.store, opened.log, chosen.number, progress=told)
        if as_json:
            text.put_json({"step": chosen.manifest.step} | found._asdict())
        else:
            verdict = "held" if found.held else "BROKEN" if found.recorded else "unknown"
            style = "green" if found.held else "bold red"
            text.say(
                f"generation {chosen.number} (step {chosen.manifest.step}): {verdict}: {found.detail}", style=style
            )
        if not found.held:
            raise typer.Exit(PROBLEM)


def pin(
    store: Target,
    generation: Named,
    label: Annotated[str, typer.Option(help="Why, or as what.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Keep a generation whatever the retention says."""
    with session(store) as opened:
        chosen = opened.generation(generation)
        entry = opened.log.append_as_visitor(Pin(generation=chosen.number, label=label))
        _done(chosen, entry, "pinned" + (f" as {label!r}" if label else ""), as_json=as_json)


def unpin(store: Target, generation: Named, as_json: AsJson = False) -> None:
    """Take the pins of a generation away; the retention decides again."""
    with session(store) as opened:
        chosen = opened.generation(generation)
        if not chosen.pinned:
            fail(f"generation {chosen.number} is not pinned", PROBLEM)
        entry = opened.log.append_as_visitor(Unpin(generation=chosen.number))
        _done(chosen, entry, "unpinned", as_json=as_json)


def _done(chosen: Generation, entry: int, what: str, *, as_json: bool) -> None:
    if as_json:
        text.put_json({"generation": chosen.number, "step": chosen.manifest.step, "entry": entry})
    else:
        text.say(f"generation {chosen.number} (step {chosen.manifest.step}): {what} (entry {entry} of the log)")


def gc(
    store: Target,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Retire what this does not keep, e.g. last=3,hourly=24,daily=7,every=1000."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Free the space of what nobody can need: retired generations and saves that never were committed.

    Pinned generations, the newest and the last verified always stay. Safe while a run saves to the store.
    """
    try:
        policy = None if keep is None else Policy.parse(keep)
    except ValueError as error:
        fail(str(error), USAGE)
    with session(store) as opened:
        chosen = None if policy is None else choose(opened.history, policy, time.time())
        going = () if chosen is None else chosen.retire
        log = opened.log
        if going and dry_run:
            log = _Supposed(opened, going)
        elif going:
            log.append_as_visitor(Retire(generations=going))
        with progress("deleting") as told:
            swept = sweep(opened.store, log, dry_run=dry_run, progress=lambda _, done, total: told(done, total))
        if as_json:
            kept = opened.history.shielded() if chosen is None else chosen.keep
            reasons = {str(number): reason for number, reason in kept.items()}
            text.put_json({"dry_run": dry_run, "retired": going, "kept": reasons} | msgspec.structs.asdict(swept))
            return
        would = "would be " if dry_run else ""
        for number, reason in ({} if chosen is None else chosen.keep).items():
            text.say(f"generation {number} stays: {reason}", style="dim")
        for number in going:
            text.say(f"generation {number} (step {opened.history.generations[number].manifest.step}) {would}retired")
        for note in swept.notes:
            text.say(note, style="yellow")
        text.say(f"{len(swept.keys):,} objects with {text.size(swept.freed_bytes)} {would}deleted")


class _Supposed(CommitLog):
    """The log as it would be after generations were retired; for looking only."""

    def __init__(self, opened: Session, going: tuple[int, ...]) -> None:
        super().__init__(opened.store)
        before = opened.history
        self._after = fold(
            before,
            Entry(
                format=FORMAT,
                number=before.last + 1,
                term=before.term,
                nonce="",
                wall_s=0.0,
                act=Retire(generations=going),
            ),
        )

    def refresh(self) -> History:
        """What would be."""
        return self._after
