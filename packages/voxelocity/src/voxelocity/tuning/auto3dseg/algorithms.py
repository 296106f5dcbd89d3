"""The algorithms of a work folder, as MONAI reads and writes them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.apps.auto3dseg import import_bundle_algo_history
from monai.auto3dseg import algo_to_json
from monai.bundle import ConfigParser
from monai.utils.enums import AlgoKeys

from voxelocity.tuning.auto3dseg.originals import Originals, write_error
from voxelocity.tuning.auto3dseg.specs import ALGORITHMS, check_name
from voxelocity.tuning.auto3dseg.templates import PARAMETERS, SEGMENTERS, read_parameters, read_yaml
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import parse_yaml

Algos = Mapping[str, Any] | Sequence[str] | str | None
"""As BundleGen takes them: names of algorithms, or a mapping with these keys; all for None."""

ALGORITHM_OBJECT = "algo_object.json"
_STATS = "datastats.yaml"


@dataclass(frozen=True, kw_only=True)
class WorkAlgorithm:
    """An algorithm in a work folder: MONAI's object and the name of its template."""

    id: str
    name: str
    folder: Path
    algo: Any

    @property
    def originals(self) -> Originals:
        return originals_of(self.folder)

    def write(self, keys: Mapping[str, Any]) -> None:
        """Writes the keys of its parameters through MONAI, and keeps what they replace.

        Raises:
            OutputError: a file cannot be written; all are as before then.
        """
        originals, file = self.originals, self.folder / "configs" / PARAMETERS
        originals.keep()
        try:
            parser = ConfigParser(globals=False)
            parser.read_config(str(file))
            for key, value in keys.items():
                parser[key] = value
            ConfigParser.export_config_file(
                parser.get(), str(file), fmt="yaml", default_flow_style=None, sort_keys=False
            )
            # MONAI fills the file with these again when it makes variants of the algorithm.
            self.algo.fill_records.setdefault(PARAMETERS, {}).update(keys)
            algo_to_json(self.algo, template_path=self.algo.template_path)
            originals.seal()
        except OSError as error:
            originals.put_back()
            raise write_error(self.folder, error) from None


def originals_of(folder: Path) -> Originals:
    """What customizing has replaced in the folder of an algorithm."""
    return Originals(folder, (Path("configs", PARAMETERS), Path(ALGORITHM_OBJECT)))


def customized_in(work: Path, algos: Algos) -> list[Path]:
    """The folders of the algorithms that are asked for and were customized. Imports nothing from them.

    Raises:
        ConfigError: a name is none of theirs.
    """
    there = {path.parent: _template_name(path) for path in sorted(work.glob(f"*/{ALGORITHM_OBJECT}"))}
    names = None if algos is None else [algos] if isinstance(algos, str) else [*map(str, algos)]
    for name in names or ():
        check_name(name, sorted({*there.values()} | {path.name for path in there}), what=f"{work} has no algorithm")
    return [
        path
        for path, template in there.items()
        if (names is None or template in names or path.name in names) and originals_of(path).exist
    ]


def _template_name(path: Path) -> str:
    """The template of an algorithm, by MONAI's names of their folders: segresnet_0."""
    return path.parent.name.rpartition("_")[0] or path.parent.name


def holds_algorithms(folder: Path) -> bool:
    """Whether this is a work folder of Auto3DSeg. Imports nothing from it."""
    return folder.is_dir() and any(folder.glob(f"*/{ALGORITHM_OBJECT}"))


def algorithms_in(work_dir: Path | str) -> list[WorkAlgorithm]:
    """The algorithms of a work folder, by MONAI. Imports their `algo.py`, as MONAI does.

    Raises:
        InputError: one cannot be loaded.
    """
    try:
        history = import_bundle_algo_history(str(work_dir), only_trained=False)
    except (ImportError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise InputError(
            f"tune: the algorithms in {work_dir} cannot be loaded ({cause}); install what their scripts import "
            "(MONAI's templates need fire), or generate the folder again with BundleGen"
        ) from error
    return [
        WorkAlgorithm(id=entry[AlgoKeys.ID], name=algo.name, folder=Path(algo.get_output_path()), algo=algo)
        for entry in history
        for algo in [entry[AlgoKeys.ALGO]]
    ]


def chosen_algorithms(work: Path, algos: Algos, *, say: Callable[[str], None]) -> list[WorkAlgorithm]:
    """The algorithms that are asked for, by the name of their template or their folder."""
    there = algorithms_in(work)
    if algos is None:
        for algorithm in there:
            if algorithm.name not in ALGORITHMS:
                say(f"{algorithm.id} stays unchanged: only {', '.join(ALGORITHMS)} can be measured")
        return [algorithm for algorithm in there if algorithm.name in ALGORITHMS]
    names = [algos] if isinstance(algos, str) else [*algos]
    known = sorted({algorithm.name for algorithm in there} | {algorithm.id for algorithm in there})
    for name in names:
        check_name(str(name), known, what=f"{work} has no algorithm")
    chosen = [algorithm for algorithm in there if algorithm.name in names or algorithm.id in names]
    for algorithm in chosen:
        check_name(algorithm.name, ALGORITHMS, what="this algorithm cannot be measured:")
    return chosen


def alike(chosen: Iterable[WorkAlgorithm]) -> list[list[WorkAlgorithm]]:
    """The algorithms by what a trial would measure: their folds belong together."""
    groups: dict[tuple[str, str], list[WorkAlgorithm]] = {}
    for algorithm in chosen:
        read_parameters(algorithm.folder, algorithm.name)
        groups.setdefault((algorithm.name, configuration_digest(algorithm.folder)), []).append(algorithm)
    return [*groups.values()]


def configuration_digest(folder: Path) -> str:
    """Of all configuration files of an algorithm, apart from where it lies and which fold it holds out.

    Raises:
        InputError: one cannot be read.
    """
    found: dict[str, Any] = {}
    for path in sorted((folder / "configs").glob("*.yaml")):
        values = read_yaml(path)
        if isinstance(values, dict):
            values = {key: value for key, value in values.items() if key not in ("bundle_root", "fold")}
        found[path.name] = values
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()


def largest_case(one: WorkAlgorithm, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Voxels of the largest case after the algorithm's own preparation, at least a patch.

    Raises:
        InputError: the statistics of the data are not where the algorithm says.
    """
    named = [Path(str(one.algo.data_stats_files)), one.folder.parent / _STATS, one.folder.parent.parent / _STATS]
    path = next((candidate for candidate in named if candidate.is_file()), None)
    if path is None:
        raise InputError(
            f"tune: the data statistics of {one.id} are neither at {named[0]} nor in its work folder; run MONAI's "
            f"DataAnalyzer again, or copy its {_STATS} there"
        )
    inner = parameters["training"] if one.name == "dints" else parameters
    try:
        stats = parse_yaml(path.read_text(encoding="utf-8"))["stats_summary"]["image_stats"]
        if one.name in SEGMENTERS and not inner.get("resample"):
            shape = [math.ceil(size) for size in stats["shape"]["max"]]
        else:
            spacing = inner["resample_resolution"]
            shape = [math.ceil(mm / abs(step)) for mm, step in zip(stats["sizemm"]["max"], spacing, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"tune: {path} lacks what {one.id} is measured with ({error!r}); run MONAI's DataAnalyzer again"
        ) from None
    return tuple(max(size, patch) for size, patch in zip(shape, inner["roi_size"], strict=True))
