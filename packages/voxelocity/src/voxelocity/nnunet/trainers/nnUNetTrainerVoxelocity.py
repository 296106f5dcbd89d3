"""nnU-Net's trainers over Voxelocity's feed; nnU-Net finds them here if `nnUNet_extTrainer` names this folder."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerDA5 import nnUNetTrainerDA5
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import nnUNetTrainer_250epochs

from voxelocity.nnunet.trainer import VoxelocityFeed


class nnUNetTrainerVoxelocity(VoxelocityFeed, nnUNetTrainer):
    """nnU-Net's default trainer."""


class nnUNetTrainerVoxelocity_250epochs(VoxelocityFeed, nnUNetTrainer_250epochs):
    """250 epochs in place of 1000."""


class nnUNetTrainerVoxelocity_NoMirroring(VoxelocityFeed, nnUNetTrainerNoMirroring):
    """No mirrored patches, in training and prediction."""


class nnUNetTrainerVoxelocity_DA5(VoxelocityFeed, nnUNetTrainerDA5):
    """The stronger augmentation DA5."""
