"""The spleen in CT: one organ, trained against the clock, and raced against MONAI's two tutorials."""
