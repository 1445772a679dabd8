"""Gives programs to wardens, several at a time, and yields verdicts as they come."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from antifreeze.selftest.fault import Fault, Variant
from antifreeze.selftest.judge import Verdict, judge
from antifreeze.selftest.record import Record

TORCH_LIMIT_S = 8.0
"""Long enough for torch's own poll for dead workers, which is 5 s."""
ORPHAN_GRACE_S = 1.0


@dataclass(frozen=True)
class Run:
    fault: Fault
    loader: str
    variant: Variant
    fresh: bool = False
    torch_limit_s: float = TORCH_LIMIT_S
    slack: float = 1.0
    """So many times as long may everything take, on a machine that does other things too."""

    @property
    def limit_s(self) -> float:
        limit_s = max(self.torch_limit_s, self.fault.limit_s - 7) if self.loader == "torch" else self.fault.limit_s
        return (limit_s + (5 if self.fresh else 0)) * self.slack

    def request(self) -> dict[str, object]:
        """What the warden is told."""
        what = {"fault": self.fault.name, "loader": self.loader, "variant": self.variant.value}
        return {**what, "limit_s": self.limit_s, "grace_s": ORPHAN_GRACE_S * self.slack, "fresh": self.fresh}


class Runner:
    """`with Runner(jobs=2) as runner: runner.start(runs)`; closing ends the wardens, and so all they started."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="selftest")
        self._mine = threading.local()
        self._wardens: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, runs: Sequence[Run]) -> list[Future[Verdict]]:
        """In the order given; one warden per job takes the next run when it is free."""
        return [self._pool.submit(self._one, run) for run in runs]

    def verdicts(self, runs: Sequence[Run]) -> Iterator[Verdict]:
        """As they come; the heavy ones last and one at a time, so that they disturb nobody's clock."""
        for done in as_completed(self.start([run for run in runs if not run.fault.heavy])):
            yield done.result()
        for run in runs:
            if run.fault.heavy:
                yield self.start([run])[0].result()

    def close(self, wait_s: float = 5.0) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for warden in self._wardens:
            if warden.stdin:
                warden.stdin.close()
        for warden in self._wardens:
            try:
                warden.wait(wait_s)
            except subprocess.TimeoutExpired:
                warden.kill()
                warden.wait(wait_s)
            if warden.stdout:
                warden.stdout.close()
        self._wardens.clear()

    def _one(self, run: Run) -> Verdict:
        missing = [name for name in run.fault.needs if importlib.util.find_spec(name) is None]
        if missing:
            record = Record(run.fault.name, run.loader, run.variant.value, not_here=f"needs {', '.join(missing)}")
            return judge(run.fault, record)
        warden = self._warden()
        assert warden.stdin is not None and warden.stdout is not None
        warden.stdin.write(json.dumps(run.request()) + "\n")
        warden.stdin.flush()
        answer = warden.stdout.readline()
        if not answer:
            raise RuntimeError(f"the warden ended with {warden.wait(5)} while it ran {run.fault.name}")
        return judge(run.fault, Record(**json.loads(answer)), run.slack)

    def _warden(self) -> subprocess.Popen[str]:
        found: subprocess.Popen[str] | None = getattr(self._mine, "warden", None)
        if found is None or found.poll() is not None:
            command = [sys.executable, "-m", "antifreeze.selftest.warden"]
            found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment())
            self._mine.warden = found
            self._wardens.append(found)
        return found


def _environment() -> dict[str, str]:
    """Ours, with absolute paths: programs run in folders of their own."""
    paths = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths)}
