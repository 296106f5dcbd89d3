"""Fine-tuning: a run that starts from the network of a finished one (`train --from RUN`).

The network and the grid that it was trained on are taken over, so that its weights fit; everything else is planned as
for any run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import flatten
from voxelocity.data.pipeline import declare_channels
from voxelocity.infer import ModelSpec, PredictionSpec, load_model
from voxelocity.planning import Plan, SharedKeys, read_overrides
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.resume import SavedRun, other_path
from voxelocity.training.run_folder import RunFolder
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.quantities import count_text, listed

# A run that started from a run that started from ...
_MOST_SOURCES = 20


@dataclass(frozen=True, kw_only=True)
class SourceRun:
    """The finished run that another one starts from.

    Attributes:
        folder: of the finished run.
        network: with its weights, on the CPU.
        spec: its description.
    """

    folder: Path
    network: torch.nn.Module
    spec: ModelSpec

    @classmethod
    def open(cls, folder: Path, *, overrides: Mapping[str, Any], out: Path) -> SourceRun:
        """The model in `folder`, which must not be that of the new run.

        Raises:
            InputError: there is no model in the folder, or it is damaged.
            ConfigError: an override asks for another network.
        """
        if folder.resolve() == out.resolve():
            raise InputError(f"train: --from and -o both name {out}; give the fine-tuned run a folder of its own")
        chosen = read_overrides(overrides)
        network, spec = load_model(
            folder, factory=str(chosen.get("network.factory", "")), option="--set network.factory="
        )
        known = _network_keys(spec)
        for key, value in chosen.items():
            if key in known and value != known[key]:
                raise ConfigError(
                    f"train: {key}={value} does not fit the weights of {folder}, whose network has {known[key]}; leave "
                    "it out, or train without --from"
                )
        return cls(folder=folder, network=network, spec=spec)

    def shared_keys(self, cases: Cases, also: SharedKeys | None) -> SharedKeys:
        """What the plan takes over: network, orientation, spacing and windows; intensities if the channels match.

        Args:
            cases: of the new run.
            also: what else it shares with another run, which wins.
        """
        prepare = self.spec.prepare.to_plain()
        values = _network_keys(self.spec) | {
            "data.prepare.orientation": prepare["orientation"],
            "data.prepare.spacing_mm": prepare["spacing_mm"],
            "data.patch.shape_voxel": list(self.spec.window.shape_voxel),
            "window.shape_voxel": list(self.spec.window.shape_voxel),
        }
        if declare_channels(cases).num_channels == len(self.spec.channels):
            values |= {f"data.prepare.intensity.{key}": value for key, value in prepare["intensity"].items()}
        values |= also.values if also else {}
        return SharedKeys(values=values, reason=f"as in {self.folder}, whose weights this run starts from")

    def to_plain(self) -> dict[str, str]:
        """What `run.yaml` keeps, so that a resumed run starts from the same weights."""
        return {"folder": str(self.folder.resolve()), "weights_sha256": self.spec.weights_sha256}

    def copy_into(
        self,
        network: torch.nn.Module,
        *,
        class_names: Sequence[str],
        channels: Sequence[str] = (),
        regions: Sequence[str] = (),
        say: Callable[[str], None],
    ) -> None:
        """Copies every weight that fits; the first and last layer keep new ones if the channels or classes are others.

        Args:
            network: the new one, of the same configuration.
            class_names: of the new one, the background first.
            channels: of the new one; empty if their names are not known.
            regions: of the new one, if it has overlapping classes.
            say: called with what was not copied, or may mean something else.
        """
        weights, new = self.network.state_dict(), network.state_dict()
        other = [name for name, tensor in new.items() if tensor.shape != weights[name].shape]
        with torch.no_grad():
            for name, tensor in new.items():
                if name not in other:
                    tensor.copy_(weights[name])
        if other:
            say(
                f"train: {len(other)} of {len(new)} tensors do not fit {self.folder}, which has "
                f"{count_text(len(self.spec.channels), 'channel')} and {len(self.spec.labels)} classes, and are "
                f"initialized again: {', '.join(other)}"
            )
        outputs = ("overlapping regions", *regions) if regions else ("classes", *class_names)
        for layer, before, now in (
            ("first", ("channels", *self.spec.channels), ("channels", *(channels or ["without names"]))),
            ("last", _outputs(self.spec, have_names=bool(regions)), outputs),
        ):
            # Weights of other shapes were not copied.
            if before != now and (len(before) == len(now) or (layer == "first" and not channels)):
                say(
                    f"train: the {before[0]} of {self.folder} are {', '.join(before[1:])}, those of this data set the "
                    f"{now[0]} {', '.join(now[1:])}; the weights of the {layer} layer are taken over in this order"
                )


def open_source_run(
    start_from: Path | None, saved: SavedRun | None, *, overrides: Mapping[str, Any], folder: RunFolder
) -> SourceRun | None:
    """The run that the command names, or the one that a resumed run was started from; None for new weights.

    Args:
        start_from: what the command names.
        saved: the run that is resumed.
        overrides: of the command.
        folder: of the run.

    Raises:
        InputError: a resumed run was started from another one, or that one has other weights now.
        ConfigError: as `SourceRun.open`.
    """
    named, out = start_from, folder.path
    if saved is None:
        return None if named is None else SourceRun.open(named, overrides=overrides, out=out)
    check_source_run(named, saved, out=out)
    before = saved.source.get("folder")
    has_state = Checkpoints(folder.checkpoints, keep=1).latest_step() > 0
    if before is None or (has_state and named is None):
        return None
    source = SourceRun.open(Path(before), overrides=overrides, out=out)
    if source.to_plain() != dict(saved.source):
        raise InputError(
            f"train: {before} has other weights than when {out} was started from it; restore them, or start again with "
            "--overwrite"
        )
    return source


def check_source_run(folder: Path | None, saved: SavedRun, *, out: Path) -> None:
    """Refuses to continue a run that was not started from `folder`; None stands for whatever it was started from.

    Raises:
        InputError: it was started from something else.
    """
    before = saved.source.get("folder")
    if folder is not None and str(folder.resolve()) != before:
        raise InputError(
            f"train: {out} holds a run that was started from {before or 'new weights'}, not from {folder}; leave out "
            "--from, choose another folder with -o, or replace the run with --overwrite"
        )


def _outputs(spec: PredictionSpec, *, have_names: bool) -> tuple[str, ...]:
    """What the last layer's channels are, after their kind: regions by name, or by the classes drawn for them."""
    if not spec.region_order:
        return ("classes", *spec.class_names)
    return (
        "overlapping regions",
        *(spec.regions if have_names else map(spec.class_names.__getitem__, spec.region_order)),
    )


def check_held_out(source: SourceRun, cases: Cases, fold: Fold) -> None:
    """Refuses to hold out cases that `source`, or one that it was started from itself, was trained on.

    Cases are known by id and size wherever the data set lies; in models that do not keep them, by their ids within one
    data set. Where only names are the same, the user is warned.

    Raises:
        InputError: weights have learned from cases that would judge them.
    """
    split = cases.split(fold)
    refs = split.validation if split.held_out else ()
    held_out = {ref.case_id for ref in refs}
    division = source.spec.division
    if division is not None:
        _check_seen(
            source.folder,
            [ref.case_id for ref in refs if division.side(ref) == "trained on"],
            sorted(held_out & division.training.keys()),
            num_held_out=len(held_out),
        )
        # What that run was started from is among them.
        return
    place: Path | None = source.folder
    for _ in range(_MOST_SOURCES):
        record = None if place is None else RunFolder(place).record
        if place is None or record is None or not held_out:
            return
        if not record.is_file():
            warnings.warn(
                f"train: {place} does not say which cases it was trained on (it has no {record.name}); if the cases "
                "held out now were among them, every score of this run is too high",
                stacklevel=2,
            )
            return
        saved = SavedRun.read(record)
        names = sorted(held_out & {*saved.case_ids.get("training", ())})
        _check_seen(place, [] if other_path(saved, cases) else names, names, num_held_out=len(held_out))
        before = saved.source.get("folder")
        place = Path(before) if isinstance(before, str) and before else None


def _check_seen(place: Path, seen: Sequence[str], names: Sequence[str], *, num_held_out: int) -> None:
    """Refuses cases that `place` has seen, and warns of as many other ones with the names of some."""
    if seen:
        record = RunFolder(place).record
        fold = SavedRun.read(record).fold if record.is_file() else "all"
        own = "" if fold == "all" else f"--fold {fold}, which it held out too, "
        raise InputError(
            f"train: {place} was trained on {len(seen)} of the {num_held_out} cases that would be held out "
            f"({listed(seen, 3)}), so the scores would be too high; give {own}--fold all, or start from "
            "a run of this fold"
        )
    if 2 * len(names) > num_held_out:
        warnings.warn(
            f"train: {place} was trained on cases with the names of {len(names)} of the {num_held_out} cases that are "
            f"held out now ({listed(names, 3)}), of other files; if they are the same, every score of this run is too "
            "high",
            stacklevel=3,
        )


def source_run_of_fold(start_from: Path | None, fold: int) -> Path | None:
    """What a fold starts from: the same fold, if `start_from` holds the folds of a cross-validation."""
    if start_from is None:
        return None
    own = start_from / f"fold_{fold}"
    return own if RunFolder(own).holds_run and not RunFolder(start_from).holds_run else start_from


def _network_keys(spec: ModelSpec) -> dict[str, Any]:
    return flatten(Plan, {"network": spec.network.to_plain()})
