"""Runs pytest in lanes beside each other: `lanes.py LANE -- LANE -- … [-- @COMMON…]`, each lane a list of pytest's arguments.

Many tests wait (for deadlines, for processes to end), so two lanes on two cores take little more than half the time. What a lane prints
comes when it has ended, whole. The last lane may begin with @: its words go to every other lane. Exit status: 1 where any lane failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import IO


def main(words: list[str]) -> int:
    lanes: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            lanes.append([])
        else:
            lanes[-1].append(word)
    common = [word.removeprefix("@") for word in lanes.pop()] if lanes[-1] and lanes[-1][0].startswith("@") else []
    with ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in lanes]
        return run([[sys.executable, "-m", "pytest", *lane, *common] for lane in lanes], outputs)


def run(commands: list[list[str]], outputs: list[IO[str]]) -> int:
    began_s, failed = time.monotonic(), False
    lanes = [
        (subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output)
        for command, output in zip(commands, outputs, strict=True)
    ]
    try:
        while lanes:
            for process, output in [lane for lane in lanes if lane[0].poll() is not None]:
                lanes.remove((process, output))
                output.seek(0)
                print(f"{output.read()}-- this lane took {time.monotonic() - began_s:.0f} s", flush=True)
                failed |= process.returncode != 0
            time.sleep(0.2)
    finally:
        for process, _ in lanes:
            process.terminate()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
