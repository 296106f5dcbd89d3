"""nnU-Net's preprocessed folder, made in threads of one process: its files, with its values within its own rounding.

- `raw`: the cases of a raw data set. `read`: one of them as nnU-Net's readers give it.
- `fingerprint`: `dataset_fingerprint.json`. `plans`: what a configuration asks for; nnU-Net's own planner makes them.
- `case`: one case cropped, normalized and resampled; `labels`: its label. `store`: its files.
- `run`: all cases of all configurations, resumed where it stopped. `verify`: some of them compared with nnU-Net's own.
"""
