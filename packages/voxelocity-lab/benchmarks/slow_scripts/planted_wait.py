"""A network that computes, and a data set that sleeps as the last step asks for, so that a planted share is waiting."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

share = float(os.environ.get("WAIT_SHARE", "0.3"))
step_s = 0.0


class Sleeping(Dataset):
    """Zeros, after a sleep of the planted share of a step."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(step_s * share / (1.0 - share))
        return torch.zeros(1, 32, 32, 32)


torch.manual_seed(0)
loader = DataLoader(Sleeping(), batch_size=1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Sequential(
    torch.nn.Conv3d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv3d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv3d(8, 1, 3)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)

for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
    waited_s, started = 0.0, time.perf_counter()
    asked = started
    for image in loader:
        given = time.perf_counter()
        waited_s += given - asked
        optimizer.zero_grad()
        loss = model(image.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()  # the clock below is right where a GPU computes, too
        asked = time.perf_counter()
        step_s = asked - given
    whole_s = time.perf_counter() - started
    print(f"epoch {epoch + 1}: waited {waited_s:.4f} of {whole_s:.4f} s", flush=True)
