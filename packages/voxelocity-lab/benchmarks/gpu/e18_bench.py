"""Scenarios of `voxelocity bench` on this device: transforms by device, and settings off and on in whole trainings."""

from __future__ import annotations

from gpu.experiment import Experiment, Setting
from voxelocity_lab.bench import SWITCHES, run_scenario, run_switch
from voxelocity_lab.bench.comparison import Comparison

_NAMES = "transforms,caching,thread-buffer,dice-ce,novograd"
_TINY_NAMES = "transforms,caching"


def run(setting: Setting) -> None:
    """Each once; `--set E18.names=amp,caching` for others or fewer."""
    for name in setting.options.get("names", _TINY_NAMES if setting.is_tiny else _NAMES).split(","):
        with setting.guard("scenarios", what=name):
            if name not in SWITCHES:
                run_scenario(
                    name,
                    quick=setting.is_tiny,
                    on_comparison=lambda found, name=name: _report(setting, name, found),  # type: ignore[misc]
                    work=setting.work,
                )
                continue
            for comparison in run_switch(name, quick=setting.is_tiny, work=setting.work).comparisons:
                _report(setting, name, comparison)


def _report(setting: Setting, name: str, comparison: Comparison) -> None:
    """A row for each side; of a setting, the first is the one with it."""
    for side in comparison.to_plain()["sides"]:
        ratios = {f"first_better_by_{key}": value for key, value in side.pop("ours_better_by", {}).items()}
        figure = {"figure": comparison.title, "unit": comparison.unit}
        setting.report("scenarios", {"what": name, **figure, **side, **ratios})


EXPERIMENT = Experiment(
    id="E18",
    question="What do transforms on the device, caching, ThreadBuffer, DiceCE and NovoGrad bring?",
    seconds=420.0,
    run=run,
)
