"""Imports `monai.apps.auto3dseg` and restores the process state that the import changes."""

from __future__ import annotations

from voxelocity.interop.monai.quiet import import_quietly

import_quietly("monai.apps.auto3dseg")
