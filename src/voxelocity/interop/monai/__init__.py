"""MONAI's names with this package's engine behind them: public as `voxelocity.monai`."""

from __future__ import annotations

__all__: list[str] = []
