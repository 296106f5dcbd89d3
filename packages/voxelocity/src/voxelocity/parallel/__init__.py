"""Several processes that train one network: which one this is, and what they exchange. Knows no training.

The processes are called ranks, as in torch. A launcher starts them (torchrun, srun, mpirun); one process alone is a
world of one, which exchanges nothing.

- `world`: what ranks exchange, and which one failed; `observe.place` says which rank this is.
- `watchdog`: ranks that stop or hang, noticed by signs of life. `balance`: work divided, as pure functions.
- `launch`, `slurm`: ranks started by torchrun's agent; the script of a job, which resumes by itself.
- `sharding`, `distributed`, `modes`: where the tensors of a network are while ranks train it.
- `segments`, `pipeline`: a network as a list of parts that can be cut anywhere; stages, the best `cuts`,
  and the `whole_loss` of all pieces.
- `footprint`, `fit`, `auto`: what each segment takes, the simplest way in which a model fits, the model in that way.
"""

from typing import TYPE_CHECKING

from voxelocity.parallel.balance import even_shares, shared_out, shares_by_time, shares_in_proportion
from voxelocity_observe.core.first_use import first_use
from voxelocity_observe.core.place import Place, launcher_job, read_place

if TYPE_CHECKING:
    from voxelocity.parallel.auto import auto_parallelize_model
    from voxelocity.parallel.distributed import Pipelined
    from voxelocity.parallel.fit import decide_by_measurement
    from voxelocity.parallel.modes import Mode, shard
    from voxelocity.parallel.pipeline import PipelineParallelModule
    from voxelocity.parallel.sharding import Sharding
    from voxelocity.parallel.world import ALONE, World, join_world, one_group

__all__ = [
    "ALONE",
    "Mode",
    "PipelineParallelModule",
    "Pipelined",
    "Place",
    "Sharding",
    "World",
    "auto_parallelize_model",
    "decide_by_measurement",
    "even_shares",
    "join_world",
    "launcher_job",
    "one_group",
    "read_place",
    "shard",
    "shared_out",
    "shares_by_time",
    "shares_in_proportion",
]

__getattr__ = first_use(
    __name__,
    {
        "distributed": ("Pipelined",),
        "auto": ("auto_parallelize_model",),
        "fit": ("decide_by_measurement",),
        "pipeline": ("PipelineParallelModule",),
        "modes": ("Mode", "shard"),
        "sharding": ("Sharding",),
        "world": ("ALONE", "World", "join_world", "one_group"),
    },
)
