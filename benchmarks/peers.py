"""Ours against every peer on two cores: `python benchmarks/peers.py` prints the tables of docs/benchmarks.md.

    --install            makes an environment per peer under benchmarks/.peers, once
    --choose             measures every setting of every peer and writes the best of each to peers/chosen.json
    (neither)            interleaved rounds of the chosen settings, medians, ratios to torch with 2 workers in the same round

Each measurement is a fresh process in the environment of its peer (peer_child.py says what it times); memory is looked at in a
round of its own, because looking costs time.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
from peer_child import PeerRequest, PeerResult
from peer_environments import Environments
from peer_report import VERDICT_HEAD, Line, Round, merged, table, verdict
from peers import NAMES
from peers.contract import TASKS, Entry, Peer, Refusal, Setting, Task, data_folder, load_peer
from peers.torch_loader import BASE
from runs import HERE, Ended, measuring_environment, run_process
from table import render

CHOSEN = HERE / "peers" / "chosen.json"
MEASUREMENT_LIMIT_S = 120.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Contender:
    """One row to be measured: the entry of a peer, and where the setting was chosen, which."""

    module: str
    peer: Peer
    entry: Entry

    def setting(self, chosen: dict[str, str]) -> Setting:
        named = {setting.name: setting for setting in self.entry.settings}
        return named.get(chosen.get(self.entry.title, ""), self.entry.settings[0])


class Bench:
    def __init__(self, home: Path, seconds: float, warm_s: float) -> None:
        self.home = home
        self.environments = Environments(home)
        self.seconds = seconds
        self.warm_s = warm_s
        self.started_s = time.monotonic()

    def contenders(self, task: Task, modules: Sequence[str]) -> tuple[list[Contender], list[Line]]:
        """Who takes part, and a line with the reason for each who does not."""
        found, absent = [], []
        for name in modules:
            module = load_peer(name)
            entries = module.entries(task)
            reason = entries.reason if isinstance(entries, Refusal) else self.environments.missing(module.PEER)
            if reason:
                absent.append(Line(module.PEER.title, "", reason=reason))
            else:
                found += [Contender(name, module.PEER, entry) for entry in entries]
        return found, absent

    def prepare(self, task: Task, contender: Contender) -> str:
        """What went wrong, or nothing."""
        if not hasattr(load_peer(contender.module), "prepare") or data_folder(self.home, contender.peer, task).exists():
            return ""
        self.progress(f"{task.name}  {contender.peer.title}: writes its own files")
        return self._child(task, contender, Setting(""), memory=False, prepare=True).error

    def measure(self, task: Task, contender: Contender, setting: Setting, memory: bool = False) -> tuple[Round, int | None]:
        problem = self.prepare(task, contender)
        if problem:
            return Round(None, problem), None
        ended = self._child(task, contender, setting, memory, prepare=False)
        if not ended.lines:
            return Round(None, ended.error), None
        peak = max((each.held_bytes for each in ended.seen), default=None)
        return Round(PeerResult(**json.loads(ended.lines[-1]))), peak

    def _child(self, task: Task, contender: Contender, setting: Setting, memory: bool, prepare: bool) -> Ended:
        folder = data_folder(self.home, contender.peer, task)
        request = PeerRequest(contender.module, task.name, setting.options, str(folder), self.seconds, self.warm_s, prepare)
        command = [str(self.environments.python(contender.peer)), str(HERE / "peer_child.py"), json.dumps(asdict(request))]
        return run_process(command, {**measuring_environment(), **setting.environment}, memory, MEASUREMENT_LIMIT_S)

    def progress(self, text: str) -> None:
        say(f"[{time.monotonic() - self.started_s:5.0f} s] {text}")


def measure_task(bench: Bench, task: Task, modules: Sequence[str], rounds: int, memory: bool) -> list[Line]:
    contenders, absent = bench.contenders(task, modules)
    chosen = read_chosen().get(task.name, {})
    lines = [Line(each.entry.title, each.setting(chosen).name) for each in contenders]
    slow = far_behind(task)
    for number in range(rounds + memory):
        looking = number >= rounds
        first = number % max(1, len(contenders))  # nobody is always the one who comes after the slow one
        order = [*range(first, len(contenders)), *range(first)]
        for at in order:
            contender, line = contenders[at], lines[at]
            if line.title in slow and 0 < number < rounds:
                continue
            found, peak = bench.measure(task, contender, contender.setting(chosen), looking)
            if looking:
                line.peak_pss_bytes = peak
            else:
                line.rounds.append(found)
            stage = "memory" if looking else f"round {number + 1}/{rounds}"
            bench.progress(f"{stage}  {task.name}  {line.title} ({line.setting}): {in_words(found)}")
    return [*lines, *absent]


def far_behind(task: Task) -> set[str]:
    """Rows that had less than half of torch's rate when their setting was chosen: one round shows that again."""
    rates = {title: max(found.values()) for title, found in read_rates().get(task.name, {}).items()}
    return {title for title, rate in rates.items() if rate < rates.get(BASE, 0) / 2}


def in_words(found: Round) -> str:
    return f"{found.result.samples_per_s:,.0f} samples/s" if found.result else f"failed: {found.error}"


def choose(bench: Bench, task: Task, modules: Sequence[str]) -> None:
    """Every setting once; what was found is kept row by row: title -> setting -> samples/s, 0 where it failed."""
    contenders, _ = bench.contenders(task, modules)
    for contender in contenders:
        rates: dict[str, float] = {}
        for setting in contender.entry.settings:
            found, _ = bench.measure(task, contender, setting)
            rates[setting.name] = round(found.result.samples_per_s, 1) if found.result else 0.0
            bench.progress(f"choosing  {task.name}  {contender.entry.title} ({setting.name}): {in_words(found)}")
        write_rates(task, contender.entry.title, rates)


def read_rates() -> dict[str, dict[str, dict[str, float]]]:
    """task -> row -> setting -> samples/s when it was chosen."""
    return json.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}


def read_chosen() -> dict[str, dict[str, str]]:
    return {task: {title: max(found, key=lambda name: found[name]) for title, found in rows.items()} for task, rows in read_rates().items()}


def write_rates(task: Task, title: str, rates: dict[str, float]) -> None:
    everything = read_rates()
    everything.setdefault(task.name, {})[title] = rates
    CHOSEN.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")


def text_of(task: Task, lines: list[Line], markdown: bool) -> str:
    base = next((line for line in lines if line.title == BASE), Line(BASE, ""))
    head = f"{task.name}: {task.title}"
    return f"{head}\n\n{table(lines, base, markdown)}"


def verdicts_of(found: dict[str, list[Line]], markdown: bool) -> str:
    rows = []
    for name, lines in found.items():
        base = next((line for line in lines if line.title == BASE), None)
        if base and base.rate and any(line.is_ours for line in lines):
            rows.append(verdict(TASKS[name], lines, base))
    return render(VERDICT_HEAD, rows, markdown) if rows else ""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(TASKS), help="comma-separated; all of: %(default)s")
    parser.add_argument(
        "--peers", default=",".join(name_of(load_peer(name).PEER) for name in NAMES), help="comma-separated; all of: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement looks, after its warm-up (default 2)")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of warm-up before it looks (default 1)")
    parser.add_argument("--no-memory", action="store_true", help="without the round that looks at memory")
    parser.add_argument("--install", action="store_true", help="make the environments, and nothing else")
    parser.add_argument("--choose", action="store_true", help="measure every setting once and keep the best of each row, and nothing else")
    parser.add_argument("--prepare", action="store_true", help="let peers with a format of their own write their files, and nothing else")
    parser.add_argument("--home", type=Path, default=HERE / ".peers", help="where environments and files are (default benchmarks/.peers)")
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="also keep what was measured there, one file per workload; again: adds rounds"
    )
    parser.add_argument("--from", type=Path, metavar="FOLDER", dest="saved", help="print what --save kept, and measure nothing")
    chosen = parser.parse_args(given)
    chosen.workloads, chosen.peers = chosen.workloads.split(","), chosen.peers.split(",")
    for name in chosen.workloads:
        if name not in TASKS:
            parser.error(f"no workload {name!r}; there are {', '.join(TASKS)}")
    by_peer = {name_of(load_peer(name).PEER): name for name in NAMES}
    chosen.peers = [by_peer.get(name, name) for name in chosen.peers]
    for name in chosen.peers:
        if name not in NAMES:
            parser.error(f"no peer {name!r}; there are {', '.join(by_peer)}")
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.warm < 0:
        parser.error("--rounds must be 1 or more, --seconds more than 0, --warm 0 or more")
    return chosen


def name_of(peer: Peer) -> str:
    """As --peers takes it: that of its environment; ours lives in torch's."""
    return "antifreeze" if peer.title == "antifreeze" else peer.name


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is running is ended with us
    bench = Bench(chosen.home.resolve(), chosen.seconds, chosen.warm)
    tasks = [TASKS[name] for name in chosen.workloads]
    if chosen.install:
        bench.home.mkdir(parents=True, exist_ok=True)
        for name in chosen.peers:
            bench.environments.install(load_peer(name).PEER, say)
        return 0
    if chosen.prepare:
        return prepare_all(bench, tasks, chosen.peers)
    if chosen.choose:
        for task in tasks:
            choose(bench, task, chosen.peers)
        return 0
    return measure_and_print(bench, tasks, chosen)


def prepare_all(bench: Bench, tasks: Sequence[Task], modules: Sequence[str]) -> int:
    failed = 0
    for task in tasks:
        for contender in bench.contenders(task, modules)[0]:
            problem = bench.prepare(task, contender)
            if problem:
                bench.progress(f"{task.name}  {contender.peer.title}: {problem}")
                failed = 1
    return failed


def measure_and_print(bench: Bench, tasks: Sequence[Task], chosen: argparse.Namespace) -> int:
    described = machine.description()
    found: dict[str, list[Line]] = {}
    for task in tasks:
        if chosen.saved:
            described, found[task.name] = read_saved(chosen.saved, task)
            continue
        found[task.name] = measure_task(bench, task, chosen.peers, chosen.rounds, not chosen.no_memory)
        if chosen.save:
            save(chosen.save, task, described, found[task.name])
            described, found[task.name] = read_saved(chosen.save, task)
    print("\n".join(described))
    for name, lines in found.items():
        print(f"\n{text_of(TASKS[name], lines, chosen.markdown)}")
    print(f"\n{verdicts_of(found, chosen.markdown)}")
    return 0


def save(folder: Path, task: Task, described: list[str], lines: list[Line]) -> None:
    """Adds to what is there: later rounds follow the earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{task.name}.json").exists():
        described, earlier = read_saved(folder, task)
        lines = merged(earlier, lines)
    content = {"machine": described, "lines": [asdict(line) for line in lines]}
    (folder / f"{task.name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False))


def read_saved(folder: Path, task: Task) -> tuple[list[str], list[Line]]:
    content = json.loads((folder / f"{task.name}.json").read_text())
    lines = []
    for kept in content["lines"]:
        rounds = [Round(PeerResult(**each["result"]) if each["result"] else None, each["error"]) for each in kept.pop("rounds")]
        lines.append(Line(**kept, rounds=rounds))
    return content["machine"], lines


if __name__ == "__main__":
    sys.exit(main())
