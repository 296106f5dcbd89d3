"""The process of a trial that trains to judge by Dice: `python -m voxelocity.tuning.measure_training TASK ANSWER`.

TASK is JSON: the data set, its folds, the one held out, the device, the run's folder and all keys of its plan.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voxelocity.data.source import open_cases
from voxelocity.report import read_run
from voxelocity.training import train
from voxelocity.tuning.answer import limit_device_memory, run_process, write_answer
from voxelocity_observe.core.clock import process_age_s
from voxelocity_observe.core.console import PlainConsole


def measure(task: dict[str, Any], answer: Path) -> None:
    """Trains as the task says, into its folder, and writes the Dice of each case.

    Raises:
        VoxelocityError: the training failed.
    """
    if task["device_limit_bytes"]:
        import torch

        # The plan takes the one with the most free memory.
        for number in range(torch.cuda.device_count()):
            limit_device_memory(torch.device("cuda", number), task["device_limit_bytes"])
    result = train(
        open_cases(task["dataset"], num_folds=task["num_folds"]),
        task["out"],
        fold=task["fold"],
        device=task["device"],
        overrides=task["keys"],
        overwrite=True,
        console=PlainConsole(),
        spent_s=process_age_s(),
    )
    facts = read_run(result.folder)
    dice = [score.mean_dice for score in result.scores if score.mean_dice is not None]
    rates = [stretch.num_images / stretch.seconds for stretch in facts.steps if stretch.seconds > 0.0]
    write_answer(answer, {"dice": dice or [0.0], "seconds": [result.seconds], "images_per_s": rates or [0.0]})


if __name__ == "__main__":
    run_process(lambda task, answer: measure(json.loads(task.read_bytes()), answer))
