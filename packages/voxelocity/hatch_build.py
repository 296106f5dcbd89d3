"""Compiles the loops when a wheel or an editable install is built, and names the wheel after its platform."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LoopsHook(BuildHookInterface[Any]):
    """Runs `core/build_loops.py`, which this environment cannot import as part of its package."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library; without a C compiler the package is built without it, and says what that costs."""
        building = runpy.run_path(str(Path(self.root, "src", "voxelocity", "core", "build_loops.py")))
        try:
            library = building["build"]()
        except building["BuildError"] as error:
            self.app.display_warning(
                f"installed without its compiled loops, so augmentation on a CPU takes many times as long: {error}"
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{building['platform_tag']()}"
        if version != "editable":
            build_data["force_include"][str(library)] = "voxelocity/core/loops.so"
