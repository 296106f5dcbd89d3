"""Every Triton kernel compiled ahead for sm_80 to sm_120, and the machine resources it takes; needs no GPU.

    python benchmarks/triton_kernels.py [--out FOLDER] [--architecture 90]

Registers and spills are what ptxas reports for the code that Triton would load. Writes `results/triton_kernels.json`,
with a row for each form of a kernel.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import KernelInterface

from harness import head, parser_of, write_record
from kernel_forms import (
    Variant,
    augmentation_variants,
    chain_variants,
    loss_variants,
    norm_variants,
    window_variants,
)
from voxelocity.data.augment import triton_crop, triton_intensity, triton_tone, triton_warp
from voxelocity.data.augment.triton_frame import SIZES
from voxelocity.infer import triton_restore, triton_window
from voxelocity.monai.steps import triton_probe
from voxelocity.monai.steps.intensity import triton_change
from voxelocity.monai.steps.spatial import triton_gather
from voxelocity.step import triton_loss, triton_norm

ARCHITECTURES = (80, 86, 89, 90, 120)
_BLACKWELL = 100
_SPILLS = ("spill_store_bytes", "spill_load_bytes")
_FIGURES = ("registers", "shared_bytes", "machine_code_bytes", *_SPILLS)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Kernels whose arguments of one name have one type.

    Attributes:
        modules: that define them.
        variants: the forms in which they are launched.
        types: of arguments by name.
        otherwise: the type of what is not named.
        typed: pointers to what has the type of `Variant.image`.
    """

    modules: tuple[ModuleType, ...]
    variants: Callable[[], list[Variant]]
    types: Mapping[str, str]
    otherwise: str = "*fp32"
    typed: tuple[str, ...] = ()


def _types(**names: str) -> dict[str, str]:
    """Types by argument, from the names of arguments by type: "p_" stands for a pointer."""
    return {name: kind.replace("p_", "*") for kind, arguments in names.items() for name in arguments.split()}


FAMILIES: Mapping[str, Family] = {
    "augmentation": Family(
        modules=(triton_crop, triton_warp, triton_intensity, triton_tone),
        variants=augmentation_variants,
        types=_types(
            p_i32="channels rows radii below above pieces",
            p_i64="places seeds",
            p_u8="label swapped out_label",
            p_fp64="sums",
            i32=" ".join((*SIZES, "num_channels", "num_voxels")),
        ),
        typed=("image",),
    ),
    "MONAI's chains": Family(
        modules=(triton_gather, triton_change, triton_probe),
        variants=chain_variants,
        types=_types(p_i64="ints tables", p_fp64="reals", p_i32="index pieces", i32=" ".join((*SIZES, "num_voxels"))),
    ),
    "loss": Family(
        modules=(triton_loss,),
        variants=loss_variants,
        types=_types(
            p_i32="regions", p_u8="label", i32="units step ignored group_step batch chunks", fp32="gamma smooth alpha"
        ),
        typed=("logits", "gradient"),
    ),
    "norm": Family(
        modules=(triton_norm,),
        variants=norm_variants,
        types=_types(i32="num_rows size num_units num_samples", fp32="eps slope"),
        typed=("x", "y", "dy", "dx"),
    ),
    "windows": Family(
        modules=(triton_window, triton_restore),
        variants=window_variants,
        types=_types(
            p_fp32="total weights sums values logs share_x share_y share_z",
            p_i32="below_x below_y below_z",
            p_u8="classes order is_finite target",
            p_i64="swapped",
            fp32="share",
        ),
        otherwise="i32",
        typed=("first", "second"),
    ),
}


def kernels_of(family: Family) -> dict[str, Any]:
    """The kernels of a family by name; functions that kernels call begin with an underscore."""
    return {
        name: value
        for module in family.modules
        for name, value in vars(module).items()
        if isinstance(value, KernelInterface) and not name.startswith("_")
    }


def variants() -> list[Variant]:
    """All forms of all kernels."""
    return [variant for family in FAMILIES.values() for variant in family.variants()]


def _signature(variant: Variant, family: Family, kernel: Any) -> dict[str, str]:
    typed = family.typed
    if variant.kernel in ("move", "warp", "resize"):
        is_copied = variant.kernel == "move" and not variant.constants["HAS_GAIN"]
        typed = ("source", "out") if is_copied else ("source",)
    given_out = {"out": f"*{variant.out}"} if "INNER" in variant.constants else {}
    types = {**family.types, **dict.fromkeys(typed, f"*{variant.image}"), **given_out}
    constants = {*variant.constants, *variant.ones}
    return {name: "constexpr" if name in constants else types.get(name, family.otherwise) for name in kernel.arg_names}


def compiled(variant: Variant, architecture: int) -> dict[str, Any]:
    """Registers, spills, shared memory and accesses of a kernel's machine code."""
    family = next(family for family in FAMILIES.values() if variant.kernel in kernels_of(family))
    kernel = kernels_of(family)[variant.kernel]
    ones = tuple(name for name in variant.ones if name in kernel.arg_names)
    variant = replace(variant, ones=ones)
    signature = _signature(variant, family, kernel)
    # As at run time, where memory begins at multiples of 16 bytes, and nearly all patches have 16 n voxels.
    attributes = {
        (number,): [["tt.divisibility", 16]]
        for number, parameter in enumerate(kernel.params)
        if (signature[parameter.name].startswith("*") and not parameter.do_not_specialize_on_alignment)
        or (parameter.name == "num_voxels" and signature["num_voxels"] != "constexpr")
    }
    made = triton.compile(
        ASTSource(kernel, signature, {**variant.constants, **dict.fromkeys(ones, 1)}, attributes),
        target=GPUTarget("cuda", architecture, 32),
        options={
            "num_warps": variant.num_warps,
            "enable_fp_fusion": variant.fuses,
            "maxnreg": variant.max_registers,
        },
    )
    return {
        "kernel": variant.kernel,
        "form": variant.form,
        "architecture": f"sm_{architecture}",
        "shared_bytes": made.metadata.shared,
        "machine_code_bytes": len(made.asm["cubin"]),
        **_of_ptxas(made.asm["ptx"]),
        "accesses": accesses(made.asm["ptx"]),
    }


def in_one_row(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A form as compiled for several architectures: one figure where all agree, otherwise one for each, in a line."""
    row = {name: measured[0][name] for name in ("kernel", "form", "accesses")}
    assert all(found["accesses"] == row["accesses"] for found in measured), "the loads of a form are the same in PTX"
    for name in _FIGURES:
        values = [found[name] for found in measured]
        row[name] = values[0] if len({*values}) == 1 else " ".join(map(str, values))
    return row


def accesses(ptx: str) -> dict[str, int]:
    """How many loads and stores of global memory take how many bytes a thread, as "load16": 2.

    Counted in the code, not while it runs. ptxas combines none of them.
    """
    counts: Counter[str] = Counter()
    for kind, vector, bits in re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfus](\d+)\b", ptx):
        counts[f"{'load' if kind == 'ld' else 'store'}{int(vector or 1) * int(bits) // 8}"] += 1
    return dict(sorted(counts.items()))


def bytes_of(row: Mapping[str, Any], kind: str) -> list[int]:
    """The bytes that a thread moves by the loads ("load") or stores ("store") of a compiled kernel, largest first."""
    sizes = (access.removeprefix(kind) for access in row["accesses"] if access.startswith(kind))
    return sorted(map(int, sizes), reverse=True)


def _of_ptxas(ptx: str) -> dict[str, int]:
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    # Triton brings two: the older one knows no Blackwell.
    is_blackwell = int(target[1].removeprefix("sm_").rstrip("af")) >= _BLACKWELL
    ptxas = triton.knobs.nvidia.ptxas_blackwell if is_blackwell else triton.knobs.nvidia.ptxas
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas.path, "-v", f"--gpu-name={target[1]}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    patterns = (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes spill loads")
    found = {}
    for name, pattern in zip(("registers", *_SPILLS), patterns, strict=True):
        match = re.search(pattern, report)
        assert match is not None, f"ptxas did not report {name}: {report}"
        found[name] = int(match[1])
    return found


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--architecture", type=int, choices=ARCHITECTURES, help="only this one")
    options = parser.parse_args()
    architectures = ARCHITECTURES if options.architecture is None else (options.architecture,)
    record = head("triton_kernels", " ".join(sys.argv[1:]))
    record |= {"triton": triton.__version__, "architectures": [f"sm_{number}" for number in architectures]}
    kernels = []
    for variant in variants():
        kernels.append(in_one_row([compiled(variant, number) for number in architectures]))
        print(*kernels[-1].values(), flush=True)
    print(write_record({**record, "kernels": kernels}, "triton_kernels", out=options.out))


if __name__ == "__main__":
    main()
