"""nnU-Net's trainers over Voxelocity's feed; nnU-Net finds them here if `nnUNet_extTrainer` names this folder.

There is one for each of nnU-Net's: nnUNetTrainerVoxelocity, nnUNetTrainerVoxelocity_250epochs, and so on; with our step
too, which changes results: nnUNetTrainerVoxelocityFast, nnUNetTrainerVoxelocityFast_250epochs, and so on.
"""

from voxelocity.nnunet.trainer import trainer_class as __getattr__

__all__ = ["__getattr__"]
