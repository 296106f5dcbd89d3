"""`voxelocity cache build|ls|verify|clear`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity.cli import options
from voxelocity_observe.cli.command import PlainCommand
from voxelocity_observe.cli.foreign_options import ListingGroup
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.quantities import bytes_text, duration_text, parse_duration_s
from voxelocity_observe.core.terminal_text import printable_lines

if TYPE_CHECKING:
    from voxelocity.data.cache.contents import CacheContents, KeptEntry

app = typer.Typer(
    cls=ListingGroup,
    help="Build, list, check and clear a folder of prepared cases.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Folder = Annotated[Path | None, typer.Argument(help="The cache (data.cache.folder); default: that of plans.")]
InMemory = Annotated[bool, typer.Option("--memory", help="Cases that runs keep in main memory, instead of a folder.")]


@app.command("build", cls=PlainCommand)
def build(
    dataset: options.Dataset,
    device: options.Device = "auto",
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    ray: Annotated[
        str, typer.Option("--ray", help="Prepare on all nodes of a Ray cluster: its address, auto, or local.")
    ] = "",
) -> None:
    """Prepare all cases of DATASET on disk, for trainings with the same --device and keys."""
    overrides, chosen = options.read_overrides(config, sets), options.read_device(device)
    from voxelocity.data.source import open_cases
    from voxelocity.training.building import build_cache, cache_job
    from voxelocity_observe.core.console import PlainConsole

    job, console = cache_job(open_cases(dataset), device=chosen, overrides=overrides), PlainConsole()
    if ray:
        from voxelocity.training.ray import build_cache as build_on_cluster

        build_on_cluster(job, address=ray, console=console)
    else:
        build_cache(job, console=console)
    _say(f"in {job.data.cache.folder}; trainings with --set data.cache.tier={job.data.cache.tier} use them")


@app.command("ls", cls=PlainCommand)
def ls(folder: Folder = None, memory: InMemory = False) -> None:
    """List the entries: case, shape, type, bytes, age."""
    if memory:
        _list_memory(folder)
        return
    contents = _open(folder)
    entries = sorted(contents.entries(), key=lambda entry: (entry.case_id, entry.key))
    if entries:
        _say("\n".join(_aligned([_HEAD, *(_row(entry) for entry in entries)])))
    total = sum(entry.num_bytes for entry in entries)
    states = [entry.state for entry in entries]
    unusable = [f"{count} {state}" for state in ("damaged", "outdated") if (count := states.count(state))]
    note = f" ({', '.join(unusable)})" if unusable else ""
    _say(f"{_count_text(entries)}{note}, {bytes_text(total)} in {contents.folder}")


@app.command("verify", cls=PlainCommand)
def verify(
    folder: Folder = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also verify every voxel, not only lengths, headers and foreground.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove damaged entries; runs prepare them again.")] = False,
) -> None:
    """Check the entries; status 1 if one is damaged."""
    contents = _open(folder)
    entries = []
    for entry in contents.entries(full=full):
        entries.append(entry)
        if entry.state == "damaged":
            who = f"case '{entry.case_id}', " if entry.case_id else ""
            _say(f"damaged: {who}entry {entry.key}: {entry.problem}")
    damaged = [entry for entry in entries if entry.state == "damaged"]
    if not damaged:
        how = "every voxel" if full else "lengths, headers and foreground; --full verifies every voxel"
        _say(f"{_count_text(entries)} in {contents.folder}, none damaged (checked: {how})")
        return
    if remove:
        contents.remove(damaged)
    what = "removed; runs prepare them again" if remove else "--remove removes them, and runs prepare them again"
    _say(f"{len(damaged)} of {_count_text(entries)} in {contents.folder} damaged: {what}")
    raise typer.Exit(1)


@app.command("clear", cls=PlainCommand)
def clear(
    folder: Folder = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Only entries older than this, and unusable ones: 7d, 12h.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    memory: InMemory = False,
) -> None:
    """Remove entries, and no other files; with --memory, those of killed runs. Asks first."""
    if memory:
        _clear_memory(folder, older_than, yes=yes)
        return
    from voxelocity.data.cache import TIERS

    min_age_s = 0.0 if older_than is None else parse_duration_s(older_than)
    contents = _open(folder)
    # An entry of unknown age is unusable.
    entries = [entry for entry in contents.entries() if entry.age_s is None or entry.age_s >= min_age_s]
    if not entries:
        _say(f"nothing to remove in {contents.folder}")
        return
    total = bytes_text(sum(entry.num_bytes for entry in entries))
    if not yes:
        _ask(f"Remove {_count_text(entries)}, {total}, from {contents.folder}?")
    freed = bytes_text(contents.remove(entries))
    files = {file.name: None for entry in entries if (file := TIERS[entry.tier].file) is not None}
    note = f" ({', '.join(files)} keeps its size; new entries reuse the space)" if files else ""
    _say(f"removed {_count_text(entries)}, freed {freed}{note}")


def _list_memory(folder: Path | None) -> None:
    from voxelocity_observe.core.memory_folders import memory_folders

    _check_alone(folder)
    found = memory_folders()
    for entry in found:
        who = "in use" if entry.is_used else "left by a killed process; `cache clear --memory` removes it"
        _say(f"{entry.path}  {bytes_text(entry.num_bytes)}  {who}")
    if not found:
        _say("no run keeps cases in memory, and no killed run left any")


def _clear_memory(folder: Path | None, older_than: str | None, *, yes: bool) -> None:
    from voxelocity.data.cache.shared_folder import remove_left_behind
    from voxelocity_observe.core.memory_folders import memory_folders

    _check_alone(folder or older_than)
    found = memory_folders()
    for entry in found:
        if entry.is_used:
            _say(f"{entry.path} is in use: its memory is freed when the last run that uses it ends")
    left = [entry for entry in found if not entry.is_used]
    if not left:
        _say("nothing to remove in memory")
        return
    total = bytes_text(sum(entry.num_bytes for entry in left))
    if not yes:
        _ask(f"Remove {total} from {', '.join(str(entry.path) for entry in left)}?")
    for entry in left:
        try:
            is_gone = remove_left_behind(entry.path)
        except OSError as error:
            raise OutputError(f"cache clear: {entry.path} cannot be removed ({error})") from error
        size = bytes_text(entry.num_bytes)
        _say(f"removed {entry.path}, freed {size}" if is_gone else f"{entry.path} is in use now and was kept")


def _check_alone(given: object) -> None:
    if given is not None:
        raise ConfigError("cache: --memory cannot be combined with FOLDER or --older-than; leave them out")


_HEAD = ("case", "shape (c, x, y, z)", "dtype", "kept as", "bytes", "bytes/voxel", "age")


def _row(entry: KeptEntry) -> tuple[str, ...]:
    if entry.state != "whole":
        return (f"{entry.state}: {entry.key}", "", "", entry.tier, bytes_text(entry.num_bytes), "", "")
    return (
        entry.case_id,
        " x ".join(str(n) for n in entry.shape),
        entry.dtype,
        f"{entry.tier} {entry.format}",
        bytes_text(entry.num_bytes),
        f"{entry.bytes_per_voxel:.2f}",
        duration_text(entry.age_s),
    )


def _open(folder: Path | None) -> CacheContents:
    from voxelocity.core.remote import local_name, remote_url
    from voxelocity.data.cache.contents import CacheContents
    from voxelocity_observe.core.host import default_cache_folder

    if folder is not None and (url := remote_url(folder)):
        raise ConfigError(
            f"cache: {url} is on a server; use the server's tools there, or name the local copies: "
            f"{default_cache_folder() / 'remote-cache' / local_name(url)}"
        )
    return CacheContents((folder or default_cache_folder()).expanduser())


def _ask(question: str) -> None:
    """Ends the command, with status 1, unless the user agrees."""
    if not sys.stdin.isatty():
        raise ConfigError("cache clear: cannot ask whether to remove entries without a terminal; add --yes")
    if not typer.confirm(question):
        _say("nothing was removed")
        raise typer.Exit(1)


def _count_text(entries: Sequence[KeptEntry]) -> str:
    return "1 entry" if len(entries) == 1 else f"{len(entries)} entries"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _say(text: str) -> None:
    """Prints the text; names of folders and cases cannot contain control codes for the terminal."""
    typer.echo(printable_lines(text))
