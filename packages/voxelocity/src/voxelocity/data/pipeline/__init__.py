"""The pipeline: from the files of a case to an augmented batch on the device.

`prepared` goes from files to prepared volumes, `build` from these to batches, with `draws` (whose share), `supply`
(cases on the device) and `ahead` (kernels). `describe`, `infer_labels`, `masks` and `modality` describe undescribed
folders.
"""

from voxelocity.data.pipeline.ahead import compile_kernels
from voxelocity.data.pipeline.build import Feed
from voxelocity.data.pipeline.config import DataConfig, FeedConfig
from voxelocity.data.pipeline.describe import describe_folder, write_description
from voxelocity.data.pipeline.draws import RankDraws
from voxelocity.data.pipeline.infer_labels import declare_channels, declare_labels
from voxelocity.data.pipeline.masks import FolderHints
from voxelocity.data.pipeline.prepared import CachingFacts, MemoryBudget, PreparedCases, effect_on, read_spec

__all__ = [
    "CachingFacts",
    "DataConfig",
    "Feed",
    "FeedConfig",
    "FolderHints",
    "MemoryBudget",
    "PreparedCases",
    "RankDraws",
    "compile_kernels",
    "declare_channels",
    "declare_labels",
    "describe_folder",
    "effect_on",
    "read_spec",
    "write_description",
]
