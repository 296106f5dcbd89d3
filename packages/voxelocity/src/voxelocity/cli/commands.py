"""The commands from a data set to a model and its predictions."""

from __future__ import annotations

from voxelocity.cli import cache, evaluate, export, init, launch, plan, predict, report, train, tune
from voxelocity_observe.cli.command import Command

COMMANDS = (
    Command(name="init", run=init.init, panel="Start here"),
    Command(name="plan", run=plan.plan, panel="Train and predict"),
    Command(name="train", run=train.train, panel="Train and predict"),
    Command(name="tune", run=tune.tune, panel="Train and predict"),
    Command(name="launch", run=launch.launch, panel="Train and predict", settings=launch.CONTEXT_SETTINGS),
    Command(name="predict", run=predict.predict, panel="Train and predict"),
    Command(name="export", run=export.export, panel="Train and predict"),
    Command(name="evaluate", run=evaluate.evaluate, panel="Results and caches"),
    Command(name="report", run=report.report, panel="Results and caches"),
    Command(name="cache", run=cache.app, panel="Results and caches"),
)
