"""Why workers have grown, in a sentence."""

from __future__ import annotations

from typing import Any

from antifreeze.delivery.containers import largest_container
from antifreeze.supervisor.memory import Grown

MATTERS_BYTES = 64 << 20


def growth_finding(grown: Grown | None, dataset: Any, hoards: str = "") -> str | None:
    """None where they have not. `dataset` is looked at for what may have made them grow, unless it is None; `hoards`: what a worker has
    found out by itself."""
    if grown is None or grown.grown_bytes < MATTERS_BYTES:
        return None
    per_1000 = grown.per_1000_samples()
    pace = "" if per_1000 is None else f", {_mb(per_1000)} per 1,000 samples"
    text = f"a worker grew by {_mb(grown.grown_bytes)} to {_mb(grown.bytes)}{pace}"
    if hoards:
        return f'{text}; {hoards} in a worker, which is most likely what grows: bound it, or recycle_worker_after="2GiB" does'
    if dataset is None:
        return text
    container = largest_container(dataset)
    if container is not None and container.size_bytes >= grown.grown_bytes / 4:
        return (
            f"{text}; most likely {container} (about {_mb(container.size_bytes)}), which a forked worker copies page by page because "
            "Python counts references inside it; a numpy or torch array of the same is not copied"
        )
    return (
        f"{text}; nothing large in the data set explains it, so something is kept from sample to sample (a cache, a list, a handle): "
        'recycle_worker_after="2GiB" bounds it'
    )


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
