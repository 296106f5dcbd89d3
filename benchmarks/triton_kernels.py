"""Every Triton kernel compiled ahead for sm_80 to sm_120, and the machine resources it takes; needs no GPU.

    python benchmarks/triton_kernels.py [--out FILE] [--architecture 90]

Registers and spills are what ptxas reports for the code that Triton would load. Writes `results/triton_kernels.json`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from harness import RESULTS, head, write_record
from voxelocity.data.augment import triton_crop, triton_intensity, triton_tone, triton_warp
from voxelocity.data.augment.steps.intensity import triton_change
from voxelocity.data.augment.steps.spatial import triton_gather
from voxelocity.data.augment.triton_engine import GATHER_WARPS, MAX_PARTS, SUMMING_WARPS
from voxelocity.data.augment.triton_frame import SIZES
from voxelocity.step import LossConfig, fused_loss, fused_norm, triton_loss, triton_norm

ARCHITECTURES = (80, 86, 89, 90, 120)
MODULES = (
    triton_crop,
    triton_warp,
    triton_intensity,
    triton_tone,
    triton_norm,
    triton_loss,
    triton_gather,
    triton_change,
)
_TYPES = {
    **dict.fromkeys(("channels", "rows", "radii", "below", "above", "pieces"), "*i32"),
    **dict.fromkeys(("places", "seeds"), "*i64"),
    **dict.fromkeys(("label", "swapped", "out_label"), "*u8"),
    "sums": "*fp64",
    **dict.fromkeys((*SIZES, "num_channels", "num_voxels"), "i32"),
    **dict.fromkeys(("units", "step", "ignored", "group_step", "batch", "chunks"), "i32"),
    **dict.fromkeys(("gamma", "smooth", "alpha"), "fp32"),
    **dict.fromkeys(("regions", "index"), "*i32"),
    **dict.fromkeys(("ints", "tables"), "*i64"),
    "reals": "*fp64",
    **dict.fromkeys(("num_rows", "size", "num_units", "num_samples"), "i32"),
    **dict.fromkeys(("eps", "slope"), "fp32"),
}
"""By argument name; what is not named is a pointer to float32."""


_SILENT = ("measure", "spread")
"""Of the augmentation's listed changes, those that give out no image."""


@dataclass(frozen=True)
class Variant:
    """A kernel, with the arguments it is launched with.

    Attributes:
        kernel: its name.
        constants: values of its compile-time arguments.
        ones: arguments that are 1 at run time, and which Triton therefore compiles in.
        image: type of what its argument `image` points to, and those of features and logits.
        out: type of the images that the augmentation gives out.
        num_warps: of a program.
        fuses: whether products may be rounded together with the sum that follows.
    """

    kernel: str
    constants: dict[str, Any] = field(default_factory=dict)
    ones: tuple[str, ...] = ()
    image: str = "fp32"
    out: str = "fp32"
    num_warps: int = 4
    fuses: bool = True

    def given_out(self, out: str, inner: int) -> Variant:
        """Of a kernel of the augmentation, for images of this type and with so many channels next to each other."""
        constants = self.constants | ({} if self.kernel in _SILENT else {"INNER": inner})
        if self.kernel == "crop" and (out, inner) != ("fp32", 1):
            constants |= {"BLOCK": triton_crop.CROP_BLOCK // 2}
        return replace(self, out=out, constants=constants)

    def dividing(self, num_channels: int) -> Variant:
        """Of a kernel of the norm, for features of so many channels."""
        width, unit = fused_norm.width_and_unit(num_channels)
        sizes = {"UNIT": unit, "ROWS": fused_norm.LAUNCH.tile // width, "WIDTH": width}
        return replace(self, constants=self.constants | sizes)


def variants() -> list[Variant]:
    """All kernels as launched for patches whose lines are a multiple of four voxels; some also for others.

    Sizes do not matter: see `triton_frame.SIZES`.
    """
    tile = dict(zip(("TILE_X", "TILE_Y", "TILE_Z"), triton_warp.TILE, strict=True))
    block = {"BLOCK": triton_intensity.BLOCK}
    parts = block | {"PARTS": MAX_PARTS}
    copied = {"PLANES": triton_crop.CROP_PLANES, "BLOCK": triton_crop.CROP_BLOCK}
    one, many = ("num_channels",), ()
    crops = [
        Variant("crop", {"ALIGN": align, **copied}, ones, image=image, num_warps=triton_crop.CROP_WARPS)
        for ones, image, align in (
            *((one, image, 4) for image in ("i16", "u8", "fp16", "fp32")),
            *((many, image, 4) for image in ("i16", "fp32")),
            (one, "i16", 1),
        )
    ]
    gathers = [
        Variant(
            "gather",
            {"VOTES": votes, "ELASTIC": elastic, "ALIGN": align, **tile},
            ones,
            image=image,
            num_warps=GATHER_WARPS,
        )
        for ones, image, elastic, align in (
            *((one, image, False, 4) for image in ("i16", "u8", "fp16", "fp32")),
            *((many, image, True, 4) for image in ("i16", "fp32")),
            (one, "i16", True, 1),
        )
        for votes in (False, True)
    ]
    blurs = [Variant("blur_along", {"AXIS": axis, "ALIGN": align, **block}) for axis in range(3) for align in (4, 1)]
    bent_again = [
        Variant("bend_again", {"KEEPS_MOMENTS": keeps, **parts}, num_warps=SUMMING_WARPS) for keeps in (False, True)
    ]
    summing = [
        *(Variant(name, parts, num_warps=SUMMING_WARPS) for name in ("measure", "spread", "bend", "restore")),
        *(Variant("coarsen", {"ALIGN": align, **parts}, num_warps=SUMMING_WARPS) for align in (4, 1)),
    ]
    changes = [
        *crops,
        *gathers,
        Variant("change_points"),
        Variant("change_points", {}, one),
        *blurs,
        *summing,
        *bent_again,
    ]
    return [
        *(variant.given_out("fp32", 1) for variant in changes),
        *given_out_otherwise(changes),
        Variant("swap_classes", {"BLOCK": triton_warp.SWAP_BLOCK}),
        Variant("elastic_lines", {"BLOCK": triton_warp.ELASTIC_BLOCK}),
        *step_variants(),
        *loss_variants(),
        *norm_variants(),
    ]


def given_out_otherwise(changes: list[Variant]) -> list[Variant]:
    """The kernels of the augmentation that give out images, in other dtypes and in channels_last_3d."""
    in_c_order = [variant for variant in changes if variant.image in ("fp32", "i16") and variant.kernel not in _SILENT]
    many = [variant for variant in in_c_order if not variant.ones]
    return [
        *(variant.given_out(out, 1) for out in ("bf16", "fp16") for variant in in_c_order),
        *(variant.given_out(out, 4) for out in ("bf16", "fp32") for variant in many),
    ]


def step_variants() -> list[Variant]:
    """The kernels of the steps of MONAI's chains, as `RandAffined`, `RandRotated` and `RandZoomd` launch them."""
    block = {"BLOCK": triton_gather.BLOCK}
    flags = {"ALIGN_CORNERS": False, "ONCE": True, "SHIFTED": False, **block}
    warps = [
        Variant(
            "warp",
            {"NEAREST": nearest, "BEYOND": beyond, "FUSED": True, "WIDE": wide, **flags},
            image=image,
            fuses=False,
        )
        for nearest, image in ((False, "fp32"), (False, "i16"), (True, "u8"))
        for beyond in range(3)
        for wide in (True, False)
    ]
    bent = {"NEAREST": False, "BEYOND": 2, "FUSED": False, "WIDE": True, **flags, "SHIFTED": True, "ONCE": False}
    moves = [
        Variant("move", {"HAS_GAIN": gain, "BLOCK": triton_gather.MOVE_BLOCK}, image=image)
        for gain, image in ((False, "fp32"), (False, "u8"), (True, "i16"))
    ]
    more = [Variant("blur", {"BLOCK": triton_change.BLUR_BLOCK})]
    more += [Variant("add_noise", {"RICIAN": is_rician}) for is_rician in (False, True)]
    return [
        *moves,
        *warps,
        Variant("warp", bent, fuses=False),
        *more,
        Variant("resize", block, fuses=False),
    ]


def loss_variants() -> list[Variant]:
    """The loss's kernels for 2 to 105 classes in both memory formats; some for regions and for other terms."""
    config, focal = LossConfig(), LossConfig(name="dice_focal")
    cases = [
        *((num_classes, last, "bf16", config, False) for num_classes in (2, 3, 14, 33, 105) for last in (False, True)),
        *((14, last, "fp32", config, False) for last in (False, True)),
        *((3, last, "fp16", focal, regions) for last in (False, True) for regions in (False, True)),
        *((105, last, "fp16", focal, False) for last in (False, True)),
    ]
    return [
        Variant(name, constants, image=image, num_warps=num_warps)
        for num_classes, last, image, used, has_regions in cases
        for name, constants, num_warps in fused_loss.forms(
            num_classes, is_channels_last=last, config=used, has_regions=has_regions, has_ignored=has_regions
        )
    ]


def norm_variants() -> list[Variant]:
    """The norm's kernels for 32 channels, for 64 to 320, for a hundred, and for 24."""
    return [
        Variant(
            kernel,
            {} if kernel == "norm_measure" else {"IS_AFFINE": True},
            image=image,
            num_warps=fused_norm.LAUNCH.num_warps,
        ).dividing(num_channels)
        for kernel in ("norm_measure", "norm_apply", "norm_measure_back", "norm_apply_back")
        for num_channels, image in ((32, "bf16"), (320, "bf16"), (320, "fp32"), (100, "fp16"), (24, "bf16"))
    ]


def compiled(variant: Variant, architecture: int) -> dict[str, Any]:
    """Registers, spills and shared memory of a kernel's machine code."""
    kernel = next(vars(module)[variant.kernel] for module in MODULES if variant.kernel in vars(module))
    features = ("image", "x", "y", "dy", "dx", "logits", "gradient")
    types = {**_TYPES, **dict.fromkeys(features, f"*{variant.image}"), "out": f"*{variant.out}"}
    if variant.kernel in vars(triton_gather):
        types["source"] = f"*{variant.image}"
        types["out"] = types["source"] if variant.kernel == "move" else "*fp32"
    ones = tuple(name for name in variant.ones if name in kernel.arg_names)
    constants = variant.constants | dict.fromkeys(ones, 1)
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    # As at run time, where memory begins at multiples of 16 bytes, and nearly all patches have 16 n voxels.
    attributes = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or (name == "num_voxels" and name not in constants)
    }
    made = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": variant.num_warps, "enable_fp_fusion": variant.fuses},
    )
    return {
        **asdict(variant),
        "architecture": f"sm_{architecture}",
        "shared_bytes": made.metadata.shared,
        "machine_code_bytes": len(made.asm["cubin"]),
        **_of_ptxas(made.asm["ptx"]),
        "accesses": accesses(made.asm["ptx"]),
    }


def accesses(ptx: str) -> dict[str, int]:
    """How many loads and stores of global memory take how many bytes a thread, as "load 16": 2.

    Counted in the code, not while it runs. ptxas combines none of them.
    """
    counts: Counter[str] = Counter()
    for kind, vector, bits in re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfus](\d+)\b", ptx):
        counts[f"{'load' if kind == 'ld' else 'store'} {int(vector or 1) * int(bits) // 8}"] += 1
    return dict(sorted(counts.items()))


def bytes_of(row: dict[str, Any], kind: str) -> list[int]:
    """The bytes that a thread moves by the loads ("load") or stores ("store") of a compiled kernel, largest first."""
    words = (access.split() for access in row["accesses"])
    return sorted((int(size) for found, size in words if found == kind), reverse=True)


def _of_ptxas(ptx: str) -> dict[str, int]:
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        # Triton brings two: the older one knows no Blackwell.
        is_blackwell = int(target[1].removeprefix("sm_").rstrip("af")) >= 100
        ptxas = triton.knobs.nvidia.ptxas_blackwell if is_blackwell else triton.knobs.nvidia.ptxas
        command = [ptxas.path, "-v", f"--gpu-name={target[1]}", file.name, "-o", "/dev/null"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = {
        name: re.search(pattern, told)
        for name, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("stack_bytes", r"(\d+) bytes stack frame"),
            ("spill_store_bytes", r"(\d+) bytes spill stores"),
            ("spill_load_bytes", r"(\d+) bytes spill loads"),
        )
    }
    return {name: int(match[1]) for name, match in found.items() if match is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the Triton kernels ahead and record what they take.")
    parser.add_argument("--out", type=Path, default=RESULTS / "triton_kernels.json")
    parser.add_argument("--architecture", type=int, choices=ARCHITECTURES, help="only this one")
    options = parser.parse_args()
    architectures = ARCHITECTURES if options.architecture is None else (options.architecture,)
    record = head("triton_kernels", " ".join(sys.argv[1:]))
    rows = [compiled(variant, architecture) for architecture in architectures for variant in variants()]
    for row in rows:
        print(
            f"{row['architecture']} {row['kernel']:14} {row['image']:5} registers {row['registers']:4} "
            f"spilled {row['spill_store_bytes']:3} bytes  loads of {bytes_of(row, 'load')} bytes  {row['constants']} "
            f"{' '.join(row['ones'])}"
        )
    write_record(record | {"triton": triton.__version__, "kernels": rows}, options.out.stem, out=options.out.parent)


if __name__ == "__main__":
    main()
