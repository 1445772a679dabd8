"""Writes the example of docs/check.md and docs/img/check.png from a real run. Run it: python tests/checks/make_docs.py"""

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

PAGE, PICTURE = ROOT / "docs" / "check.md", ROOT / "docs" / "img" / "check.png"
BEGIN, END = "<!-- example: python tests/checks/make_docs.py -->", "<!-- end of example -->"


def main() -> None:
    if find_browser() is None:
        sys.exit("no chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "antifreeze", "check", "train.py", "--no-machine", "--html", str(page)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, cwd=HERE / "example", env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr
        window.open(page, width=800, height=600, dark=False)
        window.screenshot(PICTURE)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    example = f"{BEGIN}\n\n```\n$ antifreeze check train.py\n{done.stdout}```\n\n{END}"
    PAGE.write_text(before + example + after, encoding="utf-8")
    print(done.stdout)


if __name__ == "__main__":
    main()
