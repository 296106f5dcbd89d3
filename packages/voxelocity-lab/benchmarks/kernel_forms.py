"""The forms in which each Triton kernel is launched; `triton_kernels.py` compiles them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voxelocity.data.augment import triton_crop, triton_intensity, triton_warp
from voxelocity.data.augment.triton_engine import GATHER_WARPS, MAX_PARTS, SUMMING_WARPS
from voxelocity.infer import device_arrays, triton_restore, triton_window
from voxelocity.monai.steps.intensity import triton_change
from voxelocity.monai.steps.spatial import triton_gather
from voxelocity.step import LossConfig, fused_loss, fused_norm

_SILENT = ("measure", "spread")
"""Kernels of the augmentation's changes that give out no image."""


@dataclass(frozen=True)
class Variant:
    """A kernel, with the arguments it is launched with.

    Attributes:
        kernel: its name.
        constants: values of its compile-time arguments.
        ones: arguments that are 1 at run time, and which Triton therefore compiles in.
        image: type of the voxels, features or logits that it works on: of what `triton_kernels.Family.typed` point to.
        out: type of the images that the augmentation gives out.
        num_warps: of a program.
        fuses: whether products may be rounded together with the sum that follows.
        max_registers: of a thread; ptxas chooses if None.
    """

    kernel: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    ones: tuple[str, ...] = ()
    image: str = "fp32"
    out: str = "fp32"
    num_warps: int = 4
    fuses: bool = True
    max_registers: int | None = None

    @property
    def form(self) -> str:
        """In one line, different for each form of a kernel."""
        out = [f"out={self.out}"] if self.out != "fp32" else []
        names = [f"{name}={value:d}" for name, value in {**self.constants, **dict.fromkeys(self.ones, 1)}.items()]
        return " ".join([self.image, *out, f"num_warps={self.num_warps}", *names])

    def given_out(self, out: str, inner: int) -> Variant:
        """Of a kernel of the augmentation, for images of this type and with this many channels next to each other."""
        if self.kernel in _SILENT:
            return self
        is_halved = self.kernel == "crop" and (out, inner) != ("fp32", 1)
        halved = {"BLOCK": triton_crop.CROP_BLOCK // 2} if is_halved else {}
        return replace(self.but(INNER=inner, **halved), out=out)

    def but(self, **constants: Any) -> Variant:
        """With other values of compile-time arguments."""
        return replace(self, constants={**self.constants, **constants})


def augmentation_variants() -> list[Variant]:
    """As launched for patches whose lines are a multiple of four voxels; some also for others.

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
    points = [Variant("change_points"), Variant("change_points", {}, one)]
    changes = [*crops, *gathers, *points, *blurs, *summing, *bent_again]
    in_other_types = [change for change in changes if change.image in ("fp32", "i16") and change.kernel not in _SILENT]
    return [
        *(change.given_out("fp32", 1) for change in changes),
        *(change.given_out(out, 1) for out in ("bf16", "fp16") for change in in_other_types),
        *(change.given_out(out, 4) for out in ("bf16", "fp32") for change in in_other_types if not change.ones),
        Variant("swap_classes", {"BLOCK": triton_warp.SWAP_BLOCK}),
        Variant("elastic_lines", {"BLOCK": triton_warp.ELASTIC_BLOCK}),
    ]


def chain_variants() -> list[Variant]:
    """The steps of MONAI's chains of transforms, as `voxelocity.monai` launches them for tensors on a device."""
    block = {"BLOCK": triton_gather.BLOCK}
    usual = {"FUSED": True, "ALIGN_CORNERS": False, "ONCE": True, "SHIFTED": False, **block}
    warps = [
        Variant(
            "warp", {"NEAREST": image == "u8", "BEYOND": beyond, "WIDE": is_wide, **usual}, image=image, fuses=False
        )
        for image in ("fp32", "i16", "u8")
        for beyond in range(3)
        for is_wide in (True, False)
    ]
    reflected, nearest = warps[4], warps[-2]
    return [
        *(
            Variant("move", {"HAS_GAIN": has_gain, "BLOCK": triton_gather.MOVE_BLOCK}, image=image)
            for has_gain, image in ((False, "fp32"), (False, "u8"), (True, "fp32"), (True, "i16"))
        ),
        *warps,
        reflected.but(ALIGN_CORNERS=True, FUSED=False),
        *(warp.but(SHIFTED=True, FUSED=False, ONCE=False) for warp in (reflected, nearest)),
        *(
            Variant("resize", block, image=image, fuses=False, max_registers=triton_gather.RESIZE_REGISTERS)
            for image in ("fp32", "i16", "u8")
        ),
        Variant("blur", {"BLOCK": triton_change.BLUR_BLOCK}),
        *(Variant("add_noise", {"RICIAN": is_rician}) for is_rician in (False, True)),
        Variant("touch"),
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
    found = []
    for num_classes, last, image, used, has_regions in cases:
        form = fused_loss.LossForm(
            num_classes=num_classes,
            is_channels_last=last,
            config=used,
            has_regions=has_regions,
            has_ignored=has_regions,
        )
        found += [loss_variant(kernel, form, image) for kernel in _LOSS_KERNELS]
    return found


_LOSS_KERNELS = ("loss_sums", "loss_of_sums", "add_sums", "loss_gradient")


def loss_variant(kernel: str, form: fused_loss.LossForm, image: str) -> Variant:
    """A kernel of the loss for patches of a size that any tiling divides."""
    constants = form.constants(kernel, num_voxels=0)
    return Variant(kernel, constants, image=image, num_warps=constants.pop("num_warps"))


def norm_variants() -> list[Variant]:
    """For 32 channels, for 64 to 320, for a hundred, and for 24."""
    found = []
    for num_channels, image in ((32, "bf16"), (320, "bf16"), (320, "fp32"), (100, "fp16"), (24, "bf16")):
        width, unit = fused_norm.width_and_unit(num_channels)
        sizes = {"UNIT": unit, "ROWS": fused_norm.LAUNCH.tile // width, "WIDTH": width}
        for kernel in ("norm_measure", "norm_apply", "norm_measure_back", "norm_apply_back"):
            constants = sizes if kernel == "norm_measure" else {"IS_AFFINE": True, **sizes}
            found.append(Variant(kernel, constants, image=image, num_warps=fused_norm.LAUNCH.num_warps))
    return found


def window_variants() -> list[Variant]:
    """The window engine, for a few and for many classes in both orders of memory."""
    usual = {"HAS_WEIGHTS": True, "ADDS": True, "HAS_SECOND": False, "HAS_SWAP": False, "SIDE": triton_window.SIDE}
    adds = []
    for num_classes in (3, triton_window.MOST_CLASSES):
        classes, rows = device_arrays.program_shape(num_classes)
        alone = Variant("add_window", {**usual, "CLASSES": classes, "ROWS": rows}, ("first_z",), image="bf16")
        pair = alone.but(HAS_SECOND=True, HAS_SWAP=True)
        adds += [
            alone,
            replace(alone, ones=("first_c",)),
            replace(alone, image="fp32"),
            replace(alone, ones=("first_c",), image="fp16"),
            pair,
            replace(pair, ones=("first_z", "second_z")),
            replace(pair, ones=("first_c", "second_c")),
            replace(pair.but(HAS_WEIGHTS=False, ADDS=False), ones=("first_c", "second_c")),
        ]
    tile = {"UNROLLED": triton_window.UNROLLED, "ROWS": triton_window.ROWS, "SIDE": triton_window.SIDE}
    on_own_grid = {"HAS_WEIGHTS": False, "IS_SOFTMAX": False}
    restored = [
        {"HAS_WEIGHTS": True, "HAS_ORDER": has_order, "IS_SOFTMAX": is_softmax}
        for has_order, is_softmax in ((False, True), (False, False), (True, False))
    ]
    steps = {"ROWS": triton_restore.ROWS, "SIDE": triton_restore.SIDE}
    return [
        *adds,
        Variant("find_not_finite", tile),
        *(Variant("classify", {**on_own_grid, "HAS_ORDER": has_order, **tile}) for has_order in (False, True)),
        *(Variant("classify", {**flags, **tile}) for flags in restored),
        *(Variant("restore_classes", {**flags, **steps}) for flags in restored),
    ]
