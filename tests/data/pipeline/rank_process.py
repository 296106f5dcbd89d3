"""One of several training processes: makes its share of some batches and keeps them. A script, run by test_ranks.py."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np

from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases


def run(job):
    refs = [
        VolumeRef(case_id=case_id, images=(Path(image),), label=Path(label)) for case_id, image, label in job["cases"]
    ]
    for name, values in job["configs"].items():
        config = DataConfig.parse(values)
        cases = PreparedCases(
            refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=lambda text: sys.exit(text)
        )
        kept = {}
        with Feed(cases, config, seed=3, rank=job["rank"], world_size=job["world_size"]) as feed:
            for batch in itertools.islice(feed, job["num_steps"]):
                for row, draw in enumerate(batch.draws):
                    key = f"{batch.step}/{draw.epoch}/{draw.case_id}/{draw.draw}"
                    kept[f"{key}/image"] = batch.image[row].numpy()
                    kept[f"{key}/label"] = batch.label[row].numpy()
        np.savez(f"{job['out']}_{name}.npz", **kept)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
