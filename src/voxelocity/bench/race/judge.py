"""One judge for all sides: the weights that each left, scored alike on the held-out scans' own grids."""

from __future__ import annotations

from pathlib import Path

import torch

from voxelocity.infer import Predictor, load_model
from voxelocity.metrics import summarize
from voxelocity.planning import Planned
from voxelocity.step import build_network
from voxelocity.training.spec import model_spec
from voxelocity.training.validate import score_cases


def judged_dice(planned: Planned, weights: Path) -> float:
    """Mean foreground Dice, with the windows of the plan.

    Args:
        planned: whose network the weights are for; MONAI's class of that name has the same.
        weights: a folder of `voxelocity train`, or a file with the state of a module.
    """
    spec = model_spec(planned)
    if weights.is_dir():
        network, _ = load_model(weights)
    else:
        network = build_network(spec.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=0)
        state = torch.load(weights, map_location="cpu", weights_only=True)
        # MONAI's DynUNet registers its blocks twice.
        network.load_state_dict({name: state[name] for name in network.state_dict()})
    machine = planned.machine
    predictor = Predictor(network.eval(), spec, device=machine.torch_device)
    held_out = planned.cases.split(planned.fold).validation
    scored = score_cases(predictor, held_out, spec, num_threads=machine.num_cpus, may_measure_surface=lambda: False)
    mean_dice = summarize([score for score, _, _ in scored]).mean_dice
    assert mean_dice is not None, "a data set to race on has foreground"
    return mean_dice
