"""Which machine a table was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def description() -> list[str]:
    import numpy
    import torch

    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = [f"THE MACHINE WAS BUSY at the start (load {load:.1f} on {cores} cores): read the ratios as rough, the rest not at all"]
    return [
        f"{cpu_model()}, {cores} cores usable of {os.cpu_count()}, {memory_gib:.0f} GiB, Linux {platform.release()}",
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}, load {load:.1f} at the start",
        *(busy if load > cores / 2 else []),
    ]


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
