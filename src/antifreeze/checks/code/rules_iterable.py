"""Iterable data sets: each worker and each rank runs __iter__ for itself, and must take its own part."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from antifreeze.checks.code.module import Module
from antifreeze.checks.code.program import DataSetClass, Kind, LoaderCall, Program
from antifreeze.checks.code.rule import Alarm, own_nodes, rule
from antifreeze.doctor.findings.model import Severity

SOURCES = (
    *("open", "io.open", "gzip.open", "csv.reader", "csv.DictReader", "glob.glob", "os.listdir", "os.scandir", "numpy.load"),
    *("pandas.read_csv", "json.load", "torch.load"),
)
COUNTS = ("range", "len", "numpy.arange")
PASSES_ON = ("iter", "enumerate", "zip", "map", "filter", "islice", "chain", "tqdm")
SPLITS = ("get_worker_info", "worker_id", "num_workers", "worker_info", "sharding_filter", "split_by_worker")
RANKS = ("rank", "world_size", "num_replicas", "split_by_node", "shard", "process_index")


@rule(
    "iterable-not-split",
    "an iterable data set that every worker reads whole",
    why="each worker runs __iter__ for itself: with 4 workers every sample comes four times per epoch, and the epoch is four times as long",
    severity=Severity.DISEASE,
    wrong="""
class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as file:
            yield from file


loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)
""",
    right="""
class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        with open(self.path) as file:
            yield from itertools.islice(file, part, None, parts)


loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)
""",
)
def iterable_not_split(program: Program) -> Iterator[Alarm]:
    for dataset, uses in _iterables(program):
        if any(call.seeds_or_splits_by_itself for call in uses) or mentions(program, dataset, SPLITS):
            continue
        found = dataset.method("__iter__")
        if found is not None and _reads_by_itself(program, dataset):
            yield Alarm(
                found[0],
                found[1],
                f"every worker repeats all of {dataset.name}: its __iter__ does not ask which worker it is in",
                (
                    "split by torch.utils.data.get_worker_info() in __iter__: each takes its share of the samples, or of the files",
                    "or split in worker_init_fn",
                ),
                evidence=tuple(f"loaded with workers at {call.module.path}:{call.node.lineno}" for call in uses[:1]),
            )


@rule(
    "iterable-not-split-by-rank",
    "an iterable data set that every rank of a distributed run reads whole",
    why="no DistributedSampler works on an iterable data set: every GPU trains on the same samples, and nothing says so",
    severity=Severity.DISEASE,
    wrong="""
class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        with open(self.path) as file:
            yield from itertools.islice(file, info.id, None, info.num_workers)


torch.distributed.init_process_group("nccl")
loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)
""",
    right="""
class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        part = torch.distributed.get_rank() * info.num_workers + info.id
        parts = torch.distributed.get_world_size() * info.num_workers
        with open(self.path) as file:
            yield from itertools.islice(file, part, None, parts)


torch.distributed.init_process_group("nccl")
loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)
""",
)
def iterable_not_split_by_rank(program: Program) -> Iterator[Alarm]:
    distributed = {"torch.distributed.init_process_group", "torch.nn.parallel.DistributedDataParallel"} & program.called_names
    if not distributed or program.has_trainer:
        return
    for dataset, uses in _iterables(program, with_workers=False):
        found = dataset.method("__iter__")
        told = any(word in ast.unparse(call.node) for call in uses for word in RANKS)
        if found is None or told or mentions(program, dataset, RANKS) or not _reads_by_itself(program, dataset):
            continue
        advice = ("split by rank too: part rank × num_workers + worker of world_size × num_workers parts",)
        yield Alarm(found[0], found[1], f"every rank repeats all of {dataset.name}: its __iter__ does not ask for the rank", advice)


def _iterables(program: Program, with_workers: bool = True) -> Iterator[tuple[DataSetClass, list[LoaderCall]]]:
    for dataset in program.datasets:
        uses = [call for call in program.uses(dataset) if call.has_workers or not with_workers]
        if dataset.kind is Kind.ITERABLE and uses:
            yield dataset, uses


def mentions(program: Program, dataset: DataSetClass, words: Iterable[str]) -> bool:
    """Anywhere in the class, its bases, or what __iter__ comes to."""
    texts = [ast.unparse(each.node) for each in (dataset, *dataset.bases)]
    texts += [ast.unparse(function) for _, function in program.reached(dataset, "__init__", "__iter__")]
    return any(word in text for text in texts for word in words)


def _reads_by_itself(program: Program, dataset: DataSetClass) -> bool:
    """It opens or counts what it yields; a wrapper of another iterable (which may split itself) does not: it may count in its buffer."""
    nodes = [(module, node) for module, function in program.reached(dataset, "__iter__") for node in own_nodes(function)]
    called = {module.called(node) for module, node in nodes}
    if called & set(SOURCES):
        return True
    return bool(called & set(COUNTS)) and not any(_iterates_attribute(module, node) for module, node in nodes)


def _iterates_attribute(module: Module, node: ast.AST) -> bool:
    """`for x in self.source`, `yield from self.source`, `iter(self.source)`, also through enumerate() and the like."""
    if isinstance(node, (ast.For, ast.comprehension)):
        value = node.iter
    elif isinstance(node, ast.YieldFrom) or (isinstance(node, ast.Call) and module.called(node) == "iter"):
        value = node.value if isinstance(node, ast.YieldFrom) else node
    else:
        return False
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
            return True
        if isinstance(value, ast.Call) and module.called(value).rpartition(".")[2] in PASSES_ON:
            values += value.args
    return False
