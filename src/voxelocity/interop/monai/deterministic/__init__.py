"""MONAI's deterministic transforms with the engine's loops behind them: the same results, faster."""

from voxelocity.interop.monai.deterministic.shadow import faster, why_not

__all__ = ["faster", "why_not"]
