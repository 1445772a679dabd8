"""`python -m antifreeze.doctor PID` is `antifreeze doctor PID`."""

import argparse
import sys

from antifreeze.doctor.command import configure, run

parser = argparse.ArgumentParser(prog="antifreeze doctor", description="Why is this process frozen, or slow, now?")
configure(parser)
sys.exit(run(parser.parse_args()))
