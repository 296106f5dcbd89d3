"""Auto3DSeg's segresnet and dints before and after our search: loss and Dice over time. Needs MONAI's templates."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from gpu.experiment import Experiment, Setting
from harness import BENCHMARKS


def run(setting: Setting) -> None:
    """Each template; `--set E19.names=dints` for one."""
    if missing := [name for name in ("fire", "mlflow", "tensorboard") if importlib.util.find_spec(name) is None]:
        setting.report("trainings", {"what": "not installed", "error": f"not installed: {', '.join(missing)}"})
        return
    for name in setting.options.get("names", "segresnet" if setting.is_tiny else "segresnet,dints").split(","):
        with setting.guard("trainings", what=name):
            words = ["--only", name, "--out", setting.work, *(["--quick"] if setting.is_tiny else [])]
            command = [sys.executable, str(BENCHMARKS / "auto3dseg_curves.py"), *map(str, words)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
            record = json.loads((setting.work / "auto3dseg_curves.json").read_text())
            for side in ("before", "after"):
                for training in record["found"][name][side]["runs"]:
                    curves = training.pop("curves")
                    lines = {
                        kind: " ".join(f"{seconds:.1f}:{value:.4f}" for seconds, _, value in points)
                        for kind, points in curves.items()
                    }
                    setting.report("trainings", {"what": name, "side": side, **training, **lines})
            setting.report("searches", {"what": name, **record["found"][name]["search"]})


EXPERIMENT = Experiment(
    id="E19",
    question="Auto3DSeg's segresnet and dints, a patch and window at a time or as our search chose: loss, Dice, time?",
    seconds=480.0,
    run=run,
)
