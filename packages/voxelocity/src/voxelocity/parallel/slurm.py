"""A training as a SLURM job: its script, which resumes by itself after a time limit or a lost node, and `sbatch`.

The script is plain text to read and change. submitit, which submits Python functions, would need the job's environment
to unpickle one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from voxelocity_observe.core.errors import CommandError, ConfigError
from voxelocity_observe.core.whole_file import write_whole

# Of saving the state after the current step, with the slowest file system in mind.
_WARNING_S = 180
_STOPPED = 128 + 15

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={num_nodes}
#SBATCH --ntasks-per-node={num_ranks}
#SBATCH --time={minutes}
#SBATCH --output={log}
#SBATCH --open-mode=append
# This long before the time limit, the training saves its state and stops. Then, and after the loss of a node, the job
# waits in the queue again, and its next start continues the run.
#SBATCH --signal=TERM@{warning_s}
#SBATCH --requeue
{options}
srun --kill-on-bad-exit=1 {command}
status=$?
if [ $status -eq {stopped} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def job_script(
    arguments: Sequence[str],
    *,
    name: str,
    log: Path,
    num_nodes: int,
    num_ranks: int,
    limit_s: float,
    options: Sequence[str] = (),
) -> str:
    """The script of a job that runs a command of ours.

    Args:
        arguments: of the command line.
        name: of the job.
        log: gets what the job prints.
        num_nodes: machines.
        num_ranks: processes on each of them.
        limit_s: after which SLURM ends the job, at least five minutes; it then waits in the queue again.
        options: of `sbatch`, each as in a script, such as "--partition=gpu".

    Raises:
        ConfigError: the time is too short, `log` has a line break, or an option is not one.
    """
    if limit_s < 300.0:
        raise ConfigError(
            f"launch: --time is {limit_s:.0f} s; a job needs at least 5 min, of which the last "
            f"{_WARNING_S // 60} are for saving the state"
        )
    if "\n" in str(log):
        raise ConfigError(f"launch: a SLURM script cannot name {str(log)!r}, which has a line break; rename the folder")
    wrong = [option for option in options if not option.startswith("-") or "\n" in option]
    if wrong:
        raise ConfigError(
            f"launch: --sbatch {wrong[0]!r} is not an option of sbatch; write it as in --sbatch=--partition=gpu"
        )
    return _SCRIPT.format(
        name=shlex.quote(name),
        num_nodes=num_nodes,
        num_ranks=num_ranks,
        minutes=int(limit_s // 60),
        # SLURM puts in the job's facts for %j, %x and the like.
        log=shlex.quote(str(log).replace("%", "%%")),
        warning_s=_WARNING_S,
        options="".join(f"#SBATCH {option}\n" for option in options),
        command=shlex.join([sys.executable, "-m", "voxelocity", *arguments]),
        stopped=_STOPPED,
    )


def submit(script: str, path: Path) -> str:
    """Writes the script to a file and submits it; what `sbatch` said.

    Raises:
        CommandError: there is no `sbatch` here, or it refuses the job; the script is there.
        OutputError: the script cannot be written.
    """
    # Folders may have names that are not UTF-8.
    write_whole(path, os.fsencode(script))
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise CommandError(
            f"launch: sbatch is not installed on this machine; submit {path} on one that has it", status=2
        )
    done = subprocess.run([sbatch, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise CommandError(f"launch: sbatch refuses {path}: {said}", status=2)
    return done.stdout.strip()
