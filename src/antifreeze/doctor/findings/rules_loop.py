"""The loop's own part: it is the slow one and the loader innocent, it is blocked, or nothing is wrong at all."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Frame, Process, Thread
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop, Worker
from antifreeze.doctor.findings.cast import loop_by_frames
from antifreeze.doctor.findings.frames import Frames, is_in_sampler, place, short, trace
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.rules_reads import pipe_text, readers_of, unread_text
from antifreeze.doctor.findings.stalls import computes, loop_line
from antifreeze.doctor.findings.waits import WaitKind, wait_of
from antifreeze.doctor.findings.words import listed, percent, plural, seconds_text

COLLECTIVE, CHECKPOINT, LOGGING, MODEL = "a collective", "a checkpoint", "logging", "the model"
KINDS = (
    (COLLECTIVE, ("torch/distributed/", "deepspeed/comm", "horovod/", "mpi4py/")),
    (CHECKPOINT, ("torch/serialization.py", "safetensors/", "torch/distributed/checkpoint", "pickle.py")),
    (LOGGING, ("/logging/", "wandb/", "tensorboard", "mlflow/", "neptune/", "comet_ml/", "aim/", "tqdm/")),
    (
        MODEL,
        (
            "torch/nn/",
            "torch/optim/",
            "torch/autograd/",
            "torch/_tensor.py",
            "torch/cuda/",
            "torch/_ops.py",
            "torch/_dynamo",
            "torch/functional.py",
        ),
    ),
)
BUSY, LONG_S = 0.3, 60.0
SELDOM, OFTEN = 0.2, 0.5
OWN_CODE, SAMPLER = "its own code", "its sampler"
LONG_DRAW_S = 30.0


def kind_of(frames: Frames) -> str:
    """What the loop is at, by the libraries on its stack; the innermost known one decides."""
    if is_in_sampler(frames):
        return SAMPLER
    for frame in frames:
        for kind, parts in KINDS:
            if any(part in frame.file for part in parts):
                return kind
    return OWN_CODE


def is_innocent(loader: LoaderCase) -> bool:
    """No worker is at work: all wait for the loop."""
    return bool(loader.workers) and all(worker.doing is Doing.IDLE for worker in loader.workers)


def has_slept(loader: LoaderCase, case: Case) -> bool:
    return loader.thread is not None and loader.thread.rested(case.window_s)


def _in(loader: LoaderCase) -> str:
    kind = kind_of(loader.frames)
    return "" if kind == OWN_CODE else f", in {kind}"


def _all(loader: LoaderCase) -> str:
    few = {1: "its one worker waits", 2: "both workers wait"}
    return few.get(len(loader.workers), f"all {len(loader.workers)} workers wait")


def _where(frame: Frame | None) -> str:
    return f" at {short(frame)}" if frame else ""


def loop_in_collective(case: Case) -> Iterator[Finding]:
    """It waits for other ranks; on which of them the blame lies, the other findings say."""
    for loader in case.loaders:
        if loader.loop is not Loop.COMPUTING or kind_of(loader.frames) != COLLECTIVE or not has_slept(loader, case):
            continue
        others = [each for each in case.loaders if each is not loader]
        yield finding(
            "loop-in-collective",
            f"{loader.name} waits for the other ranks in {loader.frames[0].name}{_where(loader.place)}: its own loader is innocent",
            evidence=[
                f"stack: {trace(loader.frames)}",
                f"asleep for {seconds_text(loader.thread.last.asleep_s)}" if loader.thread and loader.thread.last else None,
                f"{_all(loader)} for work" if is_innocent(loader) else None,
                *(loop_line(each) for each in others),
            ],
            advice=[
                "run the doctor on the other ranks: the one that is not in a collective is the one they wait for",
                "all ranks must do the same number of steps: drop_last=True, or torch.distributed.algorithms.Join",
            ],
            confidence=Confidence.LIKELY,
            where=loader.place,
            pid=loader.process.pid,
            stalled_s=loader.thread.last.asleep_s if loader.thread and loader.thread.last else None,
        )


def loop_blocked(case: Case) -> Iterator[Finding]:
    """The loop sleeps in its own code, while its workers wait for it."""
    for loader in case.loaders:
        if loader.loop is not Loop.COMPUTING or not has_slept(loader, case) or not is_innocent(loader) or loader.moved:
            continue
        if kind_of(loader.frames) == COLLECTIVE or loader.wait.kind in (WaitKind.STOPPED, WaitKind.NOTHING):
            continue
        asleep_s = loader.thread.last.asleep_s if loader.thread and loader.thread.last else None
        own_will = loader.wait.kind is WaitKind.SLEEP
        what = loader.wait.kind.value
        if loader.wait.kind is WaitKind.FULL_PIPE:
            readers = readers_of(loader.wait.descriptor, loader.process, case)
            what = f"room in {pipe_text(loader.wait.descriptor)}, {unread_text(readers)},"
        yield finding(
            "loop-blocked",
            f"{_who(kind_of(loader.frames))}: {loader.name} itself waits for {what}{_in(loader)}{_where(loader.place)}",
            evidence=[
                f"stack: {trace(loader.frames)}",
                f"system call: {loader.wait.call or 'unknown'}(){f' on {loader.wait.file}' if loader.wait.file else ''}, "
                f"asleep for {seconds_text(asleep_s)}",
                f"{_all(loader)} for work" + ("" if is_in_sampler(loader.frames) else ": batches are ready"),
            ],
            advice=[
                f"look at that line of the {'sampler' if is_in_sampler(loader.frames) else 'loop'}; "
                f"changing {'the data set' if is_in_sampler(loader.frames) else 'the loader'} or num_workers will not help"
            ],
            severity=Severity.SLOW if own_will and (asleep_s or 0.0) < 30 else Severity.DISEASE,
            confidence=Confidence.LIKELY,
            where=loader.place,
            pid=loader.process.pid,
            stalled_s=asleep_s,
        )


def loop_is_slow(case: Case) -> Iterator[Finding]:
    """The loop works, hardly ever waits for data, and every worker waits for it."""
    for loader in case.loaders:
        if loader.loop is not Loop.COMPUTING or has_slept(loader, case) or not is_innocent(loader) or loader.waiting_share > SELDOM:
            continue
        kind = main_kind(loader)
        if loader.moved and _loop_activity(loader) < BUSY and kind == OWN_CODE:
            continue  # it went round, and rested in between: healthy() says so
        yield finding(
            "loop-is-slow",
            f"{_who(kind)}: {_all(loader)} for {loader.name}, which is busy with {kind}{_where(loader.place)}",
            evidence=[
                f"the loop waited for data in {percent(loader.waiting_share)} of {len(loader.seen)} looks",
                f"stack: {trace(loader.frames)}",
                f"the loop used {percent(loader.process.cpu_share)} CPU in {seconds_text(case.window_s)}",
                f"it last asked for a batch {seconds_text(loader.waited_s)} ago" if loader.waited_s is not None else None,
            ],
            advice=[_slow_advice(kind), "more workers or a faster data set will change nothing"],
            severity=Severity.DISEASE if kind == SAMPLER and _draws_for_ever(loader) else Severity.SLOW,
            where=loader.place,
            pid=loader.process.pid,
        )


def _who(kind: str) -> str:
    """A sampler runs in the loop's process, and is a part of the loader all the same."""
    return "the workers are innocent" if kind == SAMPLER else "the loader is innocent"


def _draws_for_ever(loader: LoaderCase) -> bool:
    return not loader.moved and (loader.waited_s or 0.0) >= LONG_DRAW_S


def _loop_activity(loader: LoaderCase) -> float:
    """Of the window: its thread ran, or would have run had a core been free."""
    thread, window_s = loader.thread, loader.process.window_s
    return thread.cpu_share(window_s) + thread.delayed_share(window_s) if thread else 0.0


def main_kind(loader: LoaderCase) -> str:
    """What it was at most often, of all the times it was looked at in its own code."""
    kinds = [kind_of(frames) for frames in (*loader.process.glances, loader.frames) if loop_by_frames(frames) is Loop.COMPUTING]
    return max(kinds, key=kinds.count) if kinds else OWN_CODE


def _slow_advice(kind: str) -> str:
    return {
        CHECKPOINT: "save less often, in a thread, or to a faster disk",
        LOGGING: "log less often, and not in the loop's own thread",
        SAMPLER: "look at the loop around that line: what ends it, and can that fail? Draw large orders as one array (torch.randperm)",
        MODEL: "the step itself is the limit: profile the model (torch.profiler)",
    }.get(kind, "the step itself is the limit: profile the loop (py-spy record, torch.profiler)")


def slow_but_progressing(case: Case) -> Iterator[Finding]:
    """The loop mostly waits for data, and the data comes."""
    for loader in case.loaders:
        if not loader.moved or loader.waiting_share < OFTEN:
            continue
        working = [worker for worker in loader.workers if worker.doing is Doing.LOADING]
        computing = [worker for worker in working if computes(worker, 0.5)]
        where = working[0].place if working else loader.place
        yield finding(
            "slow-but-progressing",
            f"nothing is frozen, but {loader.name} {_share_of_loading(loader)}: {_who_loads(loader, working, computing)}{_where(where)}",
            evidence=[
                f"work went on between the looks ({seconds_text(case.window_s)} apart)",
                *(f"{worker.name}: {percent(worker.process.cpu_share)} CPU, sample {worker.sample or '?'}" for worker in working[:6]),
            ],
            advice=[_faster_advice(loader, working, computing), "`antifreeze profile` measures how many workers are worth it"],
            severity=Severity.SLOW,
            confidence=Confidence.LIKELY,
            where=where,
            pid=loader.process.pid,
        )


def _share_of_loading(loader: LoaderCase) -> str:
    share = percent(loader.waiting_share)
    return f"loads by itself {share} of the time" if _loads_itself(loader) else f"waits for data {share} of the time"


def _loads_itself(loader: LoaderCase) -> bool:
    return any(worker.inline for worker in loader.workers)


def _who_loads(loader: LoaderCase, working: list[Worker], computing: list[Worker]) -> str:
    """How the time goes by, in words."""
    if not working:
        return f"{_all(loader)} for work at this moment, so the hand-over of batches costs more than loading them"
    how = "compute" if len(computing) * 2 > len(working) else "wait for what they read"
    if _loads_itself(loader):
        return f"it has no workers, and its samples {how}"
    return f"{len(working)} of {plural(len(loader.workers), 'worker')} load, and they {how}"


def _faster_advice(loader: LoaderCase, working: list[Worker], computing: list[Worker]) -> str:
    if not working:
        return "larger batches, or fewer workers: more of them will not help; antifreeze.DataLoader hands rows over without pickling"
    if _loads_itself(loader):
        return "workers (num_workers=2 or more) load while the loop computes" if computing else "workers: they load, and wait, side by side"
    return "more workers, where cores are free; a cheaper transform" if computing else "more workers: they overlap their waiting"


def starting_workers(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        starting = [worker for worker in loader.workers if worker.doing is Doing.STARTING]
        if loader.loop is not Loop.STARTING and not starting:
            continue
        where = starting[0].place if starting else loader.place
        yield finding(
            "starting-workers",
            f"{loader.name} starts its workers: {len(loader.workers)} are there, {len(starting)} of them not ready yet{_where(where)}",
            evidence=[f"{worker.name} is {seconds_text(worker.process.age_s)} old: {trace(worker.frames)}" for worker in starting[:6]],
            advice=["spawn and forkserver pickle the data set once per worker: make it small, or use persistent_workers=True"],
            severity=Severity.SLOW,
            confidence=Confidence.LIKELY,
            where=where,
            pid=loader.process.pid,
        )


def healthy(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        if loader.moved:
            yield finding(
                "healthy",
                f"nothing is frozen: {_with_workers(loader)} watched",
                evidence=[f"the loop waited for data in {percent(loader.waiting_share)} of {len(loader.seen)} looks", loop_line(loader)],
                advice=[_if_it_feels_slow(loader)],
                severity=Severity.HEALTHY,
                confidence=Confidence.LIKELY,
                where=loader.place,
                pid=loader.process.pid,
            )


def _with_workers(loader: LoaderCase) -> str:
    if not loader.workers:
        return f"{loader.name} went on while it was"
    return f"{loader.name} and its {plural(len(loader.workers), 'worker')} went on while they were"


def _if_it_feels_slow(loader: LoaderCase) -> str:
    if loader.workers and loader.waiting_share <= SELDOM and is_innocent(loader):
        return "if it feels slow, the loader is innocent: it waits for the loop; profile that (py-spy record, torch.profiler)"
    return "if it feels slow, `--seconds 20` watches longer, and `antifreeze profile` measures the data set"


def no_loader(case: Case) -> Iterator[Finding]:
    """A Python program, but no DataLoader to be seen in it."""
    if case.loaders or case.orphans:
        return
    process = case.exam.process(case.exam.patient)
    main = process.main if process else None
    frames = main.last.frames if main and main.last else ()
    blind = not frames and bool(case.exam.blindness)
    looks = [each for each in (main.first.frames if main and main.first else (), *(process.glances if process else ()), frames) if each]
    kinds = [kind_of(each) for each in looks]
    yield finding(
        "no-loader",
        f"no DataLoader is at work in process {case.exam.patient}"
        + (
            ", as far as can be seen without stacks"
            if blind
            else f": {_always_at(process, main, kinds)}{_where(place(frames))}"
            if kinds
            else ""
        ),
        evidence=[
            f"in {kinds.count(kind)} of {len(kinds)} looks it was in {kind}" if kind != OWN_CODE or len(set(kinds)) > 1 else None
            for kind in dict.fromkeys(kinds)
        ]
        + [f"stack: {trace(frames)}" if frames else None, f"innermost: {short(frames[0])}" if frames else None],
        advice=[
            "if it loads with num_workers=0, loading is not what takes its time",
            "else name the process that trains, or one of its parents (torchrun, the shell)",
        ],
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE if blind else Confidence.LIKELY,
        where=frames[0] if frames else None,
        pid=case.exam.patient,
    )


def _always_at(process: Process | None, main: Thread | None, kinds: list[str]) -> str:
    kind = max(kinds, key=kinds.count)
    if process is not None and main is not None and main.rested(process.window_s):
        wait = wait_of(process, main)
        return f"it waits for {wait.kind.value}"
    return f"it is busy with {kind}"


def unclear(case: Case) -> Iterator[Finding]:
    """Nothing moved, and no rule knows why: all that is known is said, and nothing invented."""
    for loader in case.loaders:
        if loader.moved:
            continue
        doing = listed(f"{worker.name} {worker.doing.value}" for worker in loader.workers)
        yield finding(
            "unclear",
            f"nothing moved in {seconds_text(case.window_s)}, it is not clear why: {loader.name} {loader.loop.value}{_where(loader.place)}",
            evidence=[f"workers: {doing}", f"stack: {trace(loader.frames)}" if loader.frames else None],
            advice=["watch longer: --seconds 30", *(f"{each.what}: {each.allow}" for each in case.exam.blindness)],
            severity=Severity.DISEASE if loader.loop is Loop.WAITING and (loader.waited_s or 0.0) >= LONG_S else Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            where=loader.place,
            pid=loader.process.pid,
            stalled_s=loader.waited_s,
        )
