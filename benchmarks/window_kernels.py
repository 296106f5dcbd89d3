"""The kernels of the window engine compiled ahead for sm_80 to sm_120, and what they take; needs no GPU.

    python benchmarks/window_kernels.py [--architecture 90] [--out FOLDER]

As `triton_kernels.py`, whose kernels are those of a training. Writes `results/window_kernels.json`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from harness import head, parser_of, write_record
from voxelocity.infer import device_arrays, triton_restore, triton_window

ARCHITECTURES = (80, 86, 89, 90, 120)
MODULES = (triton_window, triton_restore)
_BLACKWELL = 100
_NUM_WARPS = 4
_POINTERS = {
    **dict.fromkeys(("total", "weights", "sums", "values", "logs"), "*fp32"),
    **dict.fromkeys(("share_x", "share_y", "share_z"), "*fp32"),
    **dict.fromkeys(("below_x", "below_y", "below_z"), "*i32"),
    **dict.fromkeys(("classes", "order", "is_finite", "target"), "*u8"),
    "swapped": "*i64",
    "share": "fp32",
}
"""By argument name; what is not named is an int32."""


@dataclass(frozen=True)
class Variant:
    """A kernel, with the arguments it is launched with.

    Attributes:
        kernel: its name.
        constants: values of its compile-time arguments.
        ones: steps that are 1 at run time, which Triton therefore compiles in.
        logits: type of the network's output.
    """

    kernel: str
    constants: dict[str, Any] = field(default_factory=dict)
    ones: tuple[str, ...] = ()
    logits: str = "bf16"


def variants() -> list[Variant]:
    """All kernels as launched for 3, 14 and 104 classes, in both orders of memory."""
    adding = {"HAS_WEIGHTS": True, "ADDS": True, "SIDE": triton_window.SIDE}
    adds = []
    for num_classes in (3, 14, 104):
        classes, rows = device_arrays.program_shape(num_classes)
        constants = {**adding, "CLASSES": classes, "ROWS": rows, "HAS_SECOND": False, "HAS_SWAP": False}
        paired = constants | {"HAS_SECOND": True, "HAS_SWAP": True}
        adds += [
            Variant("add_window", constants, ("first_z",)),
            Variant("add_window", constants, ("first_c",)),
            Variant("add_window", paired, ("first_z",)),
            Variant("add_window", paired, ("first_z", "second_z")),
            Variant("add_window", paired, ("first_c", "second_c")),
            Variant("add_window", constants, ("first_z",), logits="fp32"),
            Variant("add_window", constants, ("first_c",), logits="fp16"),
            Variant("add_window", paired | {"HAS_WEIGHTS": False, "ADDS": False}, ("first_c", "second_c")),
        ]
    tile = {"UNROLLED": triton_window.UNROLLED, "ROWS": triton_window.ROWS, "SIDE": triton_window.SIDE}
    restoring = {"ROWS": triton_restore.ROWS, "SIDE": triton_restore.SIDE}
    return [
        *adds,
        *(Variant("largest_class", {"HAS_ORDER": has_order, **tile}) for has_order in (False, True)),
        Variant("find_not_finite", tile),
        *(
            Variant(kernel, {"HAS_WEIGHTS": weights, "HAS_ORDER": order, "IS_SOFTMAX": softmax, **restoring})
            for kernel in ("classify", "restore_classes")
            for weights, order, softmax in ((True, False, True), (True, False, False), (True, True, False))
        ),
    ]


def compiled(variant: Variant, architecture: int) -> dict[str, Any]:
    """Registers, spills, shared memory and bytes of each access of a kernel's machine code."""
    kernel = next(vars(module)[variant.kernel] for module in MODULES if variant.kernel in vars(module))
    constants = variant.constants | dict.fromkeys(variant.ones, 1)
    types = {**_POINTERS, **dict.fromkeys(("first", "second"), f"*{variant.logits}")}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    made = triton.compile(
        ASTSource(kernel, signature, constants, {}),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": _NUM_WARPS},
    )
    return {
        **asdict(variant),
        "architecture": f"sm_{architecture}",
        "shared_bytes": made.metadata.shared,
        "machine_code_bytes": len(made.asm["cubin"]),
        **_of_ptxas(made.asm["ptx"], architecture),
        "load_bytes": _access_bytes(made.asm["ptx"], "ld"),
        "store_bytes": _access_bytes(made.asm["ptx"], "st"),
    }


def _access_bytes(ptx: str, instruction: str) -> list[int]:
    """Bytes that a thread moves by one load or store of device memory: the different numbers, largest first."""
    found = re.findall(rf"\b{instruction}\.global(?:\.\w+)*?(?:\.v(\d))?\.\w(\d+) ", ptx)
    return sorted({int(count or 1) * int(bits) // 8 for count, bits in found}, reverse=True)


def _of_ptxas(ptx: str, architecture: int) -> dict[str, int]:
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    knobs = triton.knobs.nvidia
    tool = (knobs.ptxas_blackwell if architecture >= _BLACKWELL else knobs.ptxas).path
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [tool, "-v", f"--gpu-name={target[1]}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = {
        name: re.search(pattern, report)
        for name, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("spill_store_bytes", r"(\d+) bytes spill stores"),
            ("spill_load_bytes", r"(\d+) bytes spill loads"),
        )
    }
    return {name: int(match[1]) for name, match in found.items() if match is not None}


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--architecture", type=int, choices=ARCHITECTURES, help="only this one")
    options = parser.parse_args()
    architectures = ARCHITECTURES if options.architecture is None else (options.architecture,)
    rows = [compiled(variant, architecture) for architecture in architectures for variant in variants()]
    for row in rows:
        print(
            f"{row['architecture']} {row['kernel']:15} {row['logits']:4} registers {row['registers']:4} spilled "
            f"{row['spill_store_bytes']:3} bytes, loads {row['load_bytes']}  {row['constants']} {' '.join(row['ones'])}"
        )
    record = head("window_kernels", " ".join(sys.argv[1:]))
    print(write_record(record | {"triton": triton.__version__, "kernels": rows}, "window_kernels", out=options.out))


if __name__ == "__main__":
    main()
