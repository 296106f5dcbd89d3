"""Predictions as a folder of masks, one file a class, as TotalSegmentator writes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from voxelocity.core.volume import ClassIndices
from voxelocity.data.decode import ScanHeader, write_scan
from voxelocity.data.decode.mask_folder import mask_stem
from voxelocity.infer.model import PredictionSpec
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.whole_file import hidden_place

# Each holds a mask of the scan.
_MOST_THREADS = 8


def mask_names(spec: PredictionSpec) -> dict[str, str]:
    """The names of the files of masks without ending, by class.

    Raises:
        InputError: two classes would have one file.
    """
    names: dict[str, str] = {}
    by_file: dict[str, str] = {}
    for name in spec.scored:
        names[name] = mask_stem(name)
        if (other := by_file.setdefault(names[name].casefold(), name)) != name:
            raise InputError(
                f"predict: --one-file-per-class would write the classes '{other}' and '{name}' into one file, "
                f"{names[name]}; leave it out, or rename one of them where the model keeps its labels"
            )
    return names


def write_masks(
    path: Path,
    prediction: ClassIndices,
    header: ScanHeader,
    spec: PredictionSpec,
    names: Mapping[str, str],
    *,
    also: Mapping[str, bytes],
) -> None:
    """Writes one file a class, 1 inside; those of overlapping classes overlap. A new folder appears whole.

    Args:
        path: of the folder.
        prediction: (x, y, z) class indices on the grid of the scan.
        header: of the scan.
        spec: of the model.
        names: of the files, by class.
        also: other files, by name.

    Raises:
        OutputError: a file cannot be written.
    """
    with _whole_folder(path, [*also, *names.values()]) as folder:
        for name, content in also.items():
            (folder / name).write_bytes(content)

        def write(scored: tuple[str, tuple[int, ...]]) -> None:
            name, indices = scored
            inside = np.isin(prediction, indices) if len(indices) > 1 else prediction == indices[0]
            write_scan(folder / names[name], inside.view(np.uint8), header.grid, placement=header.placement)

        # Packing takes most of the time, and holds no lock.
        with ThreadPoolExecutor(max_workers=min(_MOST_THREADS, cpu_budget())) as pool:
            list(pool.map(write, spec.scored.items()))


@contextmanager
def _whole_folder(path: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder of files with these names, which `path` has once the block ends, next to those that it had.

    The last of them comes last.

    Raises:
        OutputError: it cannot be made.
    """
    temporary = hidden_place(path)
    try:
        temporary.mkdir()
        yield temporary
        if path.is_symlink():
            raise OSError(0, "it is a link")
        if not path.exists():
            temporary.rename(path)
            return
        for name in names:
            (temporary / name).replace(path / name)
    except OSError as error:
        raise OutputError(
            f"predict: cannot write the masks in {path} ({error.strerror}); make space or choose another folder with -o"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
