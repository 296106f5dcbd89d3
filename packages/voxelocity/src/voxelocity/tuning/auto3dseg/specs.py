"""What is asked for: `gpu_customization_specs` as Auto3DSeg documents them, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from voxelocity.core.config import Config
from voxelocity_observe.core.errors import ConfigError, did_you_mean
from voxelocity_observe.core.plain import read_mapping, shortened

ALGORITHMS = ("segresnet", "segresnet2d", "dints", "swinunetr")
"""The templates that can be measured."""

UNIVERSAL = "universal"
# MONAI's documentation says swinunetr, its template reads swunetr.
_OTHER_NAMES = {"swunetr": "swinunetr"}


def _in_order(value: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= value[0] <= value[1]:
        raise ValueError("give [least, most] with 1 <= least <= most")
    return value


_Range = Annotated[tuple[int, int], AfterValidator(_in_order)]


class AlgorithmSpecs(Config):
    """What is searched for one algorithm."""

    num_trials: int = Field(default=20, ge=1)
    """Trials in all, with those that measure the winner again, as far as the winner holds; three at the least."""
    range_num_images_per_batch: _Range = (1, 20)
    """Patches on the device in a training step, whatever key of the template sets them: least and most."""
    range_num_sw_batch_size: _Range = (1, 40)
    """Windows that the network takes at once in a validation: least and most."""
    scale_learning_rate: bool = True
    """Whether the learning rate follows the patches in a training step."""
    validation_data_device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where a validation keeps the image and its prediction; "auto" tries both where there is a GPU."""


def read_specs(path: Path) -> dict[str, Any]:
    """The specs of a YAML or JSON file.

    Raises:
        ConfigError: the file cannot be read or holds something else.
    """
    return read_mapping(path, where="tune", holds="specs by algorithm, such as 'universal: {num_trials: 10}'")


def parse_specs(specs: Mapping[str, Any] | None) -> dict[str, AlgorithmSpecs]:
    """The specs of each algorithm; its own win over the universal ones.

    Raises:
        ConfigError: an algorithm or key is unknown (the nearest one is named), or a value is out of range.
    """
    values: dict[str, Mapping[str, Any]] = {}
    for given, section in (specs or {}).items():
        name = _OTHER_NAMES.get(given, given)
        check_name(str(name), (*ALGORITHMS, UNIVERSAL), what="the specs name an unknown algorithm")
        if not isinstance(section, Mapping):
            raise ConfigError(f"tune: the specs of {given} are {shortened(section)}; give keys, such as num_trials: 10")
        # Checked by itself, so that an error names the section in which it stands.
        AlgorithmSpecs.parse(section, where=f"tune: specs of {given}")
        values[name] = section
    universal = values.get(UNIVERSAL, {})
    return {name: AlgorithmSpecs.parse({**universal, **values.get(name, {})}, where="tune") for name in ALGORITHMS}


def check_name(name: str, known: Sequence[str], *, what: str) -> None:
    """Returns if the name is known.

    Raises:
        ConfigError: it is not; the nearest one is named.
    """
    if name not in known:
        hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
        raise ConfigError(f"tune: {what} '{name}'{hint}")
