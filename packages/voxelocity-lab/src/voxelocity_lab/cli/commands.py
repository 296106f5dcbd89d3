"""The commands that show complete examples, and Voxelocity next to its peers."""

from __future__ import annotations

from voxelocity_lab.cli import bench, demo, recipe
from voxelocity_observe.cli.command import Command

COMMANDS = (
    Command(name="demo", run=demo.demo, panel="Train", starts="peers"),
    Command(name="recipe", run=recipe.recipe, panel="Train"),
    Command(name="bench", run=bench.bench, panel="Understand", starts="peers"),
)
