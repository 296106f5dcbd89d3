"""The main use case: plan, cache, train, validate, report, resume.

- `entry`: `train` and the run, top to bottom. `folds`: several of them with one plan, pooled.
- `resume`, `open_session`, `session`: what a command may continue, what it begins with on this rank, and what all parts
  of it use. `source_model`, `transfer`, `start_choice`, `exposure`: the model that a run starts from, weights taken
  over, the best of several, and the cases that it may have seen.
- `caching`, `ahead`, `building`: cases prepared and kernels compiled before training; cases prepared without one.
- `train_steps`, `loop`, `readings`, `budget`: steps until the budget is spent; losses read late, the split of a step.
  `broken_step`: what is said of one that was not finite.
- `balancing`, `sharding`: how many patches each rank takes; how the network is distributed.
- `validation`, `scoring`, `validation_cost`, `postprocessing`: on the way and at the end; cases scored while others are
  predicted; how long it takes; largest components.
- `library_memory`: what libraries take in memory, from a small training in a process of its own.
- `run_folder`, `checkpoint`: files of a run, its state on disk. `progress`, `results`: what the user sees.
"""

from voxelocity.training.entry import run_training, train
from voxelocity.training.folds import FoldsResult, run_folds, train_folds
from voxelocity.training.open_session import RunContext
from voxelocity.training.start_choice import plan, plan_run

__all__ = ["FoldsResult", "RunContext", "plan", "plan_run", "run_folds", "run_training", "train", "train_folds"]
