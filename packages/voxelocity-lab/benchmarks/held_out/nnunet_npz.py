"""A loop in the manner of nnU-Net: preprocessed cases are packed as .npz, and each patch unpacks a whole one."""

import os
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from batchgenerators.dataloading.data_loader import DataLoader
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
from batchgenerators.transforms.abstract_transforms import Compose
from batchgenerators.transforms.noise_transforms import GaussianNoiseTransform
from batchgenerators.transforms.spatial_transforms import MirrorTransform
from batchgenerators.transforms.utility_transforms import NumpyToTensor
from dynamic_network_architectures.architectures.unet import PlainConvUNet
from scipy import ndimage
from torch import nn


def preprocess(root: Path, out: Path) -> list[Path]:
    """Crops the scans to the brain, normalizes each contrast, and writes them with the segmentation to one file."""
    cases = []
    for path in sorted((root / "labelsTr").glob("*.nii.gz")):
        name = path.name.removesuffix(".nii.gz")
        data = [
            nib.load(root / "imagesTr" / f"{name}_{channel:04d}.nii.gz").get_fdata(dtype=np.float32)
            for channel in range(4)
        ]
        brain = ndimage.find_objects(np.any(data, axis=0).astype(np.int8))[0]
        seg = nib.load(path).get_fdata(dtype=np.float32)[brain]
        data = [(channel[brain] - channel[brain].mean()) / channel[brain].std() for channel in data]
        np.savez_compressed(out / f"{name}.npz", data=np.stack([*data, seg]))
        cases.append(out / name)
    return cases


class PatchLoader(DataLoader):
    """Patches from anywhere in a case."""

    def __init__(self, cases: list[Path], batch_size: int, patch_size: tuple[int, int, int]) -> None:
        super().__init__(cases, batch_size, 1, seed_for_shuffle=0, return_incomplete=False, infinite=True)
        self.patch_size = patch_size
        self.indices = list(range(len(cases)))

    def load_case(self, case: Path) -> np.ndarray:
        if os.environ.get("CURED") == "1":
            unpacked = case.with_suffix(".npy")
            return np.load(unpacked, mmap_mode="r")
        return np.load(case.with_suffix(".npz"))["data"]

    def generate_train_batch(self) -> dict[str, np.ndarray]:
        data = np.zeros((self.batch_size, 4, *self.patch_size), np.float32)
        seg = np.zeros((self.batch_size, 1, *self.patch_size), np.float32)
        for j, i in enumerate(np.random.choice(self.indices, self.batch_size)):  # noqa: NPY002
            case = self.load_case(self._data[i])
            start = [np.random.randint(0, n - p + 1) for n, p in zip(case.shape[1:], self.patch_size, strict=True)]  # noqa: NPY002
            patch = case[(slice(None), *(slice(s, s + p) for s, p in zip(start, self.patch_size, strict=True)))]
            data[j], seg[j, 0] = patch[:4], patch[4]
        return {"data": data, "seg": seg}


class DiceAndCELoss(nn.Module):
    """Soft Dice over the batch and cross entropy, summed."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        probabilities = output.softmax(1)
        one_hot = torch.zeros_like(output).scatter_(1, target, 1)
        axes = (0, 2, 3, 4)
        intersect, total = (probabilities * one_hot).sum(axes), (probabilities + one_hot).sum(axes)
        dice = (2 * intersect + 1e-5) / (total + 1e-5)
        return nn.functional.cross_entropy(output, target[:, 0]) - dice[1:].mean()


def main(folder: Path) -> None:
    torch.manual_seed(0)
    cases = preprocess(Path(os.environ["VOXELOCITY_DATA"]) / "ms_multimodal", folder)
    if os.environ.get("CURED") == "1":
        for case in cases:
            np.save(case.with_suffix(".npy"), np.load(case.with_suffix(".npz"))["data"])
    transforms = Compose([MirrorTransform((0,)), GaussianNoiseTransform(p_per_sample=0.1), NumpyToTensor()])
    loader = PatchLoader(cases, batch_size=2, patch_size=(40, 40, 40))
    augmenter = NonDetMultiThreadedAugmenter(loader, transforms, num_processes=2, num_cached=4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = PlainConvUNet(
        4, 4, (8, 16, 32, 64), nn.Conv3d, 3, (1, 2, 2, 2), 2, 8, 2, norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"affine": True}, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True}, conv_bias=True,
    ).to(device)  # fmt: skip
    epochs = int(os.environ.get("EPOCHS", "1000"))
    optimizer = torch.optim.SGD(network.parameters(), 1e-2, weight_decay=3e-5, momentum=0.99, nesterov=True)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, max(epochs, 1), power=0.9)
    loss_function = DiceAndCELoss()

    for epoch in range(epochs):
        started, losses = time.time(), []
        network.train()
        for _ in range(25):
            batch = next(augmenter)
            data, target = batch["data"].to(device), batch["seg"].long().to(device)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_function(network(data), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 12)
            optimizer.step()
            losses.append(loss.detach().cpu().numpy())
        scheduler.step()
        print(f"epoch {epoch + 1}: train_loss {np.mean(losses):.4f}, {time.time() - started:.3f} s", flush=True)
    augmenter._finish()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as preprocessed:
        main(Path(preprocessed))
