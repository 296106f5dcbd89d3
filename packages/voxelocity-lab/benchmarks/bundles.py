"""MONAI's bundles: agreement with the labels of MONAI's own run of each, and seconds of both, files to files.

    python benchmarks/bundles.py [--peers FOLDER] [--only brats_mri_segmentation] [--rounds 3]

FOLDER (`$VOXELOCITY_PEERS`, or the checkout's neighbor `shared/peers`) has `bundles/NAME/configs` of MONAI's model zoo,
and the architecture of a DiNTS as Auto3DSeg ships it. Weights are random, the last bias such that each class wins
somewhere. MONAI's side is the `run` of the bundle's own configuration, on a CPU; the sides alternate, each in a process
of its own, and both write label files alone: ours without its page. Writes `benchmarks/results/bundles.json`, which
keeps the other bundles.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import shutil
import statistics
import tempfile
import types
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from harness import ROOT, alternate, head, parser_of, real_data, run_fresh, write_record
from voxelocity.infer.models.bundle_config import BundleConfig
from voxelocity.infer.models.foreign_files import read_checkpoint
from voxelocity_observe.core.clock import Stopwatch

_NAME = "bundles"
_ARCHITECTURE = Path("auto3dseg") / "algorithm_templates" / "dints" / "scripts" / "arch_code.pth"
_CODES = "search_code_18590.pt"
_GLIOMA = "glioma_tcga_4mod/TCGA-DU-7294/TCGA-DU-7294"
_IMPORTED = (
    "monai.bundle",
    "monai.engines",
    "monai.handlers",
    "voxelocity.infer.files",
    "voxelocity.infer.models.bundle",
)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The scan of a bundle, cut to a part around its center so that a network on a CPU takes minutes.

    Attributes:
        files: of the channels, in the folder of real scans.
        extent_mm: of the part along each axis.
        multiple: voxels of the part are a multiple of it.
    """

    files: tuple[str, ...] = ("small_ct_mr_samples/totalseg_ct/image.nii.gz",)
    extent_mm: tuple[float, float, float] = (140.0, 140.0, 140.0)
    multiple: int = 1


_USUAL = Scenario()
_SCENARIOS = {
    # T1c, T1, T2, FLAIR.
    "brats_mri_segmentation": Scenario(
        files=tuple(f"{_GLIOMA}_{name}.nii.gz" for name in ("t1c", "t1", "t2", "flair")),
        extent_mm=(110.0, 90.0, 90.0),
    ),
    "pancreas_ct_dints_segmentation": Scenario(extent_mm=(110.0, 90.0, 90.0)),
    "prostate_mri_anatomy": Scenario(
        files=("small_ct_mr_samples/totalseg_mr/image.nii.gz",), extent_mm=(60.0, 45.0, 45.0)
    ),
    # The whole part at once, through three halvings.
    "segmentation_template": Scenario(multiple=16),
    "spleen_ct_segmentation": Scenario(extent_mm=(200.0, 200.0, 200.0)),
    "wholeBody_ct_segmentation": Scenario(extent_mm=(180.0, 140.0, 140.0)),
}


def write_scan(scenario: Scenario, folder: Path) -> list[Path]:
    """The part of the scan, a file for each channel."""
    paths = []
    for number, name in enumerate(scenario.files):
        scan = nib.load(real_data() / name)
        lengths = [
            max(min(n, round(extent / zoom)) // scenario.multiple, 1) * scenario.multiple
            for n, extent, zoom in zip(scan.shape, scenario.extent_mm, scan.header.get_zooms()[:3], strict=True)
        ]
        starts = [(n - length) // 2 for n, length in zip(scan.shape, lengths, strict=True)]
        part = scan.slicer[tuple(slice(a, a + n) for a, n in zip(starts, lengths, strict=True))]
        path = folder / (f"scan_{number:04d}.nii.gz" if len(scenario.files) > 1 else "scan.nii.gz")
        nib.save(nib.Nifti1Image(np.asarray(part.dataobj).astype(np.float32), part.affine), path)
        paths.append(path)
    return paths


def parse(folder: Path, scans: list[Path], out: Path) -> Any:
    """The configuration as MONAI's command line would take it, and what it cannot take on this machine left out."""
    from monai.bundle import ConfigParser

    (path,) = (folder / "configs").glob("inference.*")
    config = ConfigParser.load_config_file(str(path))
    config |= {"bundle_root": str(folder), "output_dir": str(out), "device": "$torch.device('cpu')"}
    config |= {"dataset_dir": str(scans[0].parent)}
    images = list(map(str, scans))
    config["dataset"]["data"] = [{"image": images if len(images) > 1 else images[0]}]
    config["dataloader"]["num_workers"] = 0
    if "dints_space" in config:
        config["arch_ckpt"] = "$torch.load(@arch_ckpt_path, weights_only=False)"
        config["dints_space"]["device"] = "cpu"
    if config["network_def"]["_target_"] == "SwinUNETR":
        # MONAI has removed it, so that its current release does not run its own bundle.
        config["network_def"].pop("img_size", None)
    chain = config["preprocessing"]["transforms"]
    for transform in chain if isinstance(chain, list) else config["transforms"]:
        if importlib.util.find_spec("itk") is None and transform.get("reader") == "ITKReader":
            del transform["reader"]
    return ConfigParser(config)


def make_weights(folder: Path, scans: list[Path], architecture: Path) -> None:
    """Random weights; the last bias centers each channel on a window in the middle of the scan."""
    import torch

    (folder / "models").mkdir()
    found = read_checkpoint(architecture, with_arrays=True)
    # The zoo calls what Auto3DSeg calls code_a and code_c otherwise.
    codes = {f"arch_{key}" if key.startswith("code_") else key: value for key, value in found.items()}
    torch.save(codes, folder / "models" / _CODES)
    parser = parse(folder, scans, folder)
    torch.manual_seed(0)
    network = parser.get_parsed_content("network_def").eval()
    given = list(map(str, scans))
    image = parser.get_parsed_content("preprocessing")({"image": given if len(given) > 1 else given[0]})["image"]
    inferer = parser.get_parsed_content("inferer")
    sides = getattr(inferer, "roi_size", ())
    # One of slices, or of the whole volume.
    sides = sides if len(sides) == 3 else image.shape[1:]
    starts = [max(0, n - side) // 2 for n, side in zip(image.shape[1:], sides, strict=True)]
    window = image[:, *(slice(a, a + side) for a, side in zip(starts, sides, strict=True))]
    with torch.no_grad():
        logits = inferer(window[None], network)
        bias = [weight for weight in network.parameters() if weight.shape == (logits.shape[1],)][-1]
        bias -= torch.from_numpy(np.asarray(logits.mean((0, 2, 3, 4))))
    torch.save(network.state_dict(), BundleConfig(folder).weights_path())


def run_monai(folder: Path, scans: list[Path], out: Path) -> float:
    """The bundle's own initialization and run; seconds in its network."""
    parser, watch, spent_s = parse(folder, scans, out), Stopwatch(), list[float]()
    network = parser.get_parsed_content("network_def")
    network.register_forward_pre_hook(lambda *_: spent_s.append(-watch.elapsed_s))
    network.register_forward_hook(lambda *_: spent_s.append(watch.elapsed_s))
    if "initialize" in parser:
        parser.get_parsed_content("initialize")
    # As earlier bundles call it.
    parser.get_parsed_content("run" if "run" in parser else "evaluating")
    return sum(spent_s)


def run_ours(folder: Path, scans: list[Path], out: Path) -> float:
    """What the command does; seconds in the network."""
    from voxelocity.infer import predict_files

    given = scans if len(scans) == 1 else scans[0].parent
    written = predict_files(folder, given, out, device="cpu", runtime="eager", page=False)
    return sum(scan.stage_seconds["network"] for scan in written)


_SIDES = {"monai": run_monai, "voxelocity": run_ours}


def run_side(side: str, folder: Path, out: Path) -> None:
    """One side in this process; prints its seconds."""
    warnings.filterwarnings("ignore")
    scans = sorted((folder / "scan").iterdir())
    # Imports are not measured.
    for name in _IMPORTED:
        importlib.import_module(name)
    if importlib.util.find_spec("skimage") is None:
        _take_components_from_scipy()
    watch, before = Stopwatch(), resource.getrusage(resource.RUSAGE_SELF)
    network_s = _SIDES[side](folder, scans, out)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {"wall_s": watch.elapsed_s, "network_s": network_s, "cpu_s": cpu_s}
    print(json.dumps({**seconds, "peak_bytes": after.ru_maxrss * 1024}))


def _take_components_from_scipy() -> None:
    """MONAI takes connected components from scikit-image; the environment may lack it."""
    import monai.transforms.utils
    from scipy import ndimage

    def label(image: Any, **_: Any) -> Any:
        return ndimage.label(image, np.ones((3, 3, 3)))

    monai.transforms.utils.has_measure = True
    monai.transforms.utils.measure = types.SimpleNamespace(label=label)


def compare(theirs: Path, ours: Path) -> dict[str, Any]:
    """Agreement where either has foreground, and the classes of both; MONAI's may be interpolated numbers."""
    values, labels = (np.asarray(nib.load(path).dataobj).squeeze() for path in (theirs, ours))
    rounded = np.ceil(values.astype(np.float64) - 0.5001).astype(np.int64)
    foreground = (rounded > 0) | (labels > 0)
    return {
        "num_voxels": int(labels.size),
        "foreground_voxels": int(foreground.sum()),
        "different_voxels": int((rounded != labels).sum()),
        "agreement": 1.0 - float((rounded != labels)[foreground].mean()) if foreground.any() else 0.0,
        "num_classes": {"monai": len(np.unique(rounded)) - 1, "voxelocity": len(np.unique(labels)) - 1},
        "is_interpolated": bool((values != np.rint(values)).any()),
    }


def measure(source: Path, architecture: Path, rounds: int) -> dict[str, Any]:
    """A bundle with both sides, or why ours refuses it."""
    from voxelocity.infer import open_model
    from voxelocity_observe.core.errors import InputError

    scenario = _SCENARIOS.get(source.name, _USUAL)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / source.name
        (folder / "scan").mkdir(parents=True)
        shutil.copytree(source / "configs", folder / "configs", copy_function=shutil.copyfile)
        try:
            open_model(folder)
        except InputError as error:
            # Its weights, or the file of an architecture, which are made here.
            if "is missing" not in str(error):
                return {"refused": str(error).replace(f"{temporary}/", "")}
        scans = write_scan(scenario, folder / "scan")
        make_weights(folder, scans, architecture)
        model = open_model(folder)
        found: dict[str, Any] = {"scenario": asdict(scenario), "network_classes": len(model.spec.labels) - 1}
        outs = {side: Path(temporary) / side for side in _SIDES}

        def run(side: str) -> dict[str, Any]:
            shutil.rmtree(outs[side], ignore_errors=True)
            return run_fresh(__file__, "--side", side, "--bundle", folder, "--out-of-side", outs[side])

        found["runs"] = alternate({side: partial(run, side) for side in _SIDES}, rounds)
        found |= compare(*(next(outs[side].rglob("*.nii.gz")) for side in _SIDES))
        for key in ("cpu_s", "network_s"):
            found[f"median_{key}"] = {
                side: statistics.median(run[key] for run in runs) for side, runs in found["runs"].items()
            }
    return found


def main() -> None:
    parser = parser_of(__doc__, out=True)
    peers = Path(os.environ.get("VOXELOCITY_PEERS", ROOT.parent / "shared" / "peers"))
    parser.add_argument("--peers", type=Path, default=peers)
    parser.add_argument("--only", nargs="+", help="names of bundles")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=_SIDES, help="run one side in this process")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--out-of-side", type=Path)
    options = parser.parse_args()
    if options.side:
        run_side(options.side, options.bundle, options.out_of_side)
        return
    record = head(_NAME, f"--rounds {options.rounds}")
    path = options.out / f"{_NAME}.json"
    found = json.loads(path.read_text())["bundles"] if path.exists() else {}
    for source in sorted(folder for folder in (options.peers / "bundles").iterdir() if folder.is_dir()):
        if options.only and source.name not in options.only:
            continue
        measured = measure(source, options.peers / _ARCHITECTURE, options.rounds)
        found[source.name] = {"commit": record["environment"]["commit"], **measured}
        print(source.name, json.dumps({key: value for key, value in measured.items() if key != "runs"}), flush=True)
        whole = {**record, "rounds": options.rounds, "bundles": dict(sorted(found.items()))}
        write_record(whole, _NAME, out=options.out)


if __name__ == "__main__":
    main()
