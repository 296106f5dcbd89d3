"""A template's own training and validation step, on voxels made up in its own shapes, and its own settings."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.auto3dseg.utils import datafold_read
from monai.bundle import ConfigParser
from monai.data import DataLoader, MetaTensor
from monai.inferers import sliding_window_inference

from voxelocity.tuning.auto3dseg.templates import (
    DATA_ON,
    PARAMETERS,
    PATCHES,
    SEGMENTERS,
    WINDOWS,
    OwnSettings,
    prefix,
    written_keys,
)
from voxelocity.tuning.space import Settings


@dataclass(frozen=True, kw_only=True)
class AlgorithmTask:
    """What one process measures.

    Attributes:
        name: of the template.
        folder: of the algorithm.
        device: "cpu" or "cuda:0".
        case_shape: voxels of the case that is validated.
        settings: to measure; None to say what the algorithm's own are.
        own: these.
        window_s: of each window of training steps, of which `num_windows` are measured.
        validation_s: after which the network's time in a validation is estimated from the windows that are done.
        device_limit_bytes: memory of the device; 0 sets no limit.
    """

    name: str
    folder: str
    device: str
    case_shape: tuple[int, ...]
    settings: Mapping[str, Any] | None = None
    own: OwnSettings | None = None
    window_s: float = 1.0
    num_windows: int = 3
    validation_s: float = 20.0
    device_limit_bytes: int = 0

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AlgorithmTask:
        """The task of `to_json`."""
        values = json.loads(text)
        own = values["own"] and OwnSettings(**values["own"])
        return cls(**{**values, "own": own, "case_shape": tuple(values["case_shape"])})

    @property
    def keys(self) -> dict[str, Any]:
        """Of the parameters, as a training at the task's settings has them; empty without any."""
        if self.settings is None or self.own is None:
            return {}
        return written_keys(self.name, self.own, self.settings, has_gpu=self.device != "cpu")


class SegmenterAlgorithm:
    """segresnet and segresnet2d: the steps are methods of the class in their scripts."""

    def __init__(self, task: AlgorithmTask, scratch: Path) -> None:
        self._task = task
        is_flat = task.name == "segresnet2d"
        self._module: Any = importlib.import_module("segmenter_2d" if is_flat else "segmenter")
        make = self._module.Segmenter2D if is_flat else self._module.Segmenter
        keys = {
            **task.keys,
            "bundle_root": task.folder,
            "ckpt_path": str(scratch),
            "log_output_file": str(scratch / "training.log"),
            "cuda": task.device != "cpu",
        }
        # Rank 1 prints nothing.
        self._segmenter = make(config_file=_config_files(task), config_dict=keys, global_rank=1)
        self.network: torch.nn.Module = self._segmenter.model

    @property
    def keeps_loaders(self) -> bool:
        """Whether a process that a validation forks to read scans lives on."""
        return bool(self._segmenter.config["num_workers"])

    def own_settings(self) -> OwnSettings:
        """As the class and its `train` settle them, but for what is cached, which changes no size."""
        config = self._segmenter.config
        num_training, num_held = _case_counts(config)
        patches, crops = int(config["batch_size"]), int(config["num_crops_per_image"])
        if config["auto_scale_allowed"] and config["num_steps_per_image"] is None:
            crops = patches if config["crop_mode"] == "ratio" else 1
        else:
            patches = max(1, patches * crops // (config["num_steps_per_image"] or 1))
        epochs = max(1, config["num_epochs"] // min(3, crops))
        schedule = importlib.import_module("segmenter").schedule_validation_epochs
        rounds = schedule(epochs, config["num_epochs_per_validation"], fraction=min(0.3, 0.16 * crops))
        inferer = self._segmenter.sliding_inferrer
        fixed = {"roi_size": [*config["roi_size"]], "network#init_filters": config["network"].get("init_filters")}
        return OwnSettings(
            patches=patches,
            windows=inferer.sw_batch_size,
            data_on="cpu" if self._task.device == "cpu" or str(inferer.device) == "cpu" else "gpu",
            patches_per_case=epochs * crops,
            num_cases=num_training,
            num_validations=max(1, num_held) * len(rounds),
            crop_mode=config["crop_mode"],
            fixed={key: value for key, value in fixed.items() if value is not None},
        )

    def prepare(self, settings: Settings) -> None:
        """Makes the optimizer and the voxels of a step and of a validation."""
        config = self._segmenter.config
        channels, classes = config["input_channels"], config["output_classes"]
        layers = classes if config["sigmoid"] else 1
        shape, roi = self._task.case_shape, config["roi_size"]
        high = 2 if config["sigmoid"] else classes
        self._batch = {
            "image": torch.rand(settings[PATCHES], channels, *roi),
            "label": torch.randint(high, (settings[PATCHES], layers, *roi), dtype=torch.uint8),
        }
        case = {
            "image": MetaTensor(torch.rand(channels, *shape), meta={"filename_or_obj": "case"}),
            "label": MetaTensor(torch.randint(high, (layers, *shape), dtype=torch.uint8)),
        }
        self._cases = DataLoader([case], batch_size=1, num_workers=0)
        optimizer = ConfigParser(config["optimizer"]).get_parsed_content(instantiate=False)
        self._optimizer = optimizer.instantiate(params=self.network.parameters())

    def _shared(self) -> dict[str, Any]:
        segmenter, config = self._segmenter, self._segmenter.config
        names = {"sigmoid": "sigmoid", "use_amp": "amp", "use_cuda": "cuda", "channels_last": "channels_last"}
        return {
            "loss_function": segmenter.loss_function,
            "acc_function": segmenter.acc_function,
            "rank": 0,
            "global_rank": 1,
            **{argument: config[key] for argument, key in names.items()},
        }

    def train(self) -> None:
        """One training step."""
        self._segmenter.train_epoch(
            model=self.network,
            train_loader=[self._batch],
            optimizer=self._optimizer,
            grad_scaler=self._segmenter.grad_scaler,
            epoch=0,
            **self._shared(),
        )

    def validate(self, network: torch.nn.Module) -> None:
        """Predicts the case, and judges it."""
        self._segmenter.val_epoch(
            model=network,
            val_loader=self._cases,
            sliding_inferrer=self._segmenter.sliding_inferrer,
            calc_val_loss=self._segmenter.config["calc_val_loss"],
            **self._shared(),
        )


class ScriptAlgorithm:
    """dints and swinunetr: their steps stand in `train.py`, which cannot be called, so they are written again here."""

    # Those of a validation end with it.
    keeps_loaders = False

    def __init__(self, task: AlgorithmTask, scratch: Path) -> None:
        self._task, self._scratch = task, scratch
        plain = ConfigParser(globals=False)
        plain.read_config(_config_files(task))
        # The template names the device where it reads the found architecture.
        text = json.dumps(plain.get()).replace("torch.device('cuda')", f"torch.device('{task.device}')")
        self._parser = ConfigParser(json.loads(text))
        self._parser.update({**task.keys, "bundle_root": task.folder})
        self._device = torch.device(task.device)
        if task.name == "dints":
            # As its script does when it is imported, and when it runs.
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
        network = "training_network#network" if task.name == "dints" else "network"
        self.network: torch.nn.Module = self._parser.get_parsed_content(network).to(self._device)

    def _get(self, key: str) -> Any:
        return self._parser.get_parsed_content(f"{prefix(self._task.name)}{key}")

    def own_settings(self) -> OwnSettings:
        """As the script's first act settles them: it writes the sizes that it takes to fit into its parameters."""
        if self._get("auto_scale_allowed"):
            copy = Path(shutil.copy(Path(self._task.folder, "configs", PARAMETERS), self._scratch))
            script: Any = importlib.import_module("train")
            # Without a GPU swinunetr fails here: what it was filled with stays.
            with suppress(ValueError):
                script.pre_operation([str(copy)])
            scaled = ConfigParser(globals=False)
            scaled.read_config(str(copy))
            for key in ("num_patches_per_iter", "num_crops_per_image", "num_epochs"):
                at = f"{prefix(self._task.name)}{key}"
                self._parser[at] = scaled[at]
        top = {"data_list_file_path", "data_file_base_dir", "fold"}
        num_training, num_held = _case_counts({key: self._parser.get_parsed_content(key) for key in top})
        patches, crops, epochs, every = (
            int(self._get(key))
            for key in ("num_patches_per_iter", "num_crops_per_image", "num_epochs", "num_epochs_per_validation")
        )
        data_on = "cpu" if self._task.device == "cpu" or self._get("sw_input_on_cpu") else "gpu"
        # As in the script of dints.
        windows = self._get("num_sw_batch_size") or (8 * patches if data_on == "cpu" else 1)
        return OwnSettings(
            patches=patches,
            windows=int(windows),
            data_on=data_on,
            patches_per_case=epochs * crops,
            num_cases=num_training,
            num_validations=max(1, num_held) * max(1, epochs // every),
            epoch_crops=crops,
            images_per_batch=int(self._get("num_images_per_batch")),
            epochs_per_validation=every,
        )

    def prepare(self, settings: Settings) -> None:
        """As for the other algorithms."""
        num_patches, self._windows = settings[PATCHES], settings[WINDOWS]
        classes, self._softmax = self._get("output_classes"), self._get("softmax")
        channels, roi = self._get("input_channels"), self._get("roi_size")
        layers, high = (1, classes) if self._softmax else (classes, 2)
        self._image = torch.rand(num_patches, channels, *roi)
        self._label = torch.randint(high, (num_patches, layers, *roi), dtype=torch.uint8)
        self._case = torch.rand(1, channels, *self._task.case_shape)
        self._data_device = torch.device("cpu") if settings[DATA_ON] == "cpu" else self._device
        self._amp = bool(self._get("amp")) and self._device.type == "cuda"
        overlap = "overlap_ratio_train" if self._task.name == "dints" else "overlap_ratio"
        self._roi_valid, self._overlap = self._get("roi_size_valid"), self._get(overlap)
        self._loss = self._get("loss")
        optimizer = self._parser.get_parsed_content(f"{prefix(self._task.name)}optimizer", instantiate=False)
        self._optimizer = optimizer.instantiate(params=self.network.parameters())
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._amp)

    def train(self) -> None:
        """One training step."""
        self.network.train()
        inputs, labels = self._image.to(self._device), self._label.to(self._device)
        for parameter in self.network.parameters():
            parameter.grad = None
        with torch.autocast(self._device.type, enabled=self._amp):
            outputs = self.network(inputs)
            loss = self._loss(outputs.float(), labels)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(self._optimizer)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self._scaler.step(self._optimizer)
        self._scaler.update()

    @torch.no_grad()
    def validate(self, network: torch.nn.Module) -> None:
        """Predicts the case."""
        network.eval()
        with torch.autocast(self._device.type, enabled=self._amp):
            outputs = sliding_window_inference(
                inputs=self._case.to(self._data_device),
                roi_size=self._roi_valid,
                sw_batch_size=self._windows,
                predictor=network,
                mode="gaussian",
                overlap=self._overlap,
                sw_device=self._device,
                device=self._data_device,
            )
        (outputs[0].argmax(0) if self._softmax else outputs[0] > 0.0).cpu()


Algorithm = SegmenterAlgorithm | ScriptAlgorithm


def open_algorithm(task: AlgorithmTask, scratch: Path) -> Algorithm:
    """The algorithm of a task, whose scripts must be importable; it writes into `scratch` alone."""
    return SegmenterAlgorithm(task, scratch) if task.name in SEGMENTERS else ScriptAlgorithm(task, scratch)


def _config_files(task: AlgorithmTask) -> list[str]:
    """As the template's own training is given them."""
    found = sorted(Path(task.folder, "configs").iterdir())
    return [str(path) for path in found if path.suffix in (".yaml", ".json") and not path.name.startswith(".")]


def _case_counts(config: Mapping[str, Any]) -> tuple[int, int]:
    """Cases that are trained on, and those that are held out."""
    path = Path(config.get("bundle_root", ""), config["data_list_file_path"])
    training, held = datafold_read(datalist=str(path), basedir=config["data_file_base_dir"], fold=config["fold"])
    return len(training), len(held)
