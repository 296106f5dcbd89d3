"""Models on disk, each format read as data: no code in a model's folder is run unless the user names it.

`open` lists the kinds of models and takes the one that a folder holds, recognized by `kinds`; both import no torch.
`run`: ours, with `spec` (`model.json`). `exported`: a network in another runtime's file. `ensemble`: several as one.
`foreign_files` reads what may only be data. `nnunet` (its network is in `step`), with `nnunet_plans`,
`nnunet_prepare`, `nnunet_postprocessing`, `nnunet_sums` (as its predictor adds), `nnunet_cascade` (`nnunet_labels`),
`nnunet_zip` and `nnunet_parts`. `bundle` of MONAI, with `bundle_config` (`bundle_expressions`), `bundle_prepare`
(`bundle_grid`), `bundle_network` and `bundle_outputs`.
"""
