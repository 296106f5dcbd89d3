"""The commands from a data set to a model and its predictions."""

from __future__ import annotations

from voxelocity.cli import cache, evaluate, export, init, launch, nnunet, plan, predict, report, train, tune
from voxelocity_observe.cli.command import Command

COMMANDS = (
    Command(name="init", run=init.init, panel="Train"),
    Command(name="plan", run=plan.plan, panel="Train"),
    Command(name="train", run=train.train, panel="Train"),
    Command(name="tune", run=tune.tune, panel="Train"),
    Command(name="launch", run=launch.launch, panel="Train", settings=launch.CONTEXT_SETTINGS),
    Command(name="nnunet", run=nnunet.app, panel="Train"),
    Command(name="predict", run=predict.predict, panel="Use"),
    Command(name="export", run=export.export, panel="Use"),
    Command(name="evaluate", run=evaluate.evaluate, panel="Use"),
    Command(name="report", run=report.report, panel="Understand"),
    Command(name="cache", run=cache.app, panel="Maintain"),
)
