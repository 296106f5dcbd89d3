"""The table of MONAI transforms that the engine makes: cases for each, compared with MONAI."""
