"""A plain loop that saves as it goes, and once more in its `finally`.

Ends by itself after STEPS steps, if that is set.
"""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    """Noise in place of scans."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(1, 16, 16, 16), index % 2


def main():
    if Path("pyproject.toml").exists():
        raise SystemExit("run this in a folder of its own: it leaves checkpoints there")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 14**3, 2)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    last, step = int(os.environ.get("STEPS", "0")), 0
    Path("checkpoints").mkdir(exist_ok=True)

    def save(path):
        state = {"net": net, "optimizer": optimizer, "schedule": schedule, "average": average}
        states = {name: part.state_dict() for name, part in state.items()}
        torch.save({**states, "random": torch.get_rng_state(), "step": step}, path)

    try:
        while step != last or not last:
            for x, y in DataLoader(Scans(), batch_size=2, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                schedule.step()
                average.update_parameters(net)
                step += 1
                if step % 50 == 0:
                    save(f"checkpoints/step={step}.pt")
                if step == last:
                    break
    finally:
        save("checkpoints/last.pt")


main()
