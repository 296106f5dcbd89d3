"""A MONAI bundle read as data: its network from a list of MONAI's own, its preprocessing from transforms known here.

`configs/metadata.json` names classes, `configs/inference.json` (or `.yaml`) describes what is done, `models/model.pt`
holds the weights. Expressions are never evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.models.bundle_config import BundleConfig, Component
from voxelocity.infer.models.bundle_prepare import BundlePreparation, check_keys, preparation_of
from voxelocity.infer.models.foreign_files import network_with, read_checkpoint, read_json
from voxelocity.infer.models.kinds import METADATA
from voxelocity.infer.runtimes.contract import in_one_line
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.plain import shortened

_WEIGHTS = Path("models") / "model.pt"
# Those that return logits in evaluation mode, and load nothing.
_NETWORKS = ("AttentionUnet", "BasicUNet", "DynUNet", "SegResNet", "SegResNetDS", "SwinUNETR", "UNETR", "UNet", "VNet")
_MAX_CHANNELS = 256
# Words in the names of arguments that say how many layers or blocks a network has.
_COUNTED = ("num_", "depth", "blocks", "layers", "units")
_MOST_COUNTED = 256
_WITHOUT_EFFECT = ("SaveImaged", "EnsureTyped", "ToTensord", "DeleteItemsd")


def open_bundle(folder: Path) -> Model:
    """The model in a MONAI bundle.

    Raises:
        InputError: a file is missing or damaged, or the bundle needs something that Voxelocity does not do as MONAI
            does it, or code.
    """
    config = BundleConfig(folder)
    preparation = preparation_of(config.components("preprocessing"))
    channels, labels = _names(folder / METADATA)
    spec_values = {
        "channels": channels,
        "window": _window(config.component("@inferer", "inferer")),
        "precision": {"compute": "float32"},
        **_meaning(config, preparation, labels),
    }
    try:
        spec = PredictionSpec.parse(spec_values, where=str(config.path))
    except ConfigError as error:
        raise InputError(f"infer: {error}; run the bundle with MONAI itself") from None
    network = _network(config.component("@network_def", "network_def"), folder / _WEIGHTS, spec)
    return Model(folder=folder, network=network, spec=spec, preparation=preparation)


def _names(path: Path) -> tuple[list[str], dict[int, str]]:
    """Names of the image channels, and of the output channels by index."""
    described = read_json(path)
    try:
        formats = described["network_data_format"]
        image, output = formats["inputs"]["image"], formats["outputs"]["pred"]
        found = []
        for part in (image, output):
            names, num_channels = part.get("channel_def") or {}, part["num_channels"]
            if not 1 <= num_channels <= _MAX_CHANNELS:
                raise TypeError(f"num_channels is {num_channels}")
            found.append({index: str(names.get(str(index), f"channel {index}")) for index in range(num_channels)})
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"infer: {path} does not describe network_data_format with inputs.image and outputs.pred and their "
            f"num_channels ({in_one_line(error)}); complete it as MONAI's bundle specification says"
        ) from None
    return list(found[0].values()), found[1]


def _window(inferer: Component) -> dict[str, Any]:
    if inferer.name != "SlidingWindowInferer":
        raise inferer.error("is not SlidingWindowInferer, the only inferer that is supported")
    defaults = {"roi_size": None, "sw_batch_size": 1, "overlap": 0.25, "mode": "constant", "sigma_scale": 0.125}
    taken = inferer.take(
        {**defaults, "padding_mode": "constant", "cval": 0.0},
        without_effect=("sw_device", "device", "progress", "cache_roi_weight_map", "cpu_thresh", "buffer_steps",
                        "buffer_dim"),
    )  # fmt: skip
    if taken["padding_mode"] != "constant" or taken["cval"] != 0.0:
        raise inferer.error(f"pads with {taken['padding_mode']} {taken['cval']}; only zeros are supported")
    if taken["mode"] not in ("constant", "gaussian"):
        raise inferer.error(f"has the mode {taken['mode']!r}; only 'constant' and 'gaussian' are supported")
    return {
        "shape_voxel": taken["roi_size"],
        "batch_size": taken["sw_batch_size"],
        "overlap": taken["overlap"],
        "sigma_scale": taken["sigma_scale"],
        "blend": "uniform" if taken["mode"] == "constant" else "gaussian",
    }


def _meaning(config: BundleConfig, preparation: BundlePreparation, names: Mapping[int, str]) -> dict[str, Any]:
    """The fields of the description that follow from the postprocessing."""
    steps = [component for component in config.components("postprocessing") if component.name not in _WITHOUT_EFFECT]
    order = [step.name for step in steps]
    if order not in (
        ["Activationsd", "Invertd", "AsDiscreted"], ["Invertd", "Activationsd", "AsDiscreted"],
        ["Invertd", "AsDiscreted"], ["Activationsd", "AsDiscreted"], ["AsDiscreted"],
    ):  # fmt: skip
        raise config.error(
            "postprocessing", f"is {', '.join(order)}; only Activationsd, Invertd and AsDiscreted are supported, the "
            "last one at the end"
        )  # fmt: skip
    by_name = {step.name: step for step in steps}
    if "Invertd" in by_name:
        _check_inverse(by_name["Invertd"], preparation)
    elif preparation.moves_voxels:
        raise config.error("postprocessing", "has no Invertd, so predictions would not be on the scan's own grid")
    softmax, sigmoid = False, False
    if "Activationsd" in by_name:
        taken = by_name["Activationsd"].take({"keys": "pred", "softmax": False, "sigmoid": False})
        check_keys(by_name["Activationsd"], taken["keys"], "pred")
        softmax, sigmoid = taken["softmax"], taken["sigmoid"]
    discrete = by_name["AsDiscreted"]
    taken = discrete.take({"keys": "pred", "argmax": False, "threshold": None})
    check_keys(discrete, taken["keys"], "pred")
    if taken["argmax"] is True and taken["threshold"] is None and not sigmoid:
        is_before = softmax and order[0] == "Activationsd"
        return {"labels": dict(names), "restored": "probabilities" if is_before else "logits"}
    is_half = sigmoid and not softmax and taken["threshold"] == 0.5 and not taken["argmax"]
    if not is_half or len(names) != 1:
        raise discrete.error(
            f"has argmax {taken['argmax']} and threshold {taken['threshold']} for {len(names)} channels; only softmax "
            "or nothing with argmax, and sigmoid of one channel with threshold 0.5, are supported"
        )
    if preparation.resamples and order[0] == "Activationsd":
        raise discrete.error("follows probabilities of one channel that Invertd interpolates, which is not supported")
    return {"labels": {0: "background", 1: names[0]}, "region_order": (1,), "restored": "logits"}


def _check_inverse(inverse: Component, preparation: BundlePreparation) -> None:
    taken = inverse.take(
        {"keys": "pred", "nearest_interp": True},
        without_effect=("transform", "orig_keys", "meta_keys", "orig_meta_keys", "meta_key_postfix", "to_tensor",
                        "device"),
    )  # fmt: skip
    check_keys(inverse, taken["keys"], "pred")
    if taken["nearest_interp"] not in (False, [False]) and preparation.resamples:
        raise inverse.error("has nearest_interp true, which is not supported together with Spacingd")


def _check_counts(described: Component, arguments: Mapping[str, Any], *, most: int) -> None:
    """Refuses numbers of layers and the like that no network with these weights has, before they are all made."""
    for key, value in arguments.items():
        counts = value if isinstance(value, list | tuple) else [value]
        is_counted = any(word in key for word in _COUNTED)
        if is_counted and any(isinstance(count, int | float) and count > most for count in counts):
            raise described.error(f"has {key} {shortened(value)}, more than its weights have parts")


def _network(described: Component, path: Path, spec: PredictionSpec) -> torch.nn.Module:
    if described.name not in _NETWORKS:
        raise described.error(f"is not among MONAI's networks that are known here: {', '.join(_NETWORKS)}")
    arguments = described.config.resolved(dict(described.arguments), described.where)
    if "_target_" in repr(arguments):
        raise described.error("has an object as an argument; only plain values are supported")
    outputs = arguments.get("out_channels", spec.num_outputs)
    if outputs != spec.num_outputs:
        raise described.error(f"has {outputs} out_channels, but {METADATA} describes {spec.num_outputs}")
    if not path.is_file():
        code = path.with_suffix(".ts")
        why = f"{code.name} is TorchScript, which is code" if code.is_file() else "it belongs to the bundle"
        raise InputError(f"infer: {path} is missing; {why}: add {path.name}, the weights of the network")
    weights = read_checkpoint(path)
    # A checkpoint of an engine holds the weights under this name.
    if isinstance(weights.get("model"), Mapping):
        weights = weights["model"]
    _check_counts(described, arguments, most=max(_MOST_COUNTED, len(weights)))
    import monai.networks.nets

    kind = getattr(monai.networks.nets, described.name)
    try:
        return network_with(
            partial(kind, **arguments),
            weights,
            path,
            hint="take both files from one version of the bundle",
            batch_bcxyz=(1, len(spec.channels), *spec.window.shape_voxel),
        )
    except InputError:
        raise
    # MONAI's classes check few of their arguments; what the others break may raise anything.
    except Exception as error:
        raise described.error(f"cannot be made from {shortened(arguments)} ({in_one_line(error)})") from None
