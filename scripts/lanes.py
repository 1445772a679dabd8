"""Runs a folder's tests in several processes of pytest, two at a time: `lanes.py FOLDER --apart PATH … --without PATH … -- WORDS…`.

Each path that is named apart is a lane of its own, and all the rest of the folder is the first one; they begin in this order, so that the
longest had better be first. The words after -- go to each pytest. Many tests wait (for deadlines, for processes to end), and most fork:
what a fork costs grows with its process, which has everything that its tests import. What a lane prints comes when it has ended, whole.
Exit status: 1 where any lane failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 2


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--apart", nargs="+", default=[])
    parser.add_argument("--without", nargs="+", default=[])
    at = list(words).index("--") if "--" in words else len(words)
    given, more = parser.parse_args(words[:at]), list(words[at + 1 :])
    beside = ThreadPoolExecutor(AT_ONCE)
    try:
        return int(any(list(beside.map(lambda lane: run([*lane, *more]), lanes(given.folder, given.apart, given.without)))))
    finally:
        beside.shutdown(cancel_futures=True)  # after Ctrl-C, which pytest hears as well


def lanes(folder: str, apart: Sequence[str], without: Sequence[str]) -> list[list[str]]:
    """Every test of the folder is in one of them, and in no other."""
    return [
        [path, *(f"--ignore={other}" for other in [*apart, *without] if other != path and other.startswith(f"{path}/"))]
        for path in [folder, *apart]
    ]


def run(words: Sequence[str]) -> int:
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        ended = subprocess.run([sys.executable, "-m", "pytest", *words], stdout=output, stderr=subprocess.STDOUT, check=False)
        output.seek(0)
        print(f"{output.read()}-- {words[0]}: {time.monotonic() - began_s:.0f} s", flush=True)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
