"""Which of several processes this is, as its launcher says in the environment; `LAUNCHERS` lists those we know."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from voxelocity_observe.core.errors import ConfigError

_FIRST_PORT, _NUM_PORTS = 20_000, 20_000
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process among those that train together.

    Attributes:
        rank: of all processes, from 0.
        size: number of processes.
        local_rank: among the processes of the same machine, from 0.
        local_size: number of processes on this machine.
        launcher: what started them; "" if this process is alone.
        address: host name and port at which rank 0 waits for the others; ("", 0) if torch knows them.
        num_restarts: how often the launcher started the program again, after a failure or a time limit.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""
    address: tuple[str, int] = ("", 0)
    num_restarts: int = 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """What starts the processes, and the variables by which it says so.

    Attributes:
        name: of its command.
        rank, size: variables with these numbers of a `Place`. It has started a process that has both.
        local_rank, local_size: likewise, if they are set; "" if it has none.
        count_local: processes on this machine, from all variables, where `local_size` is not set.
        find_address: where rank 0 waits, from all variables and the rest of the place.
        restarts: variable that counts how often it started the program again; "" if it does not say.
        job: variable with what it calls the job, the same when it starts the program again; "" if it has none.
        prefixes: beginnings of other variables that concern one rank alone.
        shares_cores: whether the processes that it starts on a machine share one affinity, one control group and one
            task of SLURM.
        starts_launchers: whether what it starts may be another launcher, whose ranks then count.
    """

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    count_local: Callable[[Mapping[str, str]], int] = lambda environ: 1
    find_address: Callable[[Mapping[str, str], Place], tuple[str, int]] = lambda environ, place: ("", 0)
    restarts: str = ""
    job: str = ""
    prefixes: tuple[str, ...] = ()
    shares_cores: bool = False
    starts_launchers: bool = False


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; alone if no launcher started several.

    Raises:
        ConfigError: a launcher's variables contradict each other, or say too little for several machines.
    """
    started = [launcher for launcher in LAUNCHERS if launcher.rank in environ and launcher.size in environ]
    place = _place(environ, started[0]) if started else Place()
    return replace(place, num_restarts=sum(_number(environ, launcher.restarts, default=0) for launcher in LAUNCHERS))


def launcher_job(environ: Mapping[str, str] = os.environ) -> str:
    """What the launcher calls this job, the same when it starts the program again; "" if it has no name."""
    # A job that SLURM starts again starts another torchrun.
    return next((environ[launcher.job] for launcher in reversed(INNER_FIRST) if environ.get(launcher.job)), "")


def concerns_one_rank(variable: str) -> bool:
    """Whether a variable of this name says something of one rank alone, which does not hold for what it starts."""
    return any(
        variable in (launcher.rank, launcher.size, launcher.local_rank, launcher.local_size, launcher.restarts)
        or variable.startswith(launcher.prefixes)
        for launcher in LAUNCHERS
    )


def _place(environ: Mapping[str, str], launcher: Launcher) -> Place:
    has_size = launcher.local_size in environ
    place = Place(
        rank=_number(environ, launcher.rank),
        size=_number(environ, launcher.size),
        local_rank=_number(environ, launcher.local_rank, default=0),
        local_size=_number(environ, launcher.local_size, default=1) if has_size else launcher.count_local(environ),
        launcher=launcher.name,
    )
    if not (0 <= place.rank < place.size and 0 <= place.local_rank < place.local_size <= place.size):
        raise ConfigError(
            f"parallel: the variables of {launcher.name} contradict each other: {launcher.rank}={place.rank} of "
            f"{launcher.size}={place.size}, {launcher.local_rank}={place.local_rank} of {place.local_size} on this "
            f"machine; unset them, or start the program with {launcher.name}"
        )
    return Place() if place.is_alone else replace(place, address=launcher.find_address(environ, place))


def _number(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d+", text):
        raise ConfigError(f"parallel: the variable {name} is '{text}', not a whole number; unset it")
    return int(text)


def _least_local_ranks(environ: Mapping[str, str]) -> int:
    """Ignite does not say it. On several machines there are at least the ranks up to this one."""
    is_here = environ.get("MASTER_ADDR", "localhost") in _THIS_MACHINE
    return _number(environ, "WORLD_SIZE") if is_here else _number(environ, "LOCAL_RANK", default=0) + 1


def _tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """From SLURM's short form, such as 2(x3),1: three nodes with two tasks each, and one with one."""
    node = _number(environ, "SLURM_NODEID", default=0)
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        tasks, _, times = part.partition("(x")
        num_nodes = int(times.rstrip(")") or 1)
        if node < num_nodes:
            return int(tasks)
        node -= num_nodes
    raise ConfigError(
        f"parallel: SLURM_STEP_TASKS_PER_NODE={environ.get('SLURM_STEP_TASKS_PER_NODE')} has no node "
        f"{environ.get('SLURM_NODEID')}; start the program with srun"
    )


def _address_in_slurm(environ: Mapping[str, str], place: Place) -> tuple[str, int]:
    """The first node of the step, and a port that follows from the job and the step."""
    if "MASTER_ADDR" in environ:
        return ("", 0)
    nodes = environ.get("SLURM_STEP_NODELIST", "localhost")
    # gpu[03-07,11],login1 begins with gpu03.
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    assert found is not None, "SLURM names nodes"
    host = found[1] + (found[2] or "") + (found[3] or "")
    job, step = _number(environ, "SLURM_JOB_ID", default=0), _number(environ, "SLURM_STEP_ID", default=0)
    return host, _FIRST_PORT + (job + step) % _NUM_PORTS


def _address_of_mpi(environ: Mapping[str, str], place: Place) -> tuple[str, int]:
    """This machine, and a port that follows from the process that has started all ranks."""
    if "MASTER_ADDR" in environ:
        return ("", 0)
    if place.local_size < place.size:
        raise ConfigError(
            "parallel: mpirun started processes on several machines, which must know where rank 0 is; add "
            "-x MASTER_ADDR=HOST -x MASTER_PORT=29500 with the name of the first machine"
        )
    return "127.0.0.1", _FIRST_PORT + os.getppid() % _NUM_PORTS


LAUNCHERS = (
    Launcher(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        count_local=_least_local_ranks,
        restarts="TORCHELASTIC_RESTART_COUNT",
        job="TORCHELASTIC_RUN_ID",
        prefixes=("TORCHELASTIC_",),
        shares_cores=True,
    ),
    Launcher(
        name="srun",
        rank="SLURM_PROCID",
        # Of a step, not of the job: the job's script runs once, whatever the number of tasks.
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        count_local=_tasks_on_this_node,
        find_address=_address_in_slurm,
        restarts="SLURM_RESTART_COUNT",
        job="SLURM_JOB_ID",
        starts_launchers=True,
    ),
    # Open MPI.
    Launcher(
        name="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        find_address=_address_of_mpi,
        prefixes=("OMPI_COMM_WORLD_",),
    ),
    # Other MPIs.
    Launcher(
        name="mpirun",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        find_address=_address_of_mpi,
        prefixes=("PMI_", "MPI_LOCAL"),
    ),
)
"""The first whose variables a process has started it."""

INNER_FIRST = tuple(sorted(LAUNCHERS, key=lambda launcher: launcher.starts_launchers))
"""Those that others may have started first: the first whose rank a process has says which rank it is."""
