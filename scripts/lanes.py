"""Runs pytest in lanes beside each other: `lanes.py LANE -- LANE -- … [-- @COMMON…]`, each lane a list of pytest's arguments.

Many tests wait (for deadlines, for processes to end), so two lanes on two cores take little more than half the time. What a lane prints comes
when it has ended, whole. The last lane may begin with @: its words go to every other lane. Exit status: 1 where any lane failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time


def main(words: list[str]) -> int:
    lanes: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            lanes.append([])
        else:
            lanes[-1].append(word)
    common = [word.removeprefix("@") for word in lanes.pop()] if lanes[-1] and lanes[-1][0].startswith("@") else []
    began_s = time.monotonic()
    running = []
    for lane in lanes:
        output = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "pytest", *lane, *common]
        running.append((lane, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output))
    failed = 0
    try:
        while running:
            for one in [one for one in running if one[1].poll() is not None]:
                running.remove(one)
                lane, process, output = one
                output.seek(0)
                print(f"-- {' '.join(lane)} ({time.monotonic() - began_s:.0f} s)\n{output.read()}", end="", flush=True)
                failed |= process.returncode != 0
            time.sleep(0.2)
    finally:
        for _, process, _ in running:
            process.terminate()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
