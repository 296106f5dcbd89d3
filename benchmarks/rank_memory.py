"""Models larger than a device: how gradients of each way to distribute them differ, and predicted and measured memory.

    python benchmarks/rank_memory.py [--only fit decisions] [--out FOLDER]

Two ranks of one thread each, whose memory is that of this machine; limits stand for devices. Writes
`results/rank_memory.json`; measurements that were not asked for are kept.
"""

from __future__ import annotations

import json
from typing import Any

from harness import measure_each
from ranks import run_ranks

# Distributes three networks in each way, and prints what was predicted and measured, and how gradients differ.
_FIT = """
import json, sys
import torch
from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model, joined
from voxelocity.step import NetworkConfig, build_network
torch.set_num_threads(1)
TWOS = [[2, 2, 2]] * 3
NETWORKS = {
    "UNet": {"name": "unet", "widths": [16, 32, 64, 128], "num_res_units": 2},
    "DynUNet": {"name": "dynunet", "widths": [32, 64, 128, 256]},
    "SegResNet": {"name": "segresnet", "widths": [16, 32, 64, 128]},
}
numbers = torch.Generator().manual_seed(0)
image = torch.randn(4, 1, 48, 48, 48, generator=numbers)
label = torch.randint(2, (4, 48, 48, 48), generator=numbers)
loss, found = torch.nn.functional.cross_entropy, {}
with joined() as world:
    part = slice(2 * world.place.rank, 2 * world.place.rank + 2)
    for name, values in NETWORKS.items():
        make = lambda: build_network(
            NetworkConfig.parse({"strides": TWOS, **values}), num_channels=1, num_classes=2, seed=3
        )
        whole = make()
        loss(whole(image), label).backward()
        wanted = {key: value.grad for key, value in whole.named_parameters()}
        scale = max(float(value.abs().max()) for value in wanted.values())
        for mode in ("ddp", "fsdp", "checkpointing", "pipeline"):
            model, decision = auto_parallelize_model(
                make(), image, world=world, devices=[1 << 40] * 2, mode=mode, num_microbatches=4
            )
            if isinstance(model, PipelineParallelModule):
                model.make_gradients(image, label, loss)
                inner = {id(value): key for key, value in model.stage.state_dict(keep_vars=True).items()}
                gradients = {model.names[inner[id(value)]][0]: value.grad for value in model.parameters()}
            else:
                loss(model(image[part]), label[part]).backward()
                gradients = {
                    key.removeprefix("module.").removeprefix("network."): getattr(
                        value.grad, "full_tensor", lambda value=value: value.grad
                    )()
                    for key, value in model.named_parameters()
                }
            difference = max(float((gradients[key] - wanted[key]).abs().max()) for key in gradients) / scale
            found[f"{name}, {mode}"] = {
                "difference": max(world.gather(difference)),
                "predicted_bytes": decision.predicted_bytes,
                "measured_bytes": decision.measured_bytes,
            }
print(json.dumps(found))
"""

# Lets the model choose how it is distributed over two devices, and prints what was predicted and measured.
_DECIDE = """
import json, sys
import torch
from voxelocity.core.errors import VoxelocityError
from voxelocity.parallel import auto_parallelize_model, joined
from voxelocity.step import NetworkConfig, build_network
torch.set_num_threads(1)
values, batch, limits = json.loads(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
config = NetworkConfig.parse(values)
with joined() as world:
    torch.manual_seed(0)
    try:
        _, decision = auto_parallelize_model(
            build_network(config, num_channels=1, num_classes=2, seed=3), torch.randn(batch), world=world,
            devices=limits, num_microbatches=batch[0],
        )
        found = {key: getattr(decision, key) for key in ("mode", "predicted_bytes", "measured_bytes", "reason")}
    # Rank 0 says why; the others that it has failed.
    except VoxelocityError as error:
        found = {"refused": str(error)}
print(json.dumps(found))
"""
_GB = 10**9
_TWOS = [[2, 2, 2]]
# Words, network, batch and devices: a model that any device takes; one with many activations, which thin networks on
# large patches have for little work; one with many parameters, also on devices of half that memory, where only stages
# of unequal size fit.
_MODELS: tuple[tuple[str, dict[str, Any], tuple[int, ...], tuple[tuple[float, float], ...]], ...] = (
    (
        "small DynUNet, 4 patches of 64x64x64",
        {"name": "dynunet", "widths": [16, 32, 64], "strides": _TWOS * 2},
        (4, 1, 64, 64, 64),
        ((11.0, 8.0), (8.0, 8.0)),
    ),
    (
        "thin DynUNet, 8 patches of 128x128x128",
        {"name": "dynunet", "widths": [16, 16, 32], "strides": _TWOS * 2},
        (8, 1, 128, 128, 128),
        ((11.0, 8.0), (8.0, 8.0)),
    ),
    (
        "wide UNet, 2 patches of 16x16x16",
        {"name": "unet", "widths": [544, 1088, 2176, 4096], "strides": _TWOS * 3},
        (2, 1, 16, 16, 16),
        ((11.0, 8.0), (8.0, 8.0)),
    ),
    (
        "wide UNet, 2 patches of 16x16x16",
        {"name": "unet", "widths": [544, 1088, 2176, 4096], "strides": _TWOS * 3},
        (2, 1, 16, 16, 16),
        ((5.5, 4.0), (4.0, 4.0)),
    ),
)


def fit() -> dict[str, Any]:
    """Gradients and memory of three networks in each way in which they are distributed over two ranks."""
    found: dict[str, Any] = run_ranks(2, ["-c", _FIT])[0]
    return found


def decisions() -> list[dict[str, Any]]:
    """What was chosen for each model on each pair of devices."""
    rows = []
    for words, network, batch, pairs in _MODELS:
        for limits in pairs:
            arguments = ["-c", _DECIDE, json.dumps(network), json.dumps(batch), json.dumps([x * _GB for x in limits])]
            rows.append({"model": words, "limits_gb": limits, **run_ranks(2, arguments)[0]})
            print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    measure_each("rank_memory", __doc__, {"fit": fit, "decisions": decisions})
