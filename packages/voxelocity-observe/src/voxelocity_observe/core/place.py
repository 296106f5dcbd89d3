"""Which of several processes this is, as its launcher says in the environment: torchrun, srun or mpirun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; alone if no launcher started several.

    Raises:
        ConfigError: a launcher's variables contradict each other, or say too little for several machines.
    """
    place = _of_launcher(environ)
    restarts = (_number(environ, name, default=0) for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return replace(place, num_restarts=sum(restarts))


def launcher_job(environ: Mapping[str, str] = os.environ) -> str:
    """What the launcher calls this job, the same when it starts the program again; "" if it has no name."""
    # A job that SLURM starts again starts another torchrun.
    return environ.get("SLURM_JOB_ID") or environ.get("TORCHELASTIC_RUN_ID", "")


def _of_launcher(environ: Mapping[str, str]) -> Place:
    if "RANK" in environ and "WORLD_SIZE" in environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "LOCAL_WORLD_SIZE" in environ:
            return _place(environ, "torchrun", *names, "LOCAL_WORLD_SIZE")
        # Ignite does not say it. On several machines there are at least the ranks up to this one.
        is_here = environ.get("MASTER_ADDR", "localhost") in _THIS_MACHINE
        least = _number(environ, "LOCAL_RANK", default=0) + 1
        return _place(environ, "torchrun", *names, local_size=_number(environ, "WORLD_SIZE") if is_here else least)
    # A step, not the job: the job's script runs once, whatever the number of tasks.
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        return _place(
            environ, "srun", *names, local_size=_tasks_on_this_node(environ), address=_address_in_slurm(environ)
        )
    if "OMPI_COMM_WORLD_RANK" in environ:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
        return _of_mpi(environ, *names, "OMPI_COMM_WORLD_LOCAL_SIZE")
    if "PMI_RANK" in environ and "PMI_SIZE" in environ:
        return _of_mpi(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return Place()


def _place(
    environ: Mapping[str, str],
    launcher: str,
    rank: str,
    size: str,
    local_rank: str,
    local_size_name: str = "",
    *,
    local_size: int | None = None,
    address: tuple[str, int] = ("", 0),
) -> Place:
    place = Place(
        rank=_number(environ, rank),
        size=_number(environ, size),
        local_rank=_number(environ, local_rank, default=0),
        local_size=_number(environ, local_size_name, default=1) if local_size is None else local_size,
        launcher=launcher,
        address=address,
    )
    if not (0 <= place.rank < place.size and 0 <= place.local_rank < place.local_size <= place.size):
        raise ConfigError(
            f"parallel: the variables of {launcher} contradict each other: {rank}={place.rank} of {size}={place.size}, "
            f"{local_rank}={place.local_rank} of {place.local_size} on this machine; unset them, or start the program "
            f"with {launcher}"
        )
    return Place() if place.is_alone else place


def _of_mpi(environ: Mapping[str, str], rank: str, size: str, local_rank: str, local_size: str) -> Place:
    place = _place(environ, "mpirun", rank, size, local_rank, local_size)
    if place.is_alone or "MASTER_ADDR" in environ:
        return place
    if place.local_size < place.size:
        raise ConfigError(
            "parallel: mpirun started processes on several machines, which must know where rank 0 is; add "
            "-x MASTER_ADDR=HOST -x MASTER_PORT=29500 with the name of the first machine"
        )
    # All of them have the same parent.
    port = _FIRST_PORT + os.getppid() % _NUM_PORTS
    return replace(place, address=("127.0.0.1", port))


def _number(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d+", text):
        raise ConfigError(f"parallel: the variable {name} is '{text}', not a whole number; unset it")
    return int(text)


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


def _address_in_slurm(environ: Mapping[str, str]) -> tuple[str, int]:
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
