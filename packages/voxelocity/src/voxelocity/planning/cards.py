"""What is known of GPUs before a step has run on them: their rates, by data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voxelocity.planning.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A card by its maker's data sheet.

    Attributes:
        half_flops: of convolutions in half precision that add in float32, a second, dense.
        bytes_per_s: of its memory.
    """

    half_flops: float
    bytes_per_s: float


# By words in the device's name: TFLOP/s, GB/s, compute capability.
_CARDS: dict[str, tuple[float, float, tuple[int, int]]] = {
    "B200": (2250, 8000, (10, 0)),
    "GB200": (2250, 8000, (10, 0)),
    "H200": (989, 4800, (9, 0)),
    "GH200": (989, 4000, (9, 0)),
    "H100 PCIe": (756, 2000, (9, 0)),
    "H100": (989, 3350, (9, 0)),
    "A100": (312, 1555, (8, 0)),
    "A40": (150, 696, (8, 6)),
    "A10": (125, 600, (8, 6)),
    "RTX A6000": (155, 768, (8, 6)),
    "RTX A5000": (111, 768, (8, 6)),
    "L40S": (362, 864, (8, 9)),
    "L40": (181, 864, (8, 9)),
    "L4": (121, 300, (8, 9)),
    "RTX 6000 Ada": (182, 960, (8, 9)),
    "RTX 5090": (209, 1792, (12, 0)),
    "RTX 5080": (113, 960, (12, 0)),
    "RTX 5070": (62, 672, (12, 0)),
    "RTX 4090": (165, 1008, (8, 9)),
    "RTX 4080": (97, 717, (8, 9)),
    "RTX 4070": (58, 504, (8, 9)),
    "RTX 4060": (30, 272, (8, 9)),
    "RTX 3090": (71, 936, (8, 6)),
    "RTX 3080": (60, 760, (8, 6)),
    "RTX 3070": (41, 448, (8, 6)),
    "RTX 3060": (25, 360, (8, 6)),
    "RTX 2080": (45, 448, (7, 5)),
    "T4": (65, 320, (7, 5)),
    "V100": (125, 900, (7, 0)),
}
_UNKNOWN_RATES = Rates(half_flops=60e12, bytes_per_s=500e9)


def float32_share(machine: Machine) -> float:
    """Rate of convolutions in float32 over that in half precision: half with TF32, an eighth without."""
    card = _card(machine.device_name)
    capability = machine.capability or (card and card[2])
    return 0.125 if capability and capability < (8, 0) else 0.5


def card_rates(machine: Machine) -> Rates:
    """The rates of the machine's GPU, or of its slice of one; those of a middling card if its name is not in the table.

    A slice is a MIG instance, named such as "NVIDIA A100-SXM4-40GB MIG 1g.5gb": it has one of seven parts.
    """
    card, parts = _card(machine.device_name), re.search(r"\bMIG (\d)g\.", machine.device_name)
    share = int(parts[1]) / 7.0 if parts else 1.0
    return Rates(half_flops=share * card[0] * 1e12, bytes_per_s=share * card[1] * 1e9) if card else _UNKNOWN_RATES


def _card(name: str) -> tuple[float, float, tuple[int, int]] | None:
    """The longest entry whose words are in the name."""
    found = [words for words in _CARDS if re.search(rf"\b{words}\b", name)]
    return _CARDS[max(found, key=len)] if found else None
