"""What a MONAI script imports instead of MONAI's own: the same names, signatures and results, faster.

The code is in `voxelocity.interop.monai`; this package only re-exports it.
"""

from __future__ import annotations

from voxelocity.interop.monai import *  # noqa: F403
from voxelocity.interop.monai import __all__ as __all__


def __getattr__(name: str) -> object:
    from voxelocity.interop.monai.absent import where_else

    # An AttributeError of ours would lose its words in `from voxelocity.monai import NAME`.
    if not name.startswith("_") and (instead := where_else(name)):
        raise ImportError(f"voxelocity.monai has no {name}: {instead}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
