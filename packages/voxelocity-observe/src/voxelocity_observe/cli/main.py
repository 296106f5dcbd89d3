"""`voxelocity`: the commands, and how errors end them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
import time
import warnings
from collections.abc import Iterator

import typer

from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.command import add_commands
from voxelocity_observe.cli.foreign_options import HintingGroup
from voxelocity_observe.core.device import is_out_of_memory
from voxelocity_observe.core.errors import (
    CommandError,
    ConfigError,
    InputError,
    InterruptedRunError,
    NonFiniteLossError,
    RankLostError,
    VoxelocityError,
)
from voxelocity_observe.core.terminal_text import printable_lines, replace_unencodable
from voxelocity_observe.core.whole_file import is_out_of_space

# Lines after a \b are not joined.
_EXAMPLES = """\b
Examples:
  voxelocity train Task04_Hippocampus -o run --time-budget 10m
  voxelocity predict run scans -o segmentations
  voxelocity diagnose -- python my_training.py
"""

app = typer.Typer(
    name="voxelocity",
    cls=HintingGroup,
    help="Train 3-D medical-imaging networks as fast as this machine allows, with the measurements to prove it.",
    epilog=_EXAMPLES,
    # Plain text loses no letter in a narrow terminal, and comes sooner: rich is not imported.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = add_commands(app)

# From Python, if a thread gets no stack, and from the linker, if a library finds no room.
_NO_MEMORY_WORDS = ("can't start new thread", "failed to map segment from shared object")
_CAUSE_ENDS_S = 5.0
# As if SIGPIPE had ended the program.
_PIPE_STATUS = 141


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Show the version and stop."),
    local_rank: int = typer.Option(0, "--local-rank", "--local_rank", hidden=True),
) -> None:
    # torch.distributed.launch writes the local rank before the command; its variables, which we read, hold it as well.
    del local_rank
    if version:
        from voxelocity_observe import __version__

        typer.echo(f"voxelocity {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    try:
        os.getcwd()
    except FileNotFoundError:
        # Libraries end the process on it, or name a file that nobody knows.
        raise InputError("the working folder was deleted; change to one that exists, and repeat the command") from None
    command = _COMMANDS.get(context.invoked_subcommand or "")
    starts = command.starts if command is not None else ""
    if starts != "program":
        # MONAI imports MLflow if it is installed, which then asks its makers whether to send them usage statistics.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        if starts != "peers" and "OMP_WAIT_POLICY" not in os.environ:
            # Threads that wait for work must sleep soon: libgomp's spin for 300,000 rounds, and any other busy process
            # then makes a training step 2.5 to 40 times slower. Waking them takes time too: if they sleep at once, a
            # step takes 1.5 times as long on an idle machine (two cores, docs/log). Read when torch is imported.
            os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> None:
    """Runs the command line. Status 0: done. 2: an input was wrong. 1: the run failed. 130, 143: stopped.

    `monitor` exits with the status of the command that it watched.
    """
    # Python's last collection visits all objects of torch and MONAI to free what the system frees anyway: 1.4 to 2.2 s
    # of waiting after the last line, 0.3 to 0.5 s without it (docs/log). Finalizers still run.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        replace_unencodable(stream)
    try:
        with interrupt.end_at_once(), _warnings_in_words():
            app()
    except SystemExit as ended:
        # Typer turns a KeyboardInterrupt into this without a message. A watched command may also exit with that status.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            _end(interrupt.MESSAGE, interrupt.STATUS)
        # Rich turns a broken pipe into this.
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(_PIPE_STATUS)
        raise
    except InputError as error:
        _end(error, 2)
    except CommandError as error:
        _end(error, error.status)
    except InterruptedRunError as error:
        _end(error, 128 + error.signal_number)
    except RankLostError as error:
        # The launcher takes the status of the first rank that ends, and ends the others.
        time.sleep(_CAUSE_ENDS_S)
        _end(error, 1)
    except VoxelocityError as error:
        _end(error, 1)
    except BrokenPipeError:
        # The reader of our output closed the pipe; the work up to then is done.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_STATUS)
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if _is_out_of_memory(error):
            reason = str(error).partition("\n")[0]
            _end(
                f"there is too little memory ({reason}); end other programs, use a machine or GPU with more, or reduce "
                "the work: smaller scans, or a smaller data.batch_size",
                1,
            )
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)
            _end(
                f"a name has {len(name):,} characters, more than the file system takes ({name[:60]}...); shorten it", 2
            )
        if not isinstance(error, OSError) or not is_out_of_space(error):
            raise
        # EFBIG is a limit that was set (ulimit -f), not a full disk.
        is_limit = error.errno == errno.EFBIG
        what = "the disk or `ulimit -f` does not allow a file of this size" if is_limit else "no space left on the disk"
        cure = "raise the limit or choose another disk" if is_limit else "free some space"
        _end(
            f"{what}, while writing {error.filename or 'a file'}; {cure}, then repeat the same command; a run "
            "continues from its last checkpoint with --resume",
            1,
        )


def _is_out_of_memory(error: Exception) -> bool:
    # Code that imports a library may wrap its error in another one.
    inner = error.__cause__ or error.__context__
    if isinstance(inner, Exception) and _is_out_of_memory(inner):
        return True
    return is_out_of_memory(error) or any(words in str(error) for words in _NO_MEMORY_WORDS)


@contextlib.contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Within the block, a warning of ours is a line for users, without its place in the code."""
    pythons = warnings.formatwarning

    def format(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        from voxelocity_observe.core.environment import package_folders

        if issubclass(category, UserWarning) and filename.startswith(tuple(map(str, package_folders()))):
            return f"warning: {printable_lines(str(message))}\n"
        return pythons(message, category, filename, lineno, line)

    warnings.formatwarning = format
    try:
        yield
    finally:
        warnings.formatwarning = pythons


def _end(error: object, status: int) -> None:
    # What all ranks of a training have in common, the first one says; of the others, each its own.
    is_common = isinstance(error, RankLostError | InterruptedRunError | NonFiniteLossError)
    if not (is_common and _is_follower()):
        print(f"voxelocity: {printable_lines(str(error))}", file=sys.stderr)
    sys.exit(status)


def _is_follower() -> bool:
    from voxelocity_observe.core.place import read_place

    try:
        return read_place().rank > 0
    except ConfigError:
        return False
