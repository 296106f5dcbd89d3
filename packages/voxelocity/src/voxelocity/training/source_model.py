"""The model that a run starts from (`train --from MODEL`): a run, an nnU-Net folder or checkpoint, or a MONAI bundle.

Weights are loaded as data. Network, spacing, patch and intensities are offered to the plan (`planning.start_rule`);
`transfer` copies the weights, `exposure` knows which cases they may have seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.cases import Fold
from voxelocity.core.config import flatten, set_value
from voxelocity.core.region import Index3
from voxelocity.infer import ModelSpec, PredictionSpec, load_model, open_model
from voxelocity.infer.models.kinds import is_export, is_nnunet, nnunet_results
from voxelocity.infer.models.open import KINDS
from voxelocity.planning import Plan, Start, read_overrides
from voxelocity.planning.foreign_source import foreign_source
from voxelocity.step import NETWORKS, NetworkConfig, build_network
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.transfer import Correspondence, Ends, Transfer, find_roles, read_mapping, take_over
from voxelocity_observe.core.errors import InputError

SCRATCH = Path("scratch")
"""What stands for new weights among several models of `--from`."""
_RUN = "run"
# What a network of another toolkit does not read beside its architecture.
_ARCHITECTURE_KEYS = ("network.name", "network.architecture", "network.strides")


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model whose weights a run starts from, its axes in the order (x, y, z).

    Attributes:
        folder: of the model.
        kind: what wrote it: "run", "nnU-Net", "MONAI bundle".
        network: how it is built.
        weights: by name, on the CPU.
        spec: its channels and classes, and what it was trained on as far as that is known.
        patch: what it was trained on, in voxels.
        keys: of the plan that it offers besides the network, by dotted key.
        notes: what of its preparation is otherwise here, in words.
        outputs: as in `ForeignSource`.
        weights_sha256: of its weights.
        mapping: names of channels and classes here, with the names that it has for them.
    """

    folder: Path
    kind: str
    network: NetworkConfig
    weights: Mapping[str, torch.Tensor]
    spec: PredictionSpec
    patch: Index3
    keys: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights_sha256: str
    mapping: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        named: Path,
        *,
        overrides: Mapping[str, Any],
        out: Path | None = None,
        fold: Fold = 0,
        mapping: Sequence[str] = (),
    ) -> SourceModel:
        """The model that `named` is, which must not be that of the new run.

        Args:
            named: folder of a model, or a checkpoint in a folder of nnU-Net.
            overrides: of the command; it names the code of a network of the user's own.
            out: folder of the new run, if there is one.
            fold: of the new run; of several folds of nnU-Net, the same one is taken, or else the first.
            mapping: as `read_mapping` takes it.

        Raises:
            InputError: there is no model, it is damaged, or its network cannot be trained here.
            ConfigError: the mapping cannot be read.
        """
        if out is not None and named.resolve() == out.resolve():
            raise InputError(f"train: --from and -o both name {out}; give the fine-tuned run a separate folder")
        folder, renamed = _folder_of(named, fold), read_mapping(mapping)
        kind = next((kind for kind in KINDS if kind.holds(folder)), None)
        if kind is None or kind.name == _RUN:
            factory = str(read_overrides(overrides).get("network.factory", ""))
            network, spec = load_model(folder, factory=factory, option="--set network.factory=")
            return cls(
                folder=folder, kind=_RUN, network=spec.network, weights=network.state_dict(), spec=spec,
                patch=spec.window.shape_voxel, keys=_keys_of_run(spec), mapping=renamed,
                weights_sha256=spec.weights_sha256 or _sha256(network.state_dict()),
            )  # fmt: skip
        if is_export(folder):
            raise InputError(
                f"train: {folder} holds an exported network, which cannot be trained; start from the run that it was "
                "exported from"
            )
        model = open_model(folder)
        found = foreign_source(model)
        return cls(
            folder=folder, kind=kind.name, network=found.network, weights=found.weights, spec=model.spec,
            patch=found.patch, keys=found.keys, notes=found.notes, outputs=found.outputs, mapping=renamed,
            weights_sha256=_sha256(found.weights),
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The model in words."""
        return f"{self.folder}" if self.kind == _RUN else f"the {self.kind} model {self.folder}"

    @property
    def ends(self) -> Ends:
        found = ends_of(self.spec)
        return replace(found, outputs=self.outputs, has_background=False) if self.outputs else found

    def start(self, overrides: Mapping[str, Any], *, num_channels: int) -> Start:
        """What it offers to the plan; intensities only to cases with as many channels, and no key that the user sets.

        Args:
            overrides: of the command. A key of another network leaves the network to the user and the rules.
            num_channels: of the cases.

        Raises:
            ConfigError: keys of the network do not fit together.
        """
        chosen = read_overrides(overrides)
        known = flatten(Plan, {"network": self.network.to_plain()})
        differing = [key for key in chosen if key in known and chosen[key] != known[key]]
        keys = {
            key: value
            for key, value in self.keys.items()
            if num_channels == len(self.spec.channels) or not key.startswith("data.prepare.intensity.")
        }
        is_other = "network.name" in differing or (
            self.network.name == "foreign" and any(key in _ARCHITECTURE_KEYS for key in differing)
        )
        if is_other:
            return Start(name=str(self.folder), keys=keys, replaced=known)
        changed = NetworkConfig.parse(
            _nested(known | {key: chosen[key] for key in differing}), where=f"train: the network of {self.folder}"
        )
        return Start(
            name=str(self.folder), keys={**known, **keys}, patch=self.patch, divisor=changed.divisor,
        )  # fmt: skip

    def take_over(self, network: torch.nn.Module, config: NetworkConfig, spec: PredictionSpec) -> Transfer:
        """Copies into a new network every weight that it can continue with.

        Args:
            network: with initial weights, on the CPU.
            config: how it was built.
            spec: its channels and classes.

        Raises:
            InputError: there is none.
            ConfigError: the mapping names what is not there.
        """

        def build(num_channels: int, num_outputs: int) -> torch.nn.Module:
            return build_network(config, num_channels=num_channels, num_classes=num_outputs, seed=0)

        to = Correspondence.of(self.ends, ends_of(spec), self.mapping)
        try:
            roles = find_roles(build, num_channels=len(spec.channels), num_outputs=spec.num_outputs)
        # A network of the user's own may exist for these numbers alone, and its code may raise anything.
        except Exception:
            if NETWORKS[config.name].source != "user":
                raise
            roles = {}
        done = take_over(self.weights, network, roles, to)
        if done.num_taken == 0:
            raise InputError(
                f"train: no layer of {self.text} fits the network {config.name} of this run; leave out the keys of the "
                "network, or train without --from"
            )
        return done

    def to_plain(self) -> dict[str, Any]:
        """What `run.yaml` keeps, so that a resumed run starts from the same weights."""
        kept: dict[str, Any] = {"folder": str(self.folder.resolve()), "weights_sha256": self.weights_sha256}
        return kept | ({"mapping": dict(self.mapping)} if self.mapping else {})


def ends_of(spec: PredictionSpec) -> Ends:
    """What enters a network and what its logits mean, by name."""
    if not spec.region_order:
        return Ends(channels=spec.channels, outputs=spec.class_names, has_background=True)
    names = tuple(spec.regions) or tuple(spec.class_names[index] for index in spec.region_order)
    return Ends(
        channels=spec.channels,
        outputs=tuple(name.removeprefix("rest of ") for name in names),
        has_background=False,
    )


def source_of_fold(named: Path, fold: Fold) -> Path:
    """What a fold starts from: the same fold, if `named` holds the folds of a cross-validation."""
    own = named / f"fold_{fold}"
    return own if RunFolder(own).holds_run and not RunFolder(named).holds_run else named


def _folder_of(named: Path, fold: Fold) -> Path:
    """The folder of one model: of several folds of nnU-Net the same one as here, or else the first."""
    if named.is_file() and not any(kind.holds(named) for kind in KINDS):
        used = sorted(named.parent.glob("checkpoint_*.pth"), key=lambda path: "final" not in path.name)
        if not is_nnunet(named.parent) or named not in used:
            raise InputError(
                f"train: {named} is a file; --from takes the folder of a run, a MONAI bundle or nnU-Net's results, "
                "or a checkpoint in the latter"
            )
        if named != used[0]:
            raise InputError(
                f"train: {named.parent} also holds {used[0].name}, which is used before {named.name}; copy the folder "
                "without it to start from the other"
            )
        return named.parent
    if not is_nnunet(named) or nnunet_results(named) != named:
        return named
    folds = sorted(path for path in named.glob("fold_*") if path.is_dir())
    own = named / f"fold_{fold}"
    return own if own in folds else folds[0] if folds else named


def _keys_of_run(spec: ModelSpec) -> dict[str, Any]:
    prepare = spec.prepare.to_plain()
    return {
        "data.prepare.orientation": prepare["orientation"],
        "data.prepare.spacing_mm": prepare["spacing_mm"],
        **{f"data.prepare.intensity.{key}": value for key, value in prepare["intensity"].items()},
    }


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a network by their own names."""
    values: dict[str, Any] = {}
    for key, value in keys.items():
        set_value(values, key.removeprefix("network."), value)
    return values


def _sha256(weights: Mapping[str, torch.Tensor]) -> str:
    """Of names and values, however they were stored."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        # As bytes: NumPy has no bfloat16.
        found.update(weights[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
