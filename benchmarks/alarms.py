"""Alarms that fall into next() at random moments, while the loop goes on, resumes, or begins again: no batch may be lost, come twice, or
come in another order than it came before.

    python benchmarks/alarms.py                      each kind of loader, seeds 0 to 9
    python benchmarks/alarms.py --seeds 40 --share 0.2 --only auto

Prints a line per run: calls, alarms that fell, resumes; and what was wrong, if anything was.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader

SAMPLES, BATCH, CALLS = 96, 4, 400

KINDS: dict[str, dict[str, Any]] = {
    "auto": {"num_workers": "auto"},
    "auto-waiting": {"num_workers": "auto", "takes_s": 0.002},
    "auto-threads": {"num_workers": "auto", "workers": "thread", "takes_s": 0.002},
    "none": {"num_workers": 0},
    "one": {"num_workers": 1},
    "persistent": {"num_workers": 1, "persistent_workers": True},
    "thread": {"num_workers": 1, "workers": "thread"},
}


class Rang(Exception):
    pass


class Numbers(Dataset[Any]):
    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        if self.takes_s:
            time.sleep(self.takes_s)
        return index, int(torch.randint(1 << 30, ()))


class Wrong(Exception):
    pass


class Loop:
    """A loop that an alarm rings in now and then, and what it has got."""

    def __init__(self, options: dict[str, Any], seed: int, share: float) -> None:
        options = dict(options)
        self.rng = random.Random(seed)
        self.share = share
        self.within = False
        self.counts: Counter[str] = Counter()
        generator = torch.Generator().manual_seed(seed)
        dataset = Numbers(options.pop("takes_s", 0.0))
        self.loader: Any = DataLoader(
            dataset, BATCH, shuffle=True, generator=generator, timeout=60 if options["num_workers"] else 0, **options
        )
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        if self.within:
            self.within = False
            raise Rang

    def call(self, iterator: Any) -> list[list[int]] | None:
        """A batch; None: the alarm fell."""
        rings = self.rng.random() < self.share
        after_s = 10 ** self.rng.uniform(-5, -2)
        self.counts["calls"] += 1
        try:
            self.within = True
            if rings:
                signal.setitimer(signal.ITIMER_REAL, after_s)
            batch = iterator.__next__()
            self.within = False
            return [list(pair) for pair in zip(*(part.tolist() for part in batch), strict=True)]
        except Rang:
            self.counts["alarms"] += 1
            return None
        finally:
            self.within = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def run(self) -> None:
        seen: list[list[list[int]]] = []  # of this pass
        at = 0
        kept: tuple[dict[str, Any], list[Any], int] | None = None
        iterator = iter(self.loader)
        while self.counts["calls"] < CALLS:
            ended = False
            try:
                batch = self.call(iterator)
            except StopIteration:
                ended, batch = True, None
            if batch is not None:
                if at < len(seen) and seen[at] != batch:
                    raise Wrong(f"batch {at} was {seen[at]} and is now {batch}")
                seen[at : at + 1] = [batch]
                at += 1
            if ended:
                if sorted(index for batch in seen[:at] for index, _ in batch) != list(range(SAMPLES)):
                    raise Wrong(f"{at} batches came, not every sample once")
                self.counts["passes"] += 1
                iterator, seen, at = iter(self.loader), [], 0
                continue
            does = self.rng.random()
            if does < 0.05:
                kept = self.loader.state_dict(), seen, at
            elif does < 0.08 and kept is not None:
                self.counts["resumes"] += 1
                self.loader.load_state_dict(kept[0])
                iterator, seen, at = iter(self.loader), kept[1], kept[2]
            elif does < 0.10:
                iterator, seen, at = iter(self.loader), [], 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--share", type=float, default=0.05, help="of calls into which an alarm is to fall")
    parser.add_argument("--only", default="", help="kinds of loaders: " + ", ".join(KINDS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bad = 0
    for kind in arguments.only.split(",") if arguments.only else KINDS:
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            loop = Loop(KINDS[kind], seed, arguments.share)
            wrong = ""
            try:
                loop.run()
            except Exception as error:
                bad += 1
                wrong = "  " + (str(error) if isinstance(error, Wrong) else traceback.format_exc())
            finally:
                loop.loader.close()
            if wrong or seed == arguments.first + arguments.seeds - 1:
                print(f"{kind}, seed {seed}: {dict(loop.counts)}{wrong}", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
