"""Versions that are known to conflict. A table: each entry is documented, and says where.

Requirements that packages declare themselves (numba's numpy, torch's triton) are not repeated here:
`installed.find_conflicts` reads them from their metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voxelocity.diagnosis.doctor.check import Level


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Packages that conflict in these versions.

    Attributes:
        versions: by package; "cudnn" is what torch loads, whichever package brought it. All must match.
        level: how bad it is.
        costs: what happens, in plain words.
        cure: what to do.
        source: where the packages' authors or users document it.
    """

    versions: Mapping[str, str]
    level: Level
    costs: str
    cure: str
    source: str


PAIRS = (
    Pair(
        versions={"torch": ">=2.9", "cudnn": "<9.15"},
        level="warning",
        costs="3-D convolutions in half precision bypass cuDNN: slower, with 2 to 17 times the memory of torch 2.8",
        cure="use a build of torch for CUDA 13, or override torch's pin: pip install 'nvidia-cudnn-cu12>=9.15'",
        source="https://github.com/pytorch/pytorch/issues/166643",
    ),
    Pair(
        versions={"nvidia-cudnn-cu13": "==9.20.0.48"},
        level="note",
        costs="if another cuDNN (9.23 or later) is installed for the whole machine, the two are mixed, and the "
        "first convolution ends with CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        cure="if that happens: pip install 'nvidia-cudnn-cu13>=9.23', or remove the other cuDNN from the loader's path",
        source="https://github.com/pytorch/pytorch/issues/188892",
    ),
    Pair(
        versions={"numba": "==0.61.0", "numpy": ">=2.2"},
        level="problem",
        costs="`import numba` fails: no compiled resampling, crops or augmentation",
        cure="pip install --upgrade numba",
        source="https://github.com/numba/numba/issues/10033",
    ),
    Pair(
        versions={"nibabel": "<5.2", "numpy": ">=2"},
        level="problem",
        costs="NIfTI headers cannot be read: nibabel uses names that numpy 2 does not have",
        cure="pip install 'nibabel>=5.3'",
        source="https://github.com/nipy/nibabel/pull/1250",
    ),
    Pair(
        versions={"pandas": "<2.2.2", "numpy": ">=2"},
        level="warning",
        costs="`import pandas` fails: numpy.dtype size changed, may indicate binary incompatibility",
        cure="pip install 'pandas>=2.2.2'",
        source="https://pandas.pydata.org/docs/whatsnew/v2.2.2.html",
    ),
    Pair(
        versions={"tensorboard": "<2.21", "setuptools": ">=82"},
        level="warning",
        costs="TensorBoard does not start: No module named 'pkg_resources', which setuptools 82 no longer has",
        cure="pip install 'tensorboard>=2.21'",
        source="https://github.com/tensorflow/tensorboard/issues/7107",
    ),
)
