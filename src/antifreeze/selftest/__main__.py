"""`python -m antifreeze.selftest`: the same as `antifreeze selftest`."""

from __future__ import annotations

import argparse
import sys

from antifreeze.selftest.command import configure, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="antifreeze selftest", description="Runs one small program per disease on this machine.")
    configure(parser)
    sys.exit(run(parser.parse_args()))
