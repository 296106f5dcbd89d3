"""Imported first by `monai`, for its effect: MONAI without the changes of the process that its import makes."""

from __future__ import annotations

from voxelocity.core.quiet_import import import_quietly

import_quietly("monai")
