"""A MONAI bundle read as data: its network from a list of MONAI's own, its transforms from those known here.

`configs/metadata.json` names classes, `configs/inference.json` (or `.yaml`) describes what is done, `models/model.pt`
holds the weights. Of expressions, only harmless ones are computed (`bundle_expressions`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxelocity.core.contracts import DeterministicStage
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.models.bundle_config import BundleConfig, Component
from voxelocity.infer.models.bundle_grid import CheckWhole, PadToWindow
from voxelocity.infer.models.bundle_network import (
    PROMPTED,
    Shaping,
    build_network,
    is_faster_channels_last,
    why_not_whole,
)
from voxelocity.infer.models.bundle_outputs import meaning_of
from voxelocity.infer.models.bundle_prepare import preparation_of
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.kinds import METADATA
from voxelocity.infer.runtimes.contract import in_one_line
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.plain import shortened

_MAX_CHANNELS = 256
_SLIDING, _SLICES, _SIMPLE = "SlidingWindowInferer", "SliceInferer", "SimpleInferer"
# The bundle's own. It passes neither an overlap nor a mode on to MONAI's, and pads with the edge since this release.
_OF_VISTA, _VISTA_SINCE = "Vista3dInferer", (0, 5, 7)
_EVERYTHING, _LAST_ASKED = "everything_labels", 132
# Names of MONAI and of NumPy.
_PADDING = {"constant": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}
_WITHOUT_EFFECT = (
    "sw_device",
    "device",
    "progress",
    "cache_roi_weight_map",
    "cpu_thresh",
    "buffer_steps",
    "buffer_dim",
)


def open_bundle(folder: Path) -> Model:
    """The model in a MONAI bundle.

    Raises:
        InputError: a file is missing or damaged, or the bundle needs something that Voxelocity does not do as MONAI
            does it, or code.
    """
    config = BundleConfig(folder)
    described = config.component("@network_def", "network_def")
    asked = _asked(config, folder / METADATA) if described.name == PROMPTED else ()
    channels, names = read_names(folder / METADATA, outputs=(0, *asked) if asked else ())
    preparation = preparation_of(config.components("preprocessing"))
    meaning = meaning_of(config, preparation, names, is_prompted=bool(asked))
    inferer = config.component("@inferer", "inferer")
    window, slice_axis, padding = _window(inferer)
    kept = tuple(meaning.labels[sorted(meaning.labels)[index]] for index in meaning.kept_largest)
    spec_values = {
        "channels": channels,
        "labels": dict(meaning.labels),
        "region_order": meaning.region_order,
        "restored": meaning.restored,
        "keep_largest": kept if meaning.is_kept_on_scan else (),
        "window": window,
        "precision": {"compute": "float32"},
    }
    try:
        spec = PredictionSpec.parse(spec_values, where=str(config.path))
    except ConfigError as error:
        raise InputError(f"infer: {error}; run the bundle with MONAI itself") from None
    network = build_network(
        described,
        config.weights_path(),
        (len(channels), *spec.window.shape_voxel),
        num_channels=len(names),
        shaping=Shaping(
            slice_axis=slice_axis, channels=meaning.channels, has_background=meaning.has_background, asked=asked
        ),
    )
    later: list[DeterministicStage] = []
    if padding != ("constant", 0.0):
        later.append(PadToWindow(spec.window.shape_voxel, *padding))
    if inferer.name == _SIMPLE:
        later.append(CheckWhole(why_not_whole(described, network, len(channels))))
    back_classes = () if meaning.is_kept_on_scan else meaning.kept_largest
    return Model(
        folder=folder,
        network=network,
        spec=spec,
        preparation=preparation.bringing_back(meaning.back, back_classes, *later),
        doubts=meaning.doubts,
        # A network of planes has kernels of two axes.
        is_last_on_cpu=slice_axis is None and is_faster_channels_last(described, len(names)),
    )


def read_names(path: Path, *, outputs: Sequence[int] = ()) -> tuple[list[str], dict[int, str]]:
    """Names of the image channels, and of the network's output channels by index.

    Args:
        path: of the bundle's `metadata.json`.
        outputs: the indices, if they are not those of the output's channels.

    Raises:
        InputError: it does not describe a segmentation.
    """
    described = read_json(path)
    try:
        formats = described["network_data_format"]
        image, output = formats["inputs"]["image"], formats["outputs"]["pred"]
        found = []
        for part in (image, output):
            names, num_channels = part.get("channel_def") or part.get("label_def") or {}, part["num_channels"]
            if not 1 <= num_channels <= _MAX_CHANNELS:
                raise TypeError(f"num_channels is {num_channels}")
            indices = outputs if outputs and part is output else range(num_channels)
            found.append({index: str(names.get(str(index), f"channel {index}")) for index in indices})
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"infer: {path} does not describe network_data_format with inputs.image and outputs.pred and their "
            f"num_channels ({in_one_line(error)}); complete it as MONAI's bundle specification says"
        ) from None
    if output.get("format") == "classification" or str(output.get("type")).startswith("probabilit"):
        raise InputError(
            f"infer: {path} describes a network that classifies images of {shortened(image.get('spatial_shape'))} "
            "pixels, and no segmentation of volumes; run the bundle with MONAI itself (python -m monai.bundle run)"
        )
    channels, classes = found
    counts = Counter(classes.values())
    # Results are reported by name.
    named = {index: name if counts[name] == 1 else f"{name} {index}" for index, name in classes.items()}
    return list(channels.values()), named


def _asked(config: BundleConfig, metadata: Path) -> tuple[int, ...]:
    """The classes that VISTA3D finds by itself, by their numbers."""
    release = str(read_json(metadata).get("version"))
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){2}", release) or tuple(map(int, release.split("."))) < _VISTA_SINCE:
        since = ".".join(map(str, _VISTA_SINCE))
        raise InputError(f"infer: {metadata} is of release {shortened(release)}; VISTA3D is read from {since} on")
    found = config.resolved(f"@{_EVERYTHING}", _EVERYTHING)
    numbers = sorted(found) if isinstance(found, list) and all(type(value) is int for value in found) else []
    if not numbers or numbers[0] < 1 or numbers[-1] > _LAST_ASKED or len(set(numbers)) < len(numbers):
        raise config.error(_EVERYTHING, f"is {shortened(found)}, not different numbers of classes up to {_LAST_ASKED}")
    return tuple(numbers)


def _window(inferer: Component) -> tuple[dict[str, Any], int | None, tuple[Any, float]]:
    """The fields of the window, the axis across which a 2-D network sees planes, and `PadToWindow.mode` and `value`."""
    if inferer.name == _SIMPLE:
        inferer.take({})
        return {"shape_voxel": (0, 0, 0), "blend": "uniform", "reuse_constant": False}, None, ("constant", 0.0)
    if inferer.name == _OF_VISTA:
        taken = inferer.take(
            {"roi_size": None, "sw_batch_size": 1}, without_effect=("overlap", "use_point_window", "use_cfp")
        )
        shape, _ = _shape(inferer, taken)
        window = {
            "shape_voxel": shape, "batch_size": taken["sw_batch_size"], "overlap": 0.25, "blend": "uniform",
            "reuse_constant": 0 not in shape,
        }  # fmt: skip
        return window, None, ("edge", 0.0)
    if inferer.name not in (_SLIDING, _SLICES):
        raise inferer.error(f"is none of the inferers that are supported: {_SLIDING}, {_SLICES}, {_SIMPLE}")
    defaults: dict[str, Any] = {
        "roi_size": None, "sw_batch_size": 1, "overlap": 0.25, "mode": "constant", "sigma_scale": 0.125,
        "padding_mode": "constant", "cval": 0.0, **({"spatial_dim": 0} if inferer.name == _SLICES else {}),
    }  # fmt: skip
    taken = inferer.take(defaults, without_effect=_WITHOUT_EFFECT)
    if str(taken["padding_mode"]) not in _PADDING or not isinstance(taken["cval"], int | float):
        raise inferer.error(f"pads with {shortened(taken['padding_mode'])} {shortened(taken['cval'])}: not supported")
    if taken["mode"] not in ("constant", "gaussian"):
        raise inferer.error(f"has the mode {shortened(taken['mode'])}; only 'constant' and 'gaussian' are supported")
    shape, slice_axis = _shape(inferer, taken)
    window = {
        "shape_voxel": shape,
        "batch_size": taken["sw_batch_size"],
        "overlap": taken["overlap"],
        "sigma_scale": taken["sigma_scale"],
        "blend": "uniform" if taken["mode"] == "constant" else "gaussian",
        "reuse_constant": 0 not in shape,
    }
    mode = _PADDING[str(taken["padding_mode"])]
    return window, slice_axis, (mode, float(taken["cval"]) if mode == "constant" else 0.0)


def _shape(inferer: Component, taken: Mapping[str, Any]) -> tuple[list[Any], int | None]:
    """The edges of a window, 0 for the length of a volume, and the axis of one voxel for a 2-D network."""
    num_axes = 2 if inferer.name == _SLICES else 3
    given = taken["roi_size"]
    edges = [given] * num_axes if isinstance(given, int) else given
    if not isinstance(edges, list) or len(edges) != num_axes:
        raise inferer.error(f"has the roi_size {shortened(given)}, not {num_axes} numbers")
    # As in MONAI, none and negative ones stand for the whole.
    shape = [0 if edge is None or (isinstance(edge, int) and edge < 0) else edge for edge in edges]
    if inferer.name != _SLICES:
        return shape, None
    axis = taken["spatial_dim"]
    if isinstance(axis, bool) or axis not in (0, 1, 2):
        raise inferer.error(f"has the spatial_dim {shortened(axis)}; only 0, 1 and 2 are supported")
    return [*shape[:axis], 1, *shape[axis:]], axis
