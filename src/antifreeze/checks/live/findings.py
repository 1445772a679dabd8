"""What the probes saw, judged: pure, but for the parts of the data set that are looked at where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antifreeze.checks.live.child import Asked
from antifreeze.checks.live.objects import Holding
from antifreeze.checks.live.samples import Look, Seen
from antifreeze.checks.live.subject import Subject
from antifreeze.doctor.facts.model import Frame
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.words import bytes_text, listed, percent

COPIED_MATTERS = 32 * 2**20
PICKLED_MATTERS = 64 * 2**20


def copies(subject: Subject, holdings: Sequence[Holding], memory_available: int) -> Iterator[Finding]:
    """Bytes of Python objects that each forked worker copies as it looks at them."""
    each = sum(holding.copied for holding in holdings)
    if each < COPIED_MATTERS or not subject.workers:
        return
    worst = sorted(holdings, key=lambda holding: -holding.copied)[:4]
    total = each * subject.workers
    too_much = total > memory_available
    room = f", and {bytes_text(memory_available)} are free" if too_much else ""
    yield finding(
        "copy-on-write",
        f"every worker will copy {bytes_text(each)} of Python objects: {bytes_text(total)} with {subject.workers} workers{room}",
        evidence=[
            *(_holding_line(holding) for holding in worst),
            "looking at an object writes its reference count, and the page is copied",
        ],
        advice=[
            "keep many small things in one array: np.array of numbers, of fixed-width bytes (dtype 'S'), or one bytes buffer with offsets",
            "arrays and tensors are shared by forked workers, and not copied",
        ],
        severity=Severity.DISEASE if too_much else Severity.SLOW,
    )


def _holding_line(holding: Holding) -> str:
    part = "" if holding.share == 1 else f" (measured on {percent(holding.share)} of it)"
    return (
        f"{holding.path} ({holding.kind}, {holding.length:,} long, {holding.objects:,} objects): "
        f"{bytes_text(holding.copied)} copied in a forked process that looked at it once{part}"
    )


def pickling(subject: Subject, culprit: str | None, size: int | None) -> Iterator[Finding]:
    """Only asked where workers are fresh processes."""
    if culprit is not None:
        yield finding(
            "not-picklable",
            f"{culprit} cannot be sent to a worker that is started by {subject.start}",
            evidence=["a fresh process gets the data set, collate_fn and worker_init_fn by pickle"],
            advice=[
                "open it in the worker, on first use in __getitem__, or drop it in __getstate__",
                'or multiprocessing_context="fork"; antifreeze.DataLoader also sends lambdas and local classes',
            ],
        )
    elif size is not None and size > PICKLED_MATTERS:
        yield finding(
            "copied-to-every-worker",
            f"each of the {subject.workers} workers gets its own copy of the data set: {bytes_text(size)} each",
            evidence=[f"started by {subject.start}: the data set is pickled, sent and built again once per worker"],
            advice=[
                "memory-map big arrays (np.load(mmap_mode='r')), keep paths instead of contents, or use multiprocessing_context=\"fork\""
            ],
            severity=Severity.SLOW,
        )


# --- samples ---


def samples(subject: Subject, looks: Sequence[Asked[Look]], generators: Sequence[str] | None = ()) -> Iterator[Finding]:
    """`generators`: random generators that the data set holds; None where it holds handles, whose positions look like randomness."""
    for number, asked in enumerate(looks):
        if asked.answer is None:
            yield _no_answer(number, asked.trouble)
            return
    answers = [asked.answer for asked in looks if asked.answer is not None]
    first = answers[0]
    yield from _bad_samples(subject, first)
    if subject.is_iterable:
        yield from _stream(subject, answers)
    elif len(answers) > 1 and generators is not None:
        yield from _random(first, answers[1], generators)


def _no_answer(worker: int, trouble: str) -> Finding:
    code = "sample-never-comes" if "did not answer" in trouble else "sample-kills" if trouble.startswith("it died") else "sample-raises"
    return finding(
        code,
        f"in a forked process, as a worker is, loading the first samples failed: {trouble}",
        evidence=[f"tried as worker {worker}"],
        advice=["`antifreeze.DataLoader(…, sample_timeout_s=30)` names the sample and the line", "try dataset[0] in this process"],
        confidence=Confidence.LIKELY,
    )


def _bad_samples(subject: Subject, look: Look) -> Iterator[Finding]:
    for seen in look.samples:
        if seen.error:
            file, _, line = seen.place.rpartition(":")
            gpu = "CUDA" in seen.error
            yield finding(
                "cuda-in-worker" if gpu else "sample-raises",
                f"sample {seen.index} raises {seen.error} at {seen.place}",
                evidence=["tried in a forked process, as a worker is"],
                advice=[
                    "give CPU tensors, and move the batch in the training loop"
                    if gpu
                    else "repair it, or antifreeze.DataLoader(…, on_bad_sample='skip')"
                ],
                where=Frame("", file, int(line)) if line.isdigit() else None,
            )
            return
        if seen.is_none and not subject.has_own_collate:
            yield finding(
                "none-for-a-bad-sample",
                f"sample {seen.index} is None, and default_collate will fail on it",
                evidence=[f"dataset[{seen.index}] gave None"],
                advice=["raise instead: antifreeze.DataLoader(…, on_bad_sample='skip') leaves bad samples out and lists them"],
            )
            return
        if seen.on_gpu and subject.workers:
            yield finding(
                "cuda-in-worker",
                f"sample {seen.index} lies on the GPU: workers cannot hand it on",
                evidence=[],
                advice=["give CPU tensors, and move the batch in the training loop: batch.to(device, non_blocking=True)"],
            )
            return
    if look.batch_error.startswith("unpicklable: "):
        yield finding(
            "batch-not-picklable",
            f"a batch cannot be sent from a worker: {look.batch_error.removeprefix('unpicklable: ')}",
            evidence=["torch's worker loses such a batch without a word, and the loop waits for ever (pytorch#142884)"],
            advice=["give tensors, arrays, numbers and strings; open handles and lambdas stay in the worker"],
        )
    elif look.batch_error:
        indices = listed([seen.index for seen in look.samples])
        yield finding(
            "samples-do-not-collate",
            f"samples {indices} do not make a batch: {look.batch_error}",
            evidence=[f"collated by {getattr(subject.collate, '__qualname__', type(subject.collate).__name__)}"],
            advice=["samples of different shapes need a collate_fn that pads them, or a transform that makes them equal"],
            confidence=Confidence.LIKELY,
        )


def _random(one: Look, other: Look, generators: Sequence[str]) -> Iterator[Finding]:
    """Random in one worker, and the same numbers in the next."""
    if not (one.samples and other.samples and one.again):
        return
    first, again, beside = one.samples[0], one.again, other.samples[0]
    if None in (first.digest, again.digest, beside.digest) or first.digest == again.digest or first.digest != beside.digest:
        return
    yield finding(
        "random-numbers-repeated",
        f"sample {first.index} is another one each time, but the same in two workers: they draw the same numbers",
        evidence=[
            f"dataset[{first.index}] twice in one process: two different samples",
            "the first time in worker 0 and in worker 1, each seeded as torch seeds them: the same bytes",
            *(f"{path} was made before the workers start" for path in generators),
        ],
        advice=[
            "draw from the global generators (torch, numpy.random, random): they are seeded for each worker",
            "or make the generator where it is used, from the sample: np.random.default_rng((seed, epoch, index))",
        ],
        confidence=Confidence.LIKELY if generators else Confidence.POSSIBLE,
    )


def _stream(subject: Subject, looks: Sequence[Look]) -> Iterator[Finding]:
    if subject.is_pipe or len(looks) < 2 or subject.workers < 2:
        return
    one, other = looks[0].samples, looks[1].samples
    if _are_equal(one, other):
        yield finding(
            "iterable-not-split",
            "two workers began with the same samples: every worker repeats the whole iterable data set",
            evidence=[f"the first {len(one)} samples of worker 0 and of worker 1 of {max(2, subject.workers)} are the same bytes"],
            advice=["split by torch.utils.data.get_worker_info() in __iter__, or in worker_init_fn"],
        )
    elif one and not other and looks[1].ended:
        yield finding(
            "worker-without-data",
            f"worker 1 of {max(2, subject.workers)} gets no sample at all: fewer shards than workers",
            evidence=[f"worker 0 got {len(one)} samples"],
            advice=["fewer workers, or more shards: idle workers cost memory, and ranks with fewer batches make the others wait"],
            severity=Severity.NOTE,
        )


def _are_equal(one: Sequence[Seen], other: Sequence[Seen]) -> bool:
    """The same samples, and not only because all samples are alike."""
    digests = [seen.digest for seen in one]
    return digests == [seen.digest for seen in other] and None not in digests and len(set(digests)) > 1


def ranks(subject: Subject, mine: Look, other: Look) -> Iterator[Finding]:
    if _are_equal(mine.samples, other.samples):
        yield finding(
            "iterable-not-split-by-rank",
            "another rank would begin with the same samples: every rank repeats the whole iterable data set",
            evidence=[f"the first {len(mine.samples)} samples are the same bytes when torch.distributed.get_rank() gives another number"],
            advice=["split by rank too: part rank × num_workers + worker of world_size × num_workers parts"],
            confidence=Confidence.POSSIBLE,
        )
