"""The commands that show complete examples, and Voxelocity next to its peers."""

from __future__ import annotations

from voxelocity_lab.cli import bench, demo, recipe
from voxelocity_observe.cli.command import Command

COMMANDS = (
    Command(name="demo", run=demo.demo, panel="Start here", starts="peers"),
    Command(name="recipe", run=recipe.recipe, panel="Start here"),
    Command(name="bench", run=bench.bench, panel="Find what is slow", starts="peers"),
)
