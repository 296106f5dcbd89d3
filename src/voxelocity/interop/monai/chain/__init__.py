"""A user's chain of MONAI transforms, split, sped up and cached."""

from voxelocity.interop.monai.chain.chain import Chain
from voxelocity.interop.monai.chain.compiled import CompiledChain, compile
from voxelocity.interop.monai.chain.plan import ChainPlan, PlanRow
from voxelocity.interop.monai.chain.split import ChainError, as_compose, split

__all__ = ["Chain", "ChainError", "ChainPlan", "CompiledChain", "PlanRow", "as_compose", "compile", "split"]
