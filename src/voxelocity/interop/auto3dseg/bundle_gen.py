"""`BundleGen` whose GPU customization is ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai.apps.auto3dseg import BundleGen as MonaiBundleGen
from monai.utils.enums import AlgoKeys

from voxelocity.interop.auto3dseg.algorithms import algorithms_in
from voxelocity.interop.auto3dseg.customizing import customize


class BundleGen(MonaiBundleGen):  # type: ignore[misc]  # MONAI has no types
    """MONAI's class; `generate(gpu_customization=True)` measures and writes by `customize`."""

    def generate(
        self,
        output_folder: str = ".",
        num_fold: int = 5,
        gpu_customization: bool = False,
        gpu_customization_specs: Mapping[str, Any] | None = None,
        allow_skip: bool = True,
    ) -> None:
        """As MONAI's. All folds of an algorithm are customized by one search.

        Raises:
            VoxelocityError: as `customize`.
        """
        begin = len(self.history)
        super().generate(output_folder, num_fold, allow_skip=allow_skip)
        made = self.history[begin:]
        if not gpu_customization or not made:
            return
        customize(
            output_folder,
            sorted({entry[AlgoKeys.ALGO].name for entry in made}),
            gpu_customization_specs,
        )
        # MONAI writes the objects of its history again: they must know what was written.
        records = {each.id: each.algo.fill_records for each in algorithms_in(output_folder)}
        for entry in made:
            entry[AlgoKeys.ALGO].fill_records = records[entry[AlgoKeys.ID]]
