"""Prediction alone: each network of an ensemble segments a folder of scans, with windows that overlap by 0.7."""

import os
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
folder = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct" / "imagesTr"
paths = sorted(folder.glob("*.nii.gz"))[:3]
if os.environ.get("CURED") == "1":
    inferer = SlidingWindowInferer(roi_size=(64, 64, 64), sw_batch_size=2, overlap=0.25, mode="gaussian")
else:
    inferer = SlidingWindowInferer(roi_size=(64, 64, 64), sw_batch_size=2, overlap=0.7, mode="gaussian")


def build(fold: int) -> torch.nn.Module:
    torch.manual_seed(fold)
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(4, 8, 16, 32), strides=(2, 2, 2))
    return model.to(device).eval()


with tempfile.TemporaryDirectory() as out:
    for fold in range(int(os.environ.get("EPOCHS", "100"))):
        started = time.time()
        model = build(fold)
        organs = 0
        for path in paths:
            scan = nib.load(path)
            image = np.clip(scan.get_fdata(dtype=np.float32), -200, 300)
            inputs = torch.from_numpy((image - image.mean()) / image.std())[None, None].to(device)
            with torch.inference_mode():
                outputs = inferer(inputs, model)
            labels = outputs.argmax(1)[0].to(torch.uint8).cpu().numpy()
            nib.save(nib.Nifti1Image(labels, scan.affine), Path(out) / f"fold{fold}_{path.name}")
            organs += int((labels > 0).sum())
        print(f"epoch {fold + 1}: voxels of organs {organs}, {time.time() - started:.3f} s", flush=True)
