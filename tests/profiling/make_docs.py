"""Writes the example of docs/profile.md and docs/img/profile.png from a real run. Run it: python tests/profiling/make_docs.py"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "doctor")]

from browser import browser, find_browser  # noqa: E402

PAGE, PICTURE = ROOT / "docs" / "profile.md", ROOT / "docs" / "img" / "profile.png"
BEGIN, END = "<!-- example: python tests/profiling/make_docs.py -->", "<!-- end of example -->"
WORDS = ["profile", "pictures:train_loader", "--step-ms", "80", "--seconds", "60"]


def main() -> None:
    if find_browser() is None:
        sys.exit("no chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        page = Path(folder) / "page.html"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "antifreeze", *WORDS, "--html", str(page)]
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=300, check=True)
        window.open(page, width=900, height=700, dark=False)
        window.screenshot(PICTURE)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    example = f"{BEGIN}\n\n```\n$ antifreeze {' '.join(WORDS)}\n{done.stdout}```\n\n{END}"
    PAGE.write_text(before + example + after, encoding="utf-8")
    print(done.stdout)


if __name__ == "__main__":
    main()
