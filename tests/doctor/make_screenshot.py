"""Takes docs/img/doctor.png: the page about a real patient, in a real browser. Run it: python tests/doctor/make_screenshot.py"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from browser import browser, find_browser  # noqa: E402
from ward import Patient, visit  # noqa: E402

from antifreeze.doctor.report.html import html_page  # noqa: E402

PICTURE = HERE.parents[1] / "docs" / "img" / "doctor.png"


def main() -> None:
    if find_browser() is None:
        sys.exit("no chromium here: apt-get install chromium")
    found = visit(Patient("lock_of_another_worker", readies=2))
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        page = Path(folder) / "page.html"
        page.write_text(html_page(found.exam, found.diagnosis), encoding="utf-8")
        window.open(page, width=900, height=700, dark=False)
        window.evaluate("document.querySelectorAll('section details')[0].open = true")
        PICTURE.parent.mkdir(exist_ok=True)
        window.screenshot(PICTURE)
    print(f"{PICTURE} ({PICTURE.stat().st_size // 1000} KB): {found.verdict.verdict}")


if __name__ == "__main__":
    main()
