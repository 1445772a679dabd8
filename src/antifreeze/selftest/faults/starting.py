"""Workers that do not start: init functions, pickles, main guards, notebooks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from antifreeze.selftest.fault import Expectation, Outcome, fault
from antifreeze.selftest.trial import LOADERS, Numbers, Trial, first_time

SOON = {"sample_timeout_s": 0.8, "max_restarts_per_minute": 4}


def init_raises(_: int) -> None:
    raise ValueError("no licence")


def init_hangs(_: int) -> None:
    time.sleep(3600)


def init_exits(_: int) -> None:
    os._exit(0)


def init_dies_once(_: int) -> None:
    if first_time(Path(os.environ["TMPDIR"]).parent):
        os._exit(1)


@fault(
    "init-raises",
    "worker_init_fn raises",
    "F6",
    Expectation((Outcome.ERROR,), "ValueError|WorkerStartFailed|LoaderGaveUp", "worker_init_fn.*no licence|no licence.*worker_init_fn"),
    options=SOON,
)
def raises(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), worker_init_fn=init_raises))


@fault(
    "init-hangs",
    "worker_init_fn never returns",
    "F6",
    Expectation((Outcome.ERROR,), "LoadingError", "worker_init_fn|init_hangs"),
    options=SOON,
)
def hangs(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), worker_init_fn=init_hangs))


@fault(
    "init-exits",
    "worker_init_fn leaves with exit code 0",
    "F6",
    Expectation((Outcome.ERROR,), "LoadingError", r"worker_init_fn|exit.{0,20}\b0\b"),
    options=SOON,
)
def exits(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), worker_init_fn=init_exits))


@fault("init-dies-once", "one worker dies once in its worker_init_fn", "F4")
def dies_once(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), worker_init_fn=init_dies_once))


class Reader:
    def __init__(self) -> None:
        self.handle = threading.Lock()


class HasReader(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reader = Reader()


@fault(
    "unpicklable-data-set-under-spawn",
    "a data set that no pickle can move, and `spawn`",
    "F6, FIELD 1.10",
    Expectation((Outcome.ERROR,), cause=r"dataset\.reader\.handle"),
    limit_s=25,
)
def unpicklable(trial: Trial) -> None:
    trial.epoch(trial.loader(HasReader(trial.folder), multiprocessing_context="spawn"))


@fault("lambda-collate-under-spawn", "a lambda for collate_fn, and `spawn`", "F6, pt#188885", limit_s=25)
def lambda_collate(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(), collate_fn=lambda samples: [int(one[0]) for one in samples], multiprocessing_context="spawn")
    trial.epoch(loader, read=list)


@fault("killed-under-spawn", "a worker started by `spawn` is killed once", "F4", limit_s=30)
def killed_under_spawn(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), multiprocessing_context="spawn", worker_init_fn=init_dies_once, num_workers=1))


class Heavy(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notes = [{"name": str(number), "label": number} for number in range(200_000)]


@fault("large-data-set-under-spawn", "200,000 dicts and eight workers under `spawn`", "FIELD 6: pt#139792", heavy=True, limit_s=120)
def large_under_spawn(trial: Trial) -> None:
    trial.epoch(trial.loader(Heavy(trial.folder), multiprocessing_context="spawn", num_workers=8))


SCRIPT = """
import importlib, json, sys, threading, time
import torch
from torch.utils.data import Dataset

class Here(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return torch.tensor([index, index * index + 7])

{before}
module, name = {loader!r}.split(":")
loader = getattr(importlib.import_module(module), name)(Here(), batch_size=4, num_workers=2, **{arguments!r})
rows = [one for batch in loader for one in batch.tolist()]
print("ROWS", json.dumps(rows))
"""


def run_script(trial: Trial, before: str = "", by_file: bool = True, **arguments: Any) -> None:
    """A user's script in its own interpreter; its rows come back over stdout."""
    names = {"ours": LOADERS["antifreeze"], "torch": LOADERS["torch"]}
    text = SCRIPT.format(before=before, loader=names["ours" if trial.ours else "torch"], arguments=arguments)
    (trial.folder / "train.py").write_text(text)
    command = [sys.executable, "train.py"] if by_file else [sys.executable, "-c", text]
    trial.plan(range(24))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=trial.folder)
    sys.stderr.write(done.stderr)
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    if len(rows) != 1:
        raise RuntimeError(f"the script printed {len(rows)} results and ended with {done.returncode}: {done.stderr[-2000:]}")
    import torch

    trial.got(torch.tensor(eval(rows[0][5:])))


@fault(
    "no-main-guard",
    "a script without `if __name__ == '__main__'`, and `spawn`",
    "F6, pt#5301",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="__main__|guard"),
    limit_s=40,
)
def no_main_guard(trial: Trial) -> None:
    run_script(trial, multiprocessing_context="spawn")


@fault("class-in-notebook", "the data set's class is in no file, and the parent has a thread, as in a notebook", "F6, pt#51344", limit_s=40)
def in_notebook(trial: Trial) -> None:
    run_script(trial, before="threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()", by_file=False)
