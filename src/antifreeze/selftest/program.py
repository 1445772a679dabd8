"""One program in a new interpreter: `python -m antifreeze.selftest.program FAULT LOADER VARIANT FOLDER RECORDS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from antifreeze.selftest.warden import make_trial

if __name__ == "__main__":
    _, fault, loader, variant, folder, records = sys.argv
    os.set_inheritable(int(records), False)
    make_trial(fault, loader, variant, Path(folder), int(records)).run()
