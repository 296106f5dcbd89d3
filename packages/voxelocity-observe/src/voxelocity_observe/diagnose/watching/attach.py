"""Records a program: one to be started, through its environment, or the current process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.place import INNER_FIRST
from voxelocity_observe.diagnose.recorder import recording
from voxelocity_observe.diagnose.recorder.ending import Enough
from voxelocity_observe.diagnose.recorder.process import VARIABLE, Settings

_SITE = Path(recording.__file__).with_name("site")


def recording_environment(
    folder: Path | str, *, environment: Mapping[str, str] | None = None, **limits: float
) -> dict[str, str]:
    """The environment in which every Python program, and every one that it starts, is recorded.

    Args:
        folder: gets one file per process; created if missing.
        environment: to start from; this process's own by default.
        limits: fields of the recorder's `Settings`: `seconds`, `whole`, `experiments`, `keeps_saves`, ...

    Raises:
        ConfigError: `seconds` is not above 0, or there is no limit of such a name.
        OutputError: the folder cannot be made.
    """
    settings = _settings(folder, **limits)
    chosen = dict(os.environ if environment is None else environment)
    chosen[VARIABLE] = settings.to_json()
    # An empty entry is the current folder, but an empty variable names none.
    before = chosen.get("PYTHONPATH")
    own = [path for path in before.split(os.pathsep) if path != str(_SITE)] if before else []
    chosen["PYTHONPATH"] = os.pathsep.join([str(_SITE), *own])
    return chosen


@contextmanager
def record_here(folder: Path | str, **limits: float) -> Iterator[None]:
    """Records what this process does in the block. Everything is as before afterwards.

    Weights, optimizers and random states are then those of the last step that the block made by itself. If the block
    is left because enough was seen, files it would write while it unwinds are not written.

    The thread that enters is taken to train, unless another one makes the first step. Optimizers and loaders may be
    older than the block; workers that are already running are not seen.

    Args:
        folder: gets one file per process; created if missing.
        limits: as for `recording_environment`. By default the block runs to its end (`whole`), without experiments and
            profile, which need `whole=False`: the block is then left once enough was seen.

    Raises:
        ConfigError: `seconds` is not above 0, or there is no limit of such a name.
        OutputError: the folder cannot be made.
    """
    settings = _settings(folder, **{"whole": True, "experiments": False, "profile": False, **limits})
    begun = recording.begin(settings)
    try:
        yield
    except Enough:
        pass
    except BaseException as error:
        recording.end(begun, "error", f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        recording.end(begun, "program")


def _settings(folder: Path | str, **limits: float) -> Settings:
    if not limits.get("seconds", 1.0) > 0:
        raise ConfigError(f"diagnosis.attach: seconds={limits['seconds']}; give a time above 0")
    known = set(Settings._fields) - {"folder", "launchers"}
    if unknown := limits.keys() - known:
        raise ConfigError(
            f"diagnosis.attach: no limit is called {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}"
        )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"diagnosis.attach: cannot make the folder {folder} ({error.strerror}); choose one you may write to"
        ) from None
    launchers = [(launcher.rank, launcher.size) for launcher in INNER_FIRST]
    return Settings(folder=str(Path(folder).resolve()), launchers=launchers, **limits)  # type: ignore[arg-type]
