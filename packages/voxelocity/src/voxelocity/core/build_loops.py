"""Compiles the C loops into one library next to this module: when a wheel or an editable install is built, or by hand.

    python -m voxelocity.core.build_loops

Imports the standard library alone and nothing of this package: the build's environment has nothing else, and the doctor
asks `why_not` without importing the package.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY = PACKAGE / "core" / "loops.so"
COMMAND = "python -m voxelocity.core.build_loops"
_COMPILERS = ("cc", "gcc", "clang")
# Each operation rounds by itself, NaN and infinity included. What is left out is what C promises beyond results: traps
# of the floating-point unit and `errno` of the C library. Vectors are passed to inlined functions only, so gcc need not
# explain how it would pass them to others.
_FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wno-psabi"),
)
_LEVELS = {
    "plain": (),
    "avx2": ("-mavx2", "-mfma"),
}
"""Each loop is compiled for these, and `native` calls the last one that the processor can run. On processors other than
x86-64 there is only "plain"."""


class BuildError(Exception):
    """The library cannot be built here; says why and what to do."""


def sources() -> list[Path]:
    """The C files and their headers, in a fixed order."""
    return sorted([*PACKAGE.glob("**/*.c"), *PACKAGE.glob("**/*.h")])


def stamp() -> str:
    """The same for the same sources and flags; the library has that of those it was built from."""
    digest = hashlib.sha256(repr((_FLAGS, _LEVELS)).encode())
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def why_not() -> str:
    """Why the library cannot be used here, then a semicolon and the cure; empty if it can."""
    if not LIBRARY.exists():
        return f"{LIBRARY} does not exist; build it with a C compiler: {COMMAND}"
    try:
        stamp_of = ctypes.CDLL(str(LIBRARY)).loops_stamp
    except (OSError, AttributeError) as error:  # of another processor or system, damaged, or no library of ours
        return f"{LIBRARY} cannot be used ({error}); build it for this machine: {COMMAND}"
    stamp_of.restype = ctypes.c_char_p
    if stamp_of().decode() != stamp():
        return f"{LIBRARY} was built from other sources; build it again: {COMMAND}"
    return ""


def build() -> Path:
    """The library, compiled for this machine's processor family, and replaced at once for processes that run.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if compiler is None:
        raise BuildError(
            f"no C compiler ({', '.join(_COMPILERS)}) was found; install one, as by apt install gcc, or name one in CC"
        )
    levels = _LEVELS if platform.machine() in ("x86_64", "AMD64") else {"plain": ()}
    try:
        # In the library's own folder: it is complete as soon as it has its name, even if others build it too.
        place = tempfile.TemporaryDirectory(dir=LIBRARY.parent, prefix=".loops_")
    except OSError as error:
        raise BuildError(f"{LIBRARY.parent} cannot be written ({error}); install into a folder that can be") from error
    with place as work:
        objects: list[str] = []
        for path in (path for path in sources() if path.suffix == ".c"):
            is_of_all = path.name == "level.c"
            for level, flags in {"all": ()}.items() if is_of_all else levels.items():
                objects.append(os.path.join(work, f"{len(objects)}_{path.stem}.o"))
                macros = (f"-DLEVEL={level}", f'-DSTAMP="{stamp()}"')
                _run([*shlex.split(compiler), *_FLAGS, *flags, *macros, "-c", str(path), "-o", objects[-1]])
        made = os.path.join(work, LIBRARY.name)
        _run([*shlex.split(compiler), "-shared", *objects, "-o", made, "-lm"])
        # A process that has the old file mapped keeps it.
        os.replace(made, LIBRARY)
    return LIBRARY


def platform_tag() -> str:
    """Of a wheel with the library: the oldest glibc that has all its symbols (PEP 600), or system and processor."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    versions = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", LIBRARY.read_bytes())]
    if name.startswith("linux_") and versions:
        major, minor = max((2, 17), *versions)
        return name.replace("linux_", f"manylinux_{major}_{minor}_", 1)
    # Python may be built for two processors; the library is built for one.
    return name.replace("universal2", platform.machine())


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")


def main() -> None:
    """Builds the library unless it is there already, and says where it is."""
    try:
        print(build() if why_not() else LIBRARY)
    except BuildError as error:
        sys.exit(f"voxelocity: the compiled loops cannot be built: {error}")


if __name__ == "__main__":
    main()
