"""Folders as public data sets have them: names as published, content random, a few cases of a few voxels each.

`Layout.make` writes one; `found_in` is what `voxelocity init` and `plan` understand of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from voxelocity.data.pipeline import FolderHints, describe_folder, write_description
from voxelocity.data.pipeline.masks import NO_HINTS
from voxelocity.data.source import open_cases

IMAGE = ()
"""In place of a label's values: a scan."""
_SHAPE = (20, 18, 16)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a data set is laid out.

    Attributes:
        files: of a case, `{i}` being its number, to the values of a label, or `IMAGE`.
        cases: that `init` must find, out of three patients.
        channels: of each.
        classes: besides the background.
        hints: what a user must say, if names do not tell.
        frames: of files that have several, by a part of their names.
    """

    files: Mapping[str, tuple[int, ...]]
    cases: int = 3
    channels: int = 1
    classes: int = 2
    hints: FolderHints = NO_HINTS
    frames: str = ""

    def make(self, folder: Path) -> Path:
        """Writes the files of three patients."""
        numbers = np.random.default_rng(0)
        for i in (1, 2, 3):
            for name, values in self.files.items():
                is_film = self.frames and self.frames in name
                write_scan(folder / name.format(i=i), numbers, values, num_channels=4 if is_film else 1)
        return folder


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was understood of a folder.

    Attributes:
        cases: with a label.
        channels: of each.
        classes: besides the background.
    """

    cases: int
    channels: int
    classes: int


def found_in(folder: Path, lists: Path, hints: FolderHints = NO_HINTS) -> Found:
    """What `init` finds in a folder and `plan` opens; its table goes into `lists`.

    Raises:
        VoxelocityError: it is refused.
    """
    write_description(describe_folder(folder, num_threads=1, hints=hints), lists, overwrite=False, num_threads=1)
    cases = open_cases(lists)
    return Found(
        cases=sum(ref.label is not None for ref in cases.refs),
        channels=len(cases.channels),
        classes=len(cases.labels) - 1,
    )


def write_scan(path: Path, numbers: np.random.Generator, values: tuple[int, ...], *, num_channels: int = 1) -> None:
    """Writes a label with boxes of these values, or an image of these channels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if values == IMAGE:
        voxels = numbers.normal(100.0, 20.0, (*_SHAPE, num_channels) if num_channels > 1 else _SHAPE).astype(np.int16)
    else:
        voxels = np.zeros(_SHAPE, np.int16)
        for order, value in enumerate(values):
            voxels[2 + 4 * order : 6 + 4 * order, 4:12, 4:12] = value
    if path.name.endswith((".nii", ".nii.gz")):
        nib.save(nib.Nifti1Image(voxels, np.diag([-1.0, -1.0, 1.0, 1.0])), path)
        return
    import SimpleITK

    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels.transpose()), str(path))


def _several(pattern: str, parts: str, values: tuple[int, ...] = IMAGE) -> dict[str, tuple[int, ...]]:
    return {pattern.replace("PART", part): values for part in parts.split()}


LAYOUTS: Mapping[str, Layout] = {
    "ACDC": Layout(
        files={
            "patient00{i}/patient00{i}_4d.nii.gz": IMAGE,
            **_several("patient00{i}/patient00{i}_framePART.nii.gz", "01 12"),
            **_several("patient00{i}/patient00{i}_framePART_gt.nii.gz", "01 12", (1, 2, 3)),
        },
        cases=6, classes=3, frames="_4d",
    ),
    "ATLAS 2": Layout(
        files={
            "Training/R001/sub-r001s00{i}/ses-1/anat/sub-r001s00{i}_ses-1_space-MNI152NLin2009aSym_T1w.nii.gz": IMAGE,
            "Training/R001/sub-r001s00{i}/ses-1/anat/"
            "sub-r001s00{i}_ses-1_space-MNI152NLin2009aSym_label-L_desc-T1lesion_mask.nii.gz": (1,),
        },
        classes=1,
    ),
    "ATM22": Layout(
        files={"imagesTr/ATM_00{i}_0000.nii.gz": IMAGE, "labelsTr/ATM_00{i}_0000.nii.gz": (1,)}, classes=1
    ),
    "autoPET": Layout(
        files={
            **_several("PETCT_{i}/study_1/PART.nii.gz", "CTres SUV"),
            "PETCT_{i}/study_1/SEG.nii.gz": (1,),
        },
        channels=2, classes=1,
    ),
    "BraTS20": Layout(
        files={
            **_several("BraTS20_Training_00{i}/BraTS20_Training_00{i}_PART.nii", "flair t1 t1ce t2"),
            "BraTS20_Training_00{i}/BraTS20_Training_00{i}_seg.nii": (1, 2, 4),
        },
        channels=4, classes=3,
    ),
    "BTCV": Layout(
        files={"Training/img/img000{i}.nii.gz": IMAGE, "Training/label/label000{i}.nii.gz": (1, 2)}
    ),
    "CrossMoDA": Layout(
        files={"source/crossmoda_{i}_ceT1.nii.gz": IMAGE, "source/crossmoda_{i}_Label.nii.gz": (1, 2)}
    ),
    "CT-ORG": Layout(files={"volume-{i}.nii.gz": IMAGE, "labels-{i}.nii.gz": (1, 2)}),
    "FastSurfer": Layout(
        files={"sub{i}/mri/orig.nii.gz": IMAGE, "sub{i}/mri/aparc.DKTatlas+aseg.deep.nii.gz": (2, 41)}
    ),
    "FLARE22": Layout(
        files={"images/FLARE22_Tr_000{i}_0000.nii.gz": IMAGE, "labels/FLARE22_Tr_000{i}.nii.gz": (1, 2)}
    ),
    "HECKTOR 2022": Layout(
        files={**_several("imagesTr/CHUM-00{i}__PART.nii.gz", "CT PT"), "labelsTr/CHUM-00{i}.nii.gz": (1, 2)},
        channels=2,
    ),
    "ISLES22": Layout(
        files={
            **_several("sub-strokecase000{i}/ses-0001/dwi/sub-strokecase000{i}_ses-0001_PART.nii.gz", "dwi adc"),
            "derivatives/sub-strokecase000{i}/ses-0001/sub-strokecase000{i}_ses-0001_msk.nii.gz": (1,),
        },
        channels=2, classes=1,
    ),
    "ITK-SNAP": Layout(files={"p{i}.nii.gz": IMAGE, "p{i}-label.nii.gz": (1,)}, classes=1),
    "KiTS19": Layout(
        files={"case_0000{i}/imaging.nii.gz": IMAGE, "case_0000{i}/segmentation.nii.gz": (1, 2)}
    ),
    "KiTS21": Layout(
        files={
            "case_0000{i}/imaging.nii.gz": IMAGE,
            **_several("case_0000{i}/segmentations/kidney_instance-PART_annotation-1.nii.gz", "1 2", (1,)),
            "case_0000{i}/aggregated_MAJ_seg.nii.gz": (1, 2),
        }
    ),
    "LiTS": Layout(files={"volume-{i}.nii": IMAGE, "segmentation-{i}.nii": (1, 2)}),
    "MM-WHS": Layout(
        files={"ct_train/ct_train_100{i}_image.nii.gz": IMAGE, "ct_train/ct_train_100{i}_label.nii.gz": (205, 420)}
    ),
    "MONAI's spleen, edited": Layout(
        files={"imagesTr/{i}.nii.gz": IMAGE, "labels/final/{i}.nii.gz": (1, 2)}
    ),
    "MONAI Label": Layout(files={"{i}.nii.gz": IMAGE, "labels/final/{i}.nii.gz": (1, 2)}),
    "MSD without its list": Layout(
        files={
            "imagesTr/la_00{i}.nii.gz": IMAGE,
            "labelsTr/la_00{i}.nii.gz": (1,),
            "imagesTs/la_10{i}.nii.gz": IMAGE,
        },
        classes=1,
    ),
    "MS lesions of ISBI 2015": Layout(
        files={
            **_several("training0{i}/preprocessed/training0{i}_01_PART_pp.nii", "flair mprage pd t2"),
            **_several("training0{i}/masks/training0{i}_01_maskPART.nii", "1 2", (1,)),
        },
        channels=4, classes=1, hints=FolderHints(raters="mask1"),
    ),
    "PROMISE12": Layout(files={"Case0{i}.mhd": IMAGE, "Case0{i}_segmentation.mhd": (1,)}, classes=1),
    "SegTHOR": Layout(files={"Patient_0{i}/Patient_0{i}.nii.gz": IMAGE, "Patient_0{i}/GT.nii.gz": (1, 2)}),
    "several raters": Layout(
        files={
            "case{i}/image.nii.gz": IMAGE,
            **_several("case{i}/seg_raterPART.nii.gz", "1 2 3", (1,)),
        },
        classes=1, hints=FolderHints(raters="majority"),
    ),
    "3D Slicer": Layout(files={"case{i}/case{i}.nrrd": IMAGE, "case{i}/case{i}.seg.nrrd": (1, 2)}),
    "SPIDER": Layout(
        files={**_several("images/{i}_PART.mha", "t1 t2"), **_several("masks/{i}_PART.mha", "t1 t2", (1, 2))}, cases=6
    ),
    "StructSeg": Layout(files={"{i}/data.nii.gz": IMAGE, "{i}/label.nii.gz": (1, 2)}),
    "train and val": Layout(
        files={
            **_several("PART/patient{i}/image.nii.gz", "train val"),
            **_several("PART/patient{i}/mask.nii.gz", "train val", (1,)),
        },
        cases=6, classes=1,
    ),
    "TotalSegmentator": Layout(
        files={
            "s000{i}/ct.nii.gz": IMAGE,
            **_several("s000{i}/segmentations/PART.nii.gz", "kidney_left kidney_right liver spleen", (1,)),
        },
        classes=4,
    ),
    "VerSe": Layout(
        files={
            "rawdata/sub-verse00{i}/sub-verse00{i}_ct.nii.gz": IMAGE,
            "derivatives/sub-verse00{i}/sub-verse00{i}_seg-vert_msk.nii.gz": (20, 21),
        }
    ),
    "AbdomenAtlas": Layout(
        files={
            "BDMAP_0000000{i}/ct.nii.gz": IMAGE,
            "BDMAP_0000000{i}/combined_labels.nii.gz": (1, 2),
            **_several("BDMAP_0000000{i}/segmentations/PART.nii.gz", "aorta liver", (1,)),
        }
    ),
    "BraTS 2023": Layout(
        files={
            **_several("BraTS-GLI-0000{i}-000/BraTS-GLI-0000{i}-000-PART.nii.gz", "t1c t1n t2f t2w"),
            "BraTS-GLI-0000{i}-000/BraTS-GLI-0000{i}-000-seg.nii.gz": (1, 2, 3),
        },
        channels=4, classes=3,
    ),
    "COVID-19 CT": Layout(
        files={
            "ct_scans/coronacases_org_00{i}.nii": IMAGE,
            **_several("PART_mask/coronacases_00{i}.nii", "infection lung", (1,)),
        },
        classes=1, hints=FolderHints(raters="infection"),
    ),
    "CURVAS": Layout(
        files={
            "UKCHLL00{i}/image.nii.gz": IMAGE,
            **_several("UKCHLL00{i}/annotation_PART.nii.gz", "1 2 3", (1, 2)),
        },
        hints=FolderHints(raters="majority"),
    ),
    "HaN-Seg": Layout(
        files={
            **_several("set_1/case_0{i}/case_0{i}_IMG_PART.nrrd", "CT MR_T1"),
            **_several(
                "set_1/case_0{i}/case_0{i}_OAR_PART.seg.nrrd", "A_Carotid_L A_Carotid_R Bone_Mandible", (1,)
            ),
        },
        channels=2, classes=3, hints=FolderHints(are_masks=True),
    ),
    "HECKTOR 2021": Layout(
        files={
            **_several("hecktor_nii/CHUM00{i}_PART.nii.gz", "ct pt"),
            "hecktor_nii/CHUM00{i}_gtvt.nii.gz": (1,),
        },
        channels=2, classes=1,
    ),
    "LNDb": Layout(
        files={"LNDb-000{i}.mhd": IMAGE, **_several("LNDb-000{i}_radPART.mhd", "1 2 3", (1,))},
        classes=1, hints=FolderHints(image="{case}.mhd", label="{case}_rad*.mhd", raters="majority"),
    ),
    "MRBrainS18": Layout(
        files={**_several("training/{i}/pre/PART.nii.gz", "FLAIR T1"), "training/{i}/segm.nii.gz": (1, 2)}, channels=2
    ),
    "MSSEG 2016": Layout(
        files={
            **_several("0101{i}SACH/Preprocessed_Data/PART_preprocessed.nii.gz", "FLAIR T1 T2"),
            **_several("0101{i}SACH/Masks/PART.nii.gz", "Consensus ManualSegmentation_1", (1,)),
        },
        channels=3, classes=1, hints=FolderHints(raters="consensus"),
    ),
    "PI-CAI": Layout(
        files={
            **_several("images/1000{i}/1000{i}_100000{i}_PART.mha", "adc hbv t2w"),
            "picai_labels/csPCa_lesion_delineations/human_expert/resampled/1000{i}_100000{i}.nii.gz": (1,),
        },
        channels=3, classes=1,
    ),
    "SLIVER07": Layout(
        files={"scan/liver-orig00{i}.mhd": IMAGE, "label/liver-seg00{i}.mhd": (1,)}, classes=1
    ),
    "WMH 2017": Layout(
        files={**_several("Utrecht/{i}/pre/PART.nii.gz", "FLAIR T1"), "Utrecht/{i}/wmh.nii.gz": (1, 2)},
        channels=2, hints=FolderHints(image="*/{case}/pre/{channel}.nii.gz", label="*/{case}/wmh.nii.gz"),
    ),
    "WORD": Layout(
        files={
            "imagesTr/word_000{i}.nii.gz": IMAGE,
            "labelsTr/word_000{i}.nii.gz": (1, 2),
            "imagesVal/word_010{i}.nii.gz": IMAGE,
            "labelsVal/word_010{i}.nii.gz": (1, 2),
            "imagesTs/word_020{i}.nii.gz": IMAGE,
        },
        cases=6,
    ),
    "a folder for each channel": Layout(
        files={**_several("PART/p{i}.nii.gz", "CT PET"), "label/p{i}.nii.gz": (1,)}, channels=2, classes=1
    ),
    "labels named after folders": Layout(
        files={**_several("images/p{i}/PART.nii.gz", "ct pet"), "labels/p{i}.nii.gz": (1,)}, channels=2, classes=1
    ),
}  # fmt: skip
