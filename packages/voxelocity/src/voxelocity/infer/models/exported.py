"""An exported network on disk: a file of another runtime, and `model.json` with everything else.

A file for ONNX Runtime or OpenVINO is data. One of AOTInductor or TensorRT is machine code, which runs only if the user
names it, as with a network of the user's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values
from voxelocity.infer.model import ForeignNetwork, Model
from voxelocity.infer.models.spec import SPEC_NAME, ExportedFiles, ModelSpec, read_spec, too_short_text
from voxelocity.infer.runtimes.contract import HostTask, RuntimeTask, in_one_line
from voxelocity.infer.runtimes.table import EXPORT_FORMATS, runtime_of
from voxelocity.step import precision_on
from voxelocity_observe.core.device import Device, Host
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.whole_file import check_is_file


def open_export(folder: Path, *, factory: str = "") -> Model:
    """The model of an export, its files compared with their checksums.

    Args:
        folder: which `voxelocity export` wrote.
        factory: the name of the file if it holds machine code that the user trusts.

    Raises:
        InputError: a file is missing or is not the one that was written, or holds machine code that was not named.
    """
    spec = read_spec(folder / SPEC_NAME)
    exported = spec.exported
    if exported is None:
        raise InputError(
            f"infer: {folder} holds the file of an export, but its {SPEC_NAME} describes none; copy the "
            "folder again, or export the run again"
        )
    form = EXPORT_FORMATS[exported.format]
    main = form.main_file
    if form.is_machine_code and factory != main:
        raise InputError(
            f"infer: {folder / main} holds machine code, which runs with your permissions; if you trust its source, "
            f"give --network {main}"
        )
    if not form.is_machine_code and factory:
        raise InputError(f"infer: {folder} is an export for {form.name}; leave --network {factory} out")
    present = [main, *(name for name in form.files[1:] if (folder / name).exists())]
    for name in dict.fromkeys([*exported.sha256, *present]):
        _check_file(folder / name, exported.sha256.get(name, ""))
    return Model(
        folder=folder,
        network=ExportedNetwork(folder / main, spec),
        spec=spec,
        preparation=spec.preparation(),
        doubts=(too_short_text(folder, spec.unlearned),) if spec.unlearned else (),
        unlearned=spec.unlearned,
    )


class ExportedNetwork(ForeignNetwork):
    """A network in its own runtime, opened for the device of its first windows.

    Attributes:
        runtime: its name in `infer.runtimes.table`.
    """

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        assert spec.exported is not None
        self._form = EXPORT_FORMATS[spec.exported.format]
        self.runtime = runtime_of(self._form.name).name
        self._exported, self._path, self._spec = spec.exported, path, spec
        self._forward: Callable[[Values], Values] | None = None

    def __call__(self, windows_bcxyz: Values) -> Values:
        if self._forward is None:
            self.open(arrays.device_of(windows_bcxyz))
        assert self._forward is not None
        return self._forward(windows_bcxyz)

    def open(self, device: Device) -> None:
        """Opens the file, which takes a fraction of a second to a few seconds.

        Raises:
            InputError: its runtime is not installed or does not run on the device, or refuses the file.
        """
        if why_not := self._why_not(device):
            raise InputError(f"infer: {self._path} cannot be used here: {why_not}")
        try:
            self._forward = self._load(device)
        # Each runtime has errors of its own, and a damaged file may cause any of them.
        except Exception as error:
            raise InputError(
                f"infer: {self._path} cannot be opened ({in_one_line(error)}); export the run again, with the "
                "versions that are installed here"
            ) from error

    def _why_not(self, device: Device) -> str:
        if self._exported.device not in ("any", device.type):
            return (
                f"it was compiled for {self._exported.device}, not {device.type}; choose --device "
                f"{self._exported.device}, or export the run with --device {device.type}"
            )
        return self._form.why_not(device)

    def _load(self, device: Device) -> Callable[[Values], Values]:
        window = self._spec.window
        task: dict[str, Any] = {
            "num_channels": len(self._spec.channels),
            "shape_voxel": window.shape_voxel,
            "batch_size": window.batch_size,
            "precision": precision_on(self._spec.precision, device),
        }
        if not isinstance(device, Host):
            return self._form.open(self._path, RuntimeTask(**task, device=device))
        assert self._form.open_on_host is not None, "`runs_without_torch` asks for it"
        return self._form.open_on_host(self._path, HostTask(**task))


def checksums(folder: Path, names: list[str]) -> dict[str, str]:
    """SHA-256 of each of these files, by name."""
    return {name: _sha256(folder / name) for name in names}


def describe_export(spec: ModelSpec, exported: ExportedFiles) -> ModelSpec:
    """The model of an export: as trained, with the file in place of the weights."""
    # Its runtime orders memory itself.
    changed: dict[str, Any] = {"channels_last": False}
    if compute := EXPORT_FORMATS[exported.format].compute:
        changed["compute"] = compute
    precision = spec.precision.model_copy(update=changed)
    return spec.model_copy(update={"exported": exported, "precision": precision})


def _check_file(path: Path, wanted: str) -> None:
    try:
        found = _sha256(check_is_file(path))
    except OSError as error:
        raise InputError(
            f"infer: {path} cannot be read ({error.strerror}); copy the folder again, or export the run again"
        ) from None
    if found != wanted:
        noted = f"not {wanted[:12]}..." if wanted else "and none is noted there"
        raise InputError(
            f"infer: {path} is not the file that was exported with the {SPEC_NAME} next to it (its SHA-256 is "
            f"{found[:12]}..., {noted}); copy the folder again, or export the run again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
