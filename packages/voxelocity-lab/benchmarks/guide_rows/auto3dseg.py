"""Auto3DSeg's GPU optimization as its guide calls it, with MONAI's templates from a folder, in few trials.

python auto3dseg.py WORK    # needs $VOXELOCITY_PEERS/auto3dseg
"""

import json
import os
import sys
from pathlib import Path

import yaml
from monai.apps.auto3dseg import DataAnalyzer

from voxelocity.monai.auto3dseg import BundleGen, customize
from voxelocity_observe.core.errors import VoxelocityError


def main(work: Path) -> None:
    work.mkdir(parents=True)
    data = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
    templates = str(Path(os.environ["VOXELOCITY_PEERS"]) / "auto3dseg" / "algorithm_templates")
    listed = json.loads((data / "dataset.json").read_text())["training"][:10]
    (work / "datalist.json").write_text(
        json.dumps({"training": [{**item, "fold": number % 5} for number, item in enumerate(listed)], "testing": []})
    )
    source = {"modality": "MRI", "datalist": str(work / "datalist.json"), "dataroot": str(data)}
    config, stats = work / "input.yaml", str(work / "datastats.yaml")
    config.write_text(yaml.safe_dump(source))
    DataAnalyzer(source["datalist"], str(data), output_path=stats, device="cpu", worker=0).get_all_case_stats()

    specs = {
        "universal": {"num_trials": 2, "range_num_images_per_batch": [1, 2], "range_num_sw_batch_size": [1, 2]},
        "dints": {"validation_data_device": "cpu"},
    }
    generator = BundleGen(
        algo_path=str(work / "folds"),
        algos="dints",
        templates_path_or_url=templates,
        data_stats_filename=stats,
        data_src_cfg_name=str(config),
    )
    generator.generate(str(work / "folds"), num_fold=2, gpu_customization=True, gpu_customization_specs=specs)
    made = sorted(path.name for path in (work / "folds").glob("dints_*"))
    assert made == ["dints_0", "dints_1"], made
    for algos in ("segresnet", ["dints", "segresnet"]):
        folder = work / f"forms_{type(algos).__name__}"
        BundleGen(str(folder), algos, templates, stats, str(config)).generate(str(folder), num_fold=1)
        names = [algos] if isinstance(algos, str) else algos
        assert sorted(path.name for path in folder.glob("*_0")) == sorted(f"{name}_0" for name in names)
    for wrong in ({"segresnet": {"num_trails": 2}}, {"segresnet": {"range_num_images_per_batch": [8, 1]}}):
        try:
            customize(work / "forms_str", "segresnet", wrong)
        except VoxelocityError as error:
            print(error)
        else:
            raise AssertionError(f"{wrong} was accepted")
    try:
        BundleGen(str(work / "all"), None, templates, stats, str(config)).generate(str(work / "all"), num_fold=1)
    except VoxelocityError as error:
        print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
