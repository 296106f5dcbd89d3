"""nnU-Net's own training over our feed: its command, plans, files, patches and augmentation, without worker processes.

- `chain`: nnU-Net's chain of transforms as one pass of our engine, and what is left to nnU-Net; `draws`: its random
  numbers; `targets`: its end.
- `cases`: its preprocessed cases, in memory as far as they fit. `feed`: batches made ahead in threads.
- `trainer`: what turns a trainer of nnU-Net into one of ours; `checks`: what it refuses; `trainers`: those, where
  nnU-Net looks for them, and `places`: where that is.
- `fast`: the trainers that also take our step and end with a clock; `fast_step`: that step, for nnU-Net's network.
- `preprocess`: its folder of preprocessed cases. `export`: a run of ours as its results folder.

Importing it imports neither nnU-Net nor batchgeneratorsv2. Its models and its plans are read in `infer/models`.
"""
