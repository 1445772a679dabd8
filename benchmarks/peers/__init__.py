"""Every loader we compare ourselves with: one file each, in the order of the table. Importing one needs none of its packages."""

from __future__ import annotations

NAMES = (
    "torch_loader",
    "torchdata_nodes",
    "spdl_pipeline",
    "grain_dataset",
    "web_dataset",
    "lit_data",
    "mosaic_streaming",
    "hf_datasets",
    "tf_data",
    "dali",
    "ray_data",
    "antifreeze_loader",
    "antifreeze_over_hf",
)
