"""A user's chain of MONAI transforms, split, sped up and cached."""

from voxelocity.monai.chain.chain import Chain, ChainError, ChainPlan, PlanRow, as_compose, split
from voxelocity.monai.chain.compiled import CompiledChain, compile

__all__ = ["Chain", "ChainError", "ChainPlan", "CompiledChain", "PlanRow", "as_compose", "compile", "split"]
