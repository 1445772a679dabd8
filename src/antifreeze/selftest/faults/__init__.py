"""The programs, grouped by what is sick. Importing this fills the table."""

from antifreeze.selftest.faults import (
    batches,
    collating,
    deaths,
    exceptions,
    handles,
    hangs,
    iterables,
    machine,
    odd_samples,
    odd_workers,
    places,
    samplers,
    starting,
    stopping,
    whole_batches,
)

__all__ = [
    "batches",
    "collating",
    "deaths",
    "exceptions",
    "handles",
    "hangs",
    "iterables",
    "machine",
    "odd_samples",
    "odd_workers",
    "places",
    "samplers",
    "starting",
    "stopping",
    "whole_batches",
]
