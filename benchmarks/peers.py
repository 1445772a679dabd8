"""Ours against every peer on two cores: `python benchmarks/peers.py` prints the tables of docs/benchmarks.md.

    --install            makes an environment per peer under benchmarks/.peers, once
    --choose             measures every setting of every peer and keeps their rates in peers/chosen.json: the best of each is measured then
    --right              looks at what is in the batches of each, sample by sample
    (none of these)      interleaved rounds of the chosen settings, medians, ratios to torch with 2 workers in the same round

Each measurement is a fresh process in the environment of its peer (peer_child.py says what it times). With --save what was measured
is kept as it comes, and a run that was interrupted goes on where it was; --stop-after ends it early. With --wrap COMMAND each measurement
runs as `COMMAND python ...`: a lock, for instance, that others hold too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import machine
from peer_bench import Bench, Pace, Rounds, TimeIsUp, lines_of
from peer_chart import chart
from peer_journal import Journal, Look, read_all
from peer_report import VERDICT_HEAD, Line, table, verdict
from peers import NAMES
from peers.contract import TASKS, Peer, Task, load_peer
from peers.torch_loader import BASE
from runs import HERE
from table import render

NOT_FINISHED = 75
CHOSEN = HERE / "peers" / "chosen.json"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_task(bench: Bench, journal: Journal, task: Task, modules: Sequence[str], chosen: argparse.Namespace) -> list[Line]:
    contenders, absent = bench.contenders(task, modules)
    rounds = Rounds(bench, journal, task, contenders, read_rates().get(task.name, {}))
    if chosen.right:
        rounds.run(Look.RIGHT, 1)
    else:
        rounds.run(Look.RATE, chosen.rounds, chosen.tries)
    return lines_of(journal.of(task.name), absent)


def choose(bench: Bench, task: Task, modules: Sequence[str], again: bool) -> None:
    """Every setting once, those that have a figure only `again`; kept row by row: title -> setting -> samples/s, 0 where it failed."""
    for contender in bench.contenders(task, modules)[0]:
        title, settings = contender.entry.title, contender.entry.settings
        if len(settings) == 1 and title != BASE:
            continue  # nothing to choose
        known = {} if again else read_rates().get(task.name, {}).get(title, {})
        rates = {setting.name: known[setting.name] for setting in settings if setting.name in known}
        for setting in settings:
            if setting.name not in rates:
                found = bench.measure(task, contender, setting, Look.RATE, 0)
                rates[setting.name] = round(found.result.samples_per_s, 1) if found.result else 0.0
                write_rates(task, title, rates)


def read_rates() -> dict[str, dict[str, dict[str, float]]]:
    """task -> row -> setting -> samples/s when it was chosen."""
    return json.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}


def write_rates(task: Task, title: str, rates: dict[str, float]) -> None:
    everything = read_rates()
    everything.setdefault(task.name, {})[title] = rates
    CHOSEN.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")


def text_of(task: Task, lines: list[Line], markdown: bool) -> str:
    base = next((line for line in lines if line.title == BASE), Line(BASE, ""))
    head = f"{task.name}: {task.title}"
    head = f"**{head}**" if markdown else head
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
    by_peer = {name_of(load_peer(name).PEER): name for name in NAMES}
    parser.add_argument("--workloads", default=",".join(TASKS), help="comma-separated; all of: %(default)s")
    parser.add_argument("--peers", default=",".join(by_peer), help="comma-separated; all of: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (default 3)")
    parser.add_argument("--tries", type=int, default=2, help="how often at most in a round, while others use the machine (default 2)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement looks, after its warm-up (default 2)")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of warm-up before it looks (default 1)")
    parser.add_argument("--right", action="store_true", help="look at what is in the batches of each, and nothing else")
    parser.add_argument("--install", action="store_true", help="make the environments, and nothing else")
    parser.add_argument("--choose", action="store_true", help="measure every setting that has no figure yet, once, and nothing else")
    parser.add_argument("--again", action="store_true", help="with --choose: also those that have one")
    parser.add_argument("--prepare", action="store_true", help="let peers with a format of their own write their files, and nothing else")
    parser.add_argument("--wrap", type=shlex.split, default=[], metavar="COMMAND", help="run every measurement as COMMAND python ...")
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="TIMES", help="hold still after each measurement, so many times as long as it took"
    )
    parser.add_argument(
        "--stop-after",
        type=float,
        metavar="SECONDS",
        help=f"begin no measurement after that; exit status {NOT_FINISHED}: something is left to do, and the same command goes on",
    )
    parser.add_argument("--home", type=Path, default=HERE / ".peers", help="where environments and files are (default benchmarks/.peers)")
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep what is measured there, as it comes, and go on where that ends")
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FOLDER",
        dest="saved",
        action="append",
        default=[],
        help="print what --save kept, and measure nothing; several: the rounds of all",
    )
    parser.add_argument("--chart", type=Path, metavar="FILE", help="also draw what was measured, as one SVG")
    chosen = parser.parse_args(given)
    chosen.workloads, chosen.peers = chosen.workloads.split(","), chosen.peers.split(",")
    for name in chosen.workloads:
        if name not in TASKS:
            parser.error(f"no workload {name!r}; there are {', '.join(TASKS)}")
    chosen.peers = [by_peer.get(name, name) for name in chosen.peers]
    for name in chosen.peers:
        if name not in NAMES:
            parser.error(f"no peer {name!r}; there are {', '.join(by_peer)}")
    if min(chosen.rounds, chosen.tries) < 1 or chosen.seconds <= 0 or chosen.warm < 0 or chosen.pause < 0:
        parser.error("--rounds and --tries must be 1 or more, --seconds more than 0, --warm and --pause 0 or more")
    for folder in chosen.saved:
        if not folder.is_dir():
            parser.error(f"no folder {folder}: --from reads what --save FOLDER kept")
    return chosen


def name_of(peer: Peer) -> str:
    """As --peers takes it: that of its environment; ours lives in those of others."""
    return {"antifreeze": "antifreeze", "antifreeze over HF": "antifreeze-hf"}.get(peer.title, peer.name)


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is running is ended with us
    bench = Bench(chosen.home.resolve(), Pace(chosen.seconds, chosen.warm, tuple(chosen.wrap), chosen.pause, chosen.stop_after))
    tasks = [TASKS[name] for name in chosen.workloads]
    if chosen.install:
        bench.home.mkdir(parents=True, exist_ok=True)
        for name in chosen.peers:
            bench.environments.install(load_peer(name).PEER, say)
        return 0
    if chosen.prepare:
        return prepare_all(bench, tasks, chosen.peers)
    try:
        if not chosen.choose:
            return measure_and_print(bench, tasks, chosen)
        for task in tasks:
            choose(bench, task, chosen.peers, chosen.again)
        return 0
    except TimeIsUp:
        return NOT_FINISHED


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
    journal = Journal(chosen.saved[0] if chosen.saved else chosen.save)
    described = journal.machine(machine.description())
    found: dict[str, list[Line]] = {}
    for task in tasks:
        if chosen.saved:
            found[task.name] = lines_of(read_all(chosen.saved, task.name), bench.contenders(task, chosen.peers)[1])
        else:
            found[task.name] = measure_task(bench, journal, task, chosen.peers, chosen)
    print("\n".join(described))
    for name, lines in found.items():
        print(f"\n{text_of(TASKS[name], lines, chosen.markdown)}")
    print(f"\n{verdicts_of(found, chosen.markdown)}")
    if chosen.chart:
        chosen.chart.write_text(chart(found, TASKS, "; ".join(described[:2])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
