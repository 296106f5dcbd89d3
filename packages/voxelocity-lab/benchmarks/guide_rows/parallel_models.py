"""TractoDiff's calls for large models, as written there: in one process, or on the ranks of a launcher."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from monai.networks.nets import UNet

from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    image = torch.randn(8, 1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    wraps: tuple[Callable[[torch.nn.Module], torch.nn.Module], ...] = (
        lambda network: auto_parallelize_model(network, model_size_mb=5000),
        lambda network: PipelineParallelModule(network, num_microbatches=8),
    )
    for wrap in wraps:
        torch.manual_seed(0)
        network = UNet(3, 1, 2, channels=(4, 8), strides=(2,))
        expected = network(image)
        model = wrap(network)
        assert isinstance(model, torch.nn.Module), type(model)
        torch.testing.assert_close(model(image), expected, rtol=1e-4, atol=1e-5)
    if "RANK" in os.environ:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
