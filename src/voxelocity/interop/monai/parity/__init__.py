"""Parity with MONAI: how two results differ, and the table of every lowered transform made of that.

`difference` compares any two results, and serves `check` too; `case`, `cases` and `table` are what docs/monai.md shows.
"""

from voxelocity.interop.monai.parity.difference import Difference, compare, differences_of

__all__ = ["Difference", "compare", "differences_of"]
