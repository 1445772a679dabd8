"""What a name tells: pure, so that collecting and judging agree on it."""

from __future__ import annotations

import re

REMOTE = ("nfs", "fuse", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "9p", "afs", "glusterfs", "wekafs", "virtiofs", "pvfs2")
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d[\d.]*/|/src/antifreeze/|^<")
WORKER_NAMES = ("pt_data_worker", "af_worker")
"""What torch and antifreeze call their worker processes."""
NURSERY = "af_nursery"
"""What antifreeze calls the process that forks the later ones of many workers."""


def is_remote(filesystem: str) -> bool:
    """Whether a read may wait for another machine, or for a program."""
    return filesystem.startswith(REMOTE) and filesystem not in ("fuseblk", "fusectl")


def is_library(file: str) -> bool:
    """Whether a source file is somebody else's than the user's."""
    return LIBRARY.search(file) is not None
