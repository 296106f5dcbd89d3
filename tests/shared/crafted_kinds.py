"""The kinds of crafted inputs: models, records, configurations, studies, caches, indexes, data sets, slides."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import nibabel as nib
import numpy as np
import yaml

from shared.crafted import ODD_VALUES, Kind, SilentError, Trial, as_json, mutated_bytes, mutated_values
from shared.crafted_foreign import FOREIGN
from shared.crafted_models import MODELS, Planted
from shared.crafted_records import RECORDS
from shared.crafted_scans import SCANS
from voxelocity_observe.core.plain import yaml_text


def _yaml(folder: Path) -> Trial:
    from voxelocity.cli.options import read_overrides

    def trial(numbers: random.Random) -> None:
        levels, width = numbers.randint(1, 14), numbers.randint(1, 30)
        kinds = (
            "a{n}: &a{n} [{all}]", "a{n}: &a{n} {{<<: [{all}]}}", "a{n}: &a{n} {{x: [{all}], y: *a{m}}}",
            "a{n}: &a{n} !!python/object/apply:os.mkdir [ran]", "a{n}: &a{n} {{? [{all}] : 1}}",
        )  # fmt: skip
        lines = ["a0: &a0 {x: 1}"]
        for n in range(1, levels):
            kind = numbers.choice(kinds)
            lines.append(kind.format(n=n, m=n - 1, all=", ".join([f"*a{n - 1}"] * width)))
        (folder / "config.yaml").write_bytes(
            "\n".join(lines).encode() if numbers.random() < 0.7 else mutated_bytes(numbers, "\n".join(lines).encode())
        )
        read_overrides(folder / "config.yaml", None)

    return trial


def _runs(folder: Path) -> Trial:
    from voxelocity.data.source import open_cases
    from voxelocity.planning import make_plan
    from voxelocity.report import read_run
    from voxelocity.training.resume import SavedRun, saved_run_record

    _tiny_set(folder / "data", shape=(20, 20, 20))
    keys = {"planner.measure": "never", "train.steps": 3}
    planned = make_plan(open_cases(folder / "data"), device="cpu", overrides=keys, cache_folder=folder)
    text = yaml_text({"command": "voxelocity train", **saved_run_record(planned)}).encode()
    values = yaml.safe_load(text)
    (folder / "events.jsonl").write_text('{"event":"run_started","time_s":0.0,"environment":{}}\n')

    def trial(numbers: random.Random) -> None:
        changed = (
            mutated_bytes(numbers, text)
            if numbers.random() < 0.4
            else yaml.safe_dump(mutated_values(numbers, values)).encode()
        )
        (folder / "run.yaml").write_bytes(changed)
        try:
            SavedRun.read(folder / "run.yaml")
        finally:
            read_run(folder)

    return trial


def _studies(folder: Path) -> Trial:
    from voxelocity.tuning.space import Knob
    from voxelocity.tuning.store import STUDY_FILE, open_store
    from voxelocity.tuning.trial import TrialOutcome

    knobs = (Knob(name="shape", choices=([1, 1, 1], [2, 2, 2]), default=[1, 1, 1]),)
    with open_store(folder, knobs, about={}, seed=0) as store:
        for shape in ([1, 1, 1], [2, 2, 2]):
            begun, _ = store.begin("search", {"shape": shape})
            store.end(begun, TrialOutcome(kind="finished", seconds=1.0, measurements={"a": (2.0,)}), 2.0)
    path = folder / STUDY_FILE
    content = path.read_bytes()
    columns = (
        "trial_user_attributes value_json", "study_user_attributes value_json", "trial_params distribution_json",
        "trial_params param_value", "trial_values value", "trials state", "trials number",
        "version_info schema_version", "alembic_version version_num", "study_directions direction",
        "trial_values value_type",
    )  # fmt: skip

    def trial(numbers: random.Random) -> None:
        for ending in ("-journal", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        path.write_bytes(content)
        if numbers.random() < 0.4:
            path.write_bytes(mutated_bytes(numbers, content))
        else:
            where, column = numbers.choice(columns).split()
            odd = numbers.choice(ODD_VALUES)
            with contextlib.closing(sqlite3.connect(path)) as file, file, contextlib.suppress(sqlite3.Error):
                file.execute(f"update {where} set {column} = ?", (numbers.choice((json.dumps(odd), "x", -3)),))
        with open_store(folder, knobs, about={}, seed=0) as store:
            store.records()

    return trial


def _cache_entries(format: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        from voxelocity.data.cache import DiskTier, entry_key
        from voxelocity.data.cache.contents import CacheContents
        from voxelocity.testing.tier_contract import example_volume

        key = entry_key("a", "")
        DiskTier(folder / "cache", format=format).put(key, example_volume(0))  # type: ignore[arg-type]
        path = folder / "cache" / f"{key}.safetensors"
        content = path.read_bytes()
        # Of the header, every byte; of the voxels, some.
        size = int.from_bytes(content[:8], "little") + 8

        def trial(numbers: random.Random) -> None:
            changed = (
                mutated_bytes(numbers, content[:size]) + content[size:]
                if numbers.random() < 0.6
                else content[:size] + mutated_bytes(numbers, content[size:])
            )
            path.unlink(missing_ok=True)
            path.write_bytes(changed)
            found = list(CacheContents(folder / "cache").entries(full=True))
            if changed != content and any(entry.state == "whole" for entry in found):
                raise SilentError("a changed entry counts as whole")

        return trial

    return make


def _lmdb(folder: Path) -> Trial:
    from voxelocity.data.cache import LmdbTier, entry_key
    from voxelocity.data.cache.contents import CacheContents
    from voxelocity.data.cache.lmdb_file import LMDB_NAME
    from voxelocity.testing.tier_contract import example_volume

    LmdbTier(folder / "cache").put(entry_key("a", ""), example_volume(0))
    path = folder / "cache" / LMDB_NAME
    content = path.read_bytes()

    def trial(numbers: random.Random) -> None:
        path.write_bytes(mutated_bytes(numbers, content[:20_000]) + content[20_000:])
        list(CacheContents(folder / "cache").entries(full=True))

    return trial


def _indexes(folder: Path) -> Trial:
    from voxelocity.core.remote import local_name
    from voxelocity.data.source import open_cases
    from voxelocity_observe.core.host import default_cache_folder

    url = f"memory://set-{folder.name}"
    files = fsspec.filesystem("memory")
    place = default_cache_folder() / "remote" / local_name(url)
    (place / "imagesTr").mkdir(parents=True)
    values = {"url": url, "files": {"dataset.json": {"num_bytes": 10, "changed": "x", "md5": ""}}}
    described = {
        "name": "x", "labels": {"0": "background", "1": "a"}, "modality": {"0": "CT"}, "numTraining": 3,
    }  # fmt: skip

    listed = [{"image": f"imagesTr/c{n}.nii.gz", "label": f"labelsTr/c{n}.nii.gz"} for n in range(3)]
    files.pipe({f"{url}/dataset.json": json.dumps({**described, "training": listed}).encode()})
    for entry in listed:
        files.pipe({f"{url}/{name}": b"content" for name in entry.values()})

    def trial(numbers: random.Random) -> None:
        changed = as_json(numbers, values)
        if numbers.random() < 0.3:
            names = ("../../out", "/tmp/x", "a/../../b", "conf/x", "dataset.json/..", "\x00", "a" * 5000, ".")
            files = {numbers.choice(names): numbers.choice(({"num_bytes": 1}, {}, 3, {"num_bytes": -1}))}
            changed = json.dumps({"url": url, "files": files}).encode()
        (place / ".voxelocity-remote.json").write_bytes(changed)
        open_cases(place)

    return trial


def _tiny_set(folder: Path, *, shape: tuple[int, int, int]) -> tuple[dict[str, Any], str]:
    """Three cases; their `dataset.json`, which is written, and a table of them, which is not."""
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            voxels = np.random.default_rng(number).integers(0, 200, shape).astype(np.uint8)
            if name == "labelsTr":
                voxels = (voxels > 100).astype(np.uint8)
            nib.save(nib.Nifti1Image(voxels, np.eye(4)), folder / name / f"c{number}.nii.gz")
    listed = [{"image": f"imagesTr/c{n}.nii.gz", "label": f"labelsTr/c{n}.nii.gz", "fold": n} for n in range(3)]
    described = {
        "name": "x", "modality": {"0": "CT"}, "labels": {"0": "background", "1": "a"}, "numTraining": 3,
        "training": listed,
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(described))
    return described, "\n".join(
        ["image,label,fold", *(f"{row['image']},{row['label']},{row['fold']}" for row in listed)]
    )


def _data_sets(folder: Path) -> Trial:
    from voxelocity.data.source import open_cases

    described, rows = _tiny_set(folder, shape=(4, 5, 6))

    def trial(numbers: random.Random) -> None:
        for name in ("dataset.json", "cases.csv"):
            (folder / name).unlink(missing_ok=True)
        if numbers.random() < 0.6:
            (folder / "dataset.json").write_bytes(as_json(numbers, described))
        else:
            (folder / "cases.csv").write_bytes(mutated_bytes(numbers, rows.encode()))
        open_cases(folder)

    return trial


def _tiff(numbers: random.Random) -> bytes:
    """A tiled TIFF whose tags are odd."""
    sizes = (0, 1, 15, 16, 64, 1000, 2**16 - 1, 2**16, 2**30, 2**31 - 1, 2**32 - 1)

    def odd(usual: int) -> int:
        return numbers.choice(sizes) if numbers.random() < 0.08 else usual

    tags = [
        (256, 4, odd(16)), (257, 4, odd(16)), (258, 3, odd(8) % 2**16), (259, 3, odd(1) % 2**16),
        (262, 3, odd(2) % 2**16), (277, 3, odd(3) % 2**16), (322, 4, odd(16)), (323, 4, odd(16)), (324, 4, odd(600)),
        (325, 4, odd(768)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    start = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", numbers.choice((0, 0, 8, 2**31)))
    return start.ljust(600, b"\0") + bytes(2000)


def _slides(folder: Path) -> Trial:
    from voxelocity_lab.recipes.pathology.slides import Box, Slide

    def trial(numbers: random.Random) -> None:
        path = folder / f"a{numbers.choice(('.tiff', '.svs'))}"
        content = _tiff(numbers)
        path.write_bytes(content if numbers.random() < 0.7 else mutated_bytes(numbers, content))
        slide = Slide(path)
        slide.read(Box(y=0, x=0, height=32, width=32))

    return trial


def _photographs(folder: Path) -> Trial:
    from PIL import Image

    from voxelocity_lab.recipes.pathology.slides import Box, Slide

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    contents = {}
    for ending in ("png", "jpeg", "bmp"):
        picture.save(kept := io.BytesIO(), ending)
        contents[ending] = kept.getvalue()

    def trial(numbers: random.Random) -> None:
        ending = numbers.choice(sorted(contents))
        path = folder / f"a.{ending}"
        path.write_bytes(mutated_bytes(numbers, contents[ending]))
        Slide(path).read(Box(y=0, x=0, height=32, width=32))

    return trial


def _arrays_of_streamlines(folder: Path) -> Trial:
    from voxelocity_lab.recipes.tractography.files import read_tracts

    def trial(numbers: random.Random) -> None:
        arrays: dict[str, Any] = {
            numbers.choice(("points", "points_q", "points", "x")): np.zeros((3, numbers.choice((0, 1, 2, 8, 8)), 3)),
            "bundle": np.array([numbers.choice((0, 0, 0, 1, -1, 10**9))] * numbers.choice((3, 3, 3, 2))),
            "names": np.array(numbers.choice((["a"], ["a"], ["a", "b"], [], [["a"]], "a"))),
        }
        if numbers.random() < 0.1:
            arrays[numbers.choice(sorted(arrays))] = np.array([Planted()], dtype=object)
        np.savez(folder / "a.npz", **arrays)
        if numbers.random() < 0.4:
            (folder / "a.npz").write_bytes(mutated_bytes(numbers, (folder / "a.npz").read_bytes()))
        read_tracts([folder / "a.npz"])

    return trial


KINDS = (
    *MODELS,
    Kind("YAML of configurations", 150, _yaml),
    Kind("records of runs", 100, _runs),
    Kind("files of studies", 60, _studies),
    Kind("entries of caches", 120, _cache_entries("raw")),
    Kind("entries of caches, Blosc2", 60, _cache_entries("blosc2")),
    Kind("LMDB files of caches", 60, _lmdb, is_forked=True),
    Kind("indexes of remote data sets", 120, _indexes),
    Kind("descriptions and tables of data sets", 150, _data_sets),
    Kind("slides", 60, _slides),
    Kind("photographs", 120, _photographs),
    Kind("arrays of streamlines", 100, _arrays_of_streamlines),
    *RECORDS,
    *SCANS,
    *FOREIGN,
)
