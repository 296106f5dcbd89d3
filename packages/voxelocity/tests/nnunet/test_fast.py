"""What `Fast` adds to a trainer, over a loop like nnU-Net's; needs no nnU-Net."""

import types

import pytest
import torch

from voxelocity.nnunet.fast import VARIABLE, VoxelocityFast
from voxelocity.nnunet.trainer import VoxelocityFeed
from voxelocity_observe.core.errors import InputError

from .test_fast_step import CPU, TwoScales, batch


class OwnTrainer:
    """nnU-Net's trainer as far as ours reach into it: the order of its calls, and what it keeps of them."""

    def __init__(self, folder):
        self.folder, self.device, self.local_rank, self.is_ddp = folder, CPU, 0, False
        (folder / "cases").mkdir(exist_ok=True)
        (folder / "cases" / "case_0.b2nd").touch()
        self.preprocessed_dataset_folder_base = self.preprocessed_dataset_folder = str(folder / "cases")
        self.plans_manager = types.SimpleNamespace(dataset_name="Dataset001_Own", plans_name="nnUNetPlans")
        self.configuration_name, self.dataset_json = "3d_fullres", {}
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 3, 4, 2
        self.save_every, self.current_epoch = 50, 0
        self.network = self.stops_at = None
        self.label_manager = types.SimpleNamespace(ignore_label=None)
        self.configuration_manager = types.SimpleNamespace(patch_size=(8, 12, 8))
        self.said, self.validated, self.losses, self.rates = [], [], [], []
        self.dataloader_train = self.dataloader_val = map(batch_of, range(1000))

    def print_to_log_file(self, text):
        self.said.append(text)

    def initialize(self):
        self.network = TwoScales()
        self.optimizer, self.lr_scheduler = self.configure_optimizers()
        self.loss = self._build_loss()

    def _build_loss(self):
        def loss(logits, target):
            return torch.nn.functional.cross_entropy(logits, target[:, 0].long())

        return types.SimpleNamespace(weight_factors=(1.0, 0.0), loss=loss)

    def on_train_start(self):
        if self.network is None:
            self.initialize()

    def on_train_epoch_start(self):
        self.network.train()
        self.lr_scheduler.step(self.current_epoch)
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self, outputs):
        self.losses.append([float(output["loss"]) for output in outputs])

    def on_validation_epoch_start(self):
        self.network.eval()

    def validation_step(self, batch):
        return self.network

    def on_validation_epoch_end(self, outputs):
        self.validated.append(outputs)

    def save_checkpoint(self, filename):
        state = {"network_weights": self.network.state_dict(), "optimizer_state": self.optimizer.state_dict()}
        torch.save(state | {"current_epoch": self.current_epoch + 1}, filename)

    def load_checkpoint(self, filename):
        self.initialize()
        kept = torch.load(filename, weights_only=False)
        self.network.load_state_dict(kept["network_weights"])
        self.optimizer.load_state_dict(kept["optimizer_state"])
        self.current_epoch = kept["current_epoch"]

    def perform_actual_validation(self, save_probabilities=False):
        self.validated.append(self.network)

    def on_train_end(self):
        pass

    def run_training(self):
        self.on_train_start()
        for epoch in range(self.current_epoch, self.num_epochs):
            if epoch == self.stops_at:
                return
            self.on_train_epoch_start()
            steps = [self.train_step(next(self.dataloader_train)) for _ in range(self.num_iterations_per_epoch)]
            self.on_train_epoch_end(steps)
            self.on_validation_epoch_start()
            made = [self.validation_step(next(self.dataloader_val)) for _ in range(self.num_val_iterations_per_epoch)]
            self.on_validation_epoch_end(made)
            self.save_checkpoint(str(self.folder / "checkpoint_latest.pth"))
            self.current_epoch += 1
        self.on_train_end()


class Fast(VoxelocityFast, VoxelocityFeed, OwnTrainer):
    pass


def batch_of(number):
    image, target = batch(number)
    return {"data": image, "target": target}


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    return Fast(tmp_path)


def test_the_average_is_validated_and_stored_while_the_network_trains_on(trainer):
    trainer.run_training()
    average = trainer.optimizer.averaged()
    assert [[made is average for made in epoch] for epoch in trainer.validated] == [[True, True]] * 3
    assert trainer.network is not average
    kept = torch.load(trainer.folder / "checkpoint_latest.pth", weights_only=False)
    names = list(TwoScales().state_dict())
    assert list(kept["network_weights"]) == names
    assert all(torch.equal(kept["network_weights"][name], average.state_dict()[name]) for name in names)
    trained = kept["optimizer_state"]["step"]["network"]
    assert all(torch.equal(trained[name], trainer.network.state_dict()[name]) for name in names)
    assert not torch.equal(trained["fine.weight"], kept["network_weights"]["fine.weight"])


def test_losses_are_read_once_an_epoch(trainer, reads_of_tensors):
    trainer.on_train_start()
    for number in range(2):
        trainer.train_step(batch_of(number))
    with reads_of_tensors() as reads:
        steps = [trainer.train_step(batch_of(number)) for number in range(3)]
    assert reads.found == []
    trainer.on_train_epoch_end(steps)
    assert trainer.losses[0] == [float(step["loss"]) for step in steps]


def test_a_training_continues_from_its_checkpoint_as_if_it_had_not_ended(trainer):
    trainer.run_training()
    stopped, again = Fast(trainer.folder), Fast(trainer.folder)
    stopped.stops_at = 1
    stopped.run_training()
    again.load_checkpoint(trainer.folder / "checkpoint_latest.pth")
    # Six batches make an epoch.
    again.dataloader_train = again.dataloader_val = map(batch_of, range(6, 1000))
    again.run_training()
    assert again.losses == trainer.losses[1:]
    pairs = zip(again.optimizer.averaged().parameters(), trainer.optimizer.averaged().parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(trainer, monkeypatch):
    trainer.run_training()
    before = (trainer.folder / "checkpoint_latest.pth").read_bytes()

    def killed(state, filename):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.save_checkpoint(str(trainer.folder / "checkpoint_latest.pth"))
    assert (trainer.folder / "checkpoint_latest.pth").read_bytes() == before


def test_what_a_killed_training_left_is_no_checkpoint_of_one_that_writes_none(trainer, monkeypatch):
    trainer.run_training()
    before = (trainer.folder / "checkpoint_latest.pth").read_bytes()
    (trainer.folder / ".checkpoint_latest.pth.part").write_bytes(b"half")
    monkeypatch.setattr(OwnTrainer, "save_checkpoint", lambda self, filename: None)
    trainer.save_checkpoint(str(trainer.folder / "checkpoint_latest.pth"))
    assert (trainer.folder / "checkpoint_latest.pth").read_bytes() == before
    assert not (trainer.folder / ".checkpoint_latest.pth.part").exists()


class InStages(OwnTrainer):
    """As nnUNetTrainer_warmup, which asks for its optimizer again, and with a step of its own."""

    def on_train_epoch_start(self):
        self.optimizer, self.lr_scheduler = self.configure_optimizers("train")
        super().on_train_epoch_start()

    def train_step(self, batch):
        raise AssertionError("ours takes its place")


def test_a_trainer_that_warms_up_in_stages_has_one_step_of_ours(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    trainer = type("Staged", (VoxelocityFast, VoxelocityFeed, InStages), {})(tmp_path)
    trainer.run_training()
    assert trainer.optimizer.num_steps == 12
    assert "WARNING: the train_step of InStages is not called, as our step takes its place" in trainer.said


def test_with_a_time_epochs_are_planned_by_the_clock(trainer, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1m")
    trainer.num_epochs = 1000
    trainer.on_train_start()
    assert (trainer.num_epochs, trainer.save_every) == (3, 1)
    assert "trains for 1 min: muon" in trainer.said[0]
    trainer.on_train_epoch_start()
    assert (trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch) == (10, 2)
    assert trainer.said[-1].startswith("10 iterations, 2 of validation; ")


def test_several_gpus_are_refused(trainer):
    trainer.is_ddp = True
    with pytest.raises(InputError, match=r"Fast trains on one GPU, and -num_gpus requests several; use nnUNetTrainer"):
        trainer.initialize()


def test_the_final_validation_is_of_the_average(trainer):
    trainer.on_train_start()
    trainer.perform_actual_validation()
    assert trainer.validated == [trainer.optimizer.averaged()]
    assert trainer.network is not trainer.optimizer.averaged()
