"""How the DataLoader is called and used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.checks.code.module import Module
from antifreeze.checks.code.program import Kind, LoaderCall, Program
from antifreeze.checks.code.rule import Alarm, rule
from antifreeze.doctor.findings.model import Confidence, Severity

CORE_COUNTS = ("os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count")
DISTRIBUTED_SAMPLER = "DistributedSampler"


@rule(
    "workers-cpu-count",
    "`num_workers=os.cpu_count()`",
    why="it counts the machine's cores: not the container's quota, the affinity, the other ranks on it, or the core the loop needs",
    severity=Severity.SLOW,
    wrong="""
loader = DataLoader(dataset, batch_size=64, num_workers=os.cpu_count())
""",
    right="""
loader = DataLoader(dataset, batch_size=64, num_workers=4)  # `antifreeze profile` measures how many

# or antifreeze.DataLoader(dataset, batch_size=64, num_workers="auto")
""",
)
def workers_cpu_count(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        value = _count_asked_for(call.module, call.given("num_workers"))
        if value is not None and call.module.called(value) in CORE_COUNTS:
            advice = (
                "measure how many are enough: `antifreeze profile module:dataset` draws the curve",
                'antifreeze.DataLoader(…, num_workers="auto") takes what this rank may really use',
            )
            yield Alarm(call.module, call.node, "as many workers as the machine has cores is seldom the best number", advice)


def _count_asked_for(module: Module, value: ast.expr | None) -> ast.expr | None:
    """Also `os.cpu_count() or 1`, and `args.workers` where `--workers` has such a default."""
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or):
        return value.values[0]
    if not isinstance(value, ast.Attribute) or not isinstance(value.value, ast.Name):
        return value
    parsed = module.value_of(value.value)
    if not isinstance(parsed, ast.Call) or not ast.unparse(parsed.func).endswith(".parse_args"):
        return value
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            flags = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if f"--{value.attr.replace('_', '-')}" in flags or f"--{value.attr}" in flags:
                default = next((each.value for each in node.keywords if each.arg == "default"), None)
                return _count_asked_for(module, module.value_of(default)) if default is not None else value
    return value


@rule(
    "shuffle-beside-sampler",
    "`shuffle` beside a sampler, or a batch sampler beside what it replaces",
    why="torch refuses them together (ValueError); the order is the sampler's affair",
    severity=Severity.DISEASE,
    confidence=Confidence.CERTAIN,
    wrong="""
loader = DataLoader(dataset, batch_size=64, shuffle=True, sampler=DistributedSampler(dataset))
""",
    right="""
loader = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset, shuffle=True))
""",
)
def shuffle_beside_sampler(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        given = {name for name in call.arguments if not _is_none(call.given(name))}
        shuffled = call.constant("shuffle", None) is True
        dataset = program.dataset_of(call)
        iterable = dataset is not None and dataset.kind is Kind.ITERABLE
        if shuffled and "sampler" in given:
            yield Alarm(call.module, call.node, "shuffle=True beside sampler= is refused", ("leave shuffle out; the sampler shuffles",))
        elif "batch_sampler" in given and (shuffled or "sampler" in given or call.constant("batch_size", 1) not in (1, ...)):
            advice = ("leave out batch_size, shuffle, sampler and drop_last: the batch sampler decides them",)
            yield Alarm(call.module, call.node, "batch_sampler= beside batch_size, shuffle or sampler is refused", advice)
        elif iterable and (shuffled or "sampler" in given):
            advice = ("shuffle in __iter__, through a buffer: an iterable data set has no indices to draw from",)
            yield Alarm(call.module, call.node, "an iterable data set with shuffle or sampler is refused", advice)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


@rule(
    "options-without-workers",
    "`persistent_workers` or `prefetch_factor` without workers",
    why="torch refuses them with num_workers=0 (ValueError)",
    severity=Severity.DISEASE,
    confidence=Confidence.CERTAIN,
    wrong="""
loader = DataLoader(dataset, batch_size=64, persistent_workers=True)
""",
    right="""
loader = DataLoader(dataset, batch_size=64, num_workers=2, persistent_workers=True)
""",
)
def options_without_workers(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        if call.constant("num_workers", 0) != 0:
            continue
        for name in ("persistent_workers", "prefetch_factor"):
            if call.constant(name, None) not in (None, False, ...):
                yield Alarm(call.module, call.node, f"{name} needs num_workers above 0", ("give num_workers, or leave it out",))


@rule(
    "batch-size-one",
    "training with a batch size of 1, perhaps because it was forgotten (torch's default)",
    why="every sample pays for a message, a collate and a step of the model: the GPU idles between them",
    severity=Severity.NOTE,
    confidence=Confidence.POSSIBLE,
    wrong="""
loader = DataLoader(dataset, shuffle=True, num_workers=4)
""",
    right="""
loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)
""",
)
def batch_size_one(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        trains = call.constant("shuffle", None) is True or ("batch_size" in call.arguments and _is_for_training(call))
        if "batch_sampler" not in call.arguments and trains and call.constant("batch_size", 1) == 1:
            forgotten = "" if "batch_size" in call.arguments else " (torch's default)"
            advice = ("give batch_size=; `antifreeze profile` shows what each size costs",)
            yield Alarm(call.module, call.node, f"batch_size is 1{forgotten}", advice)


def _is_for_training(call: LoaderCall) -> bool:
    """By its name, or by a loop over it that goes backward; one sample at a time is quite right for a test."""
    named = "train" in call.name.lower() if call.name else False
    nodes = (node for loop in loops_over(call) for node in ast.walk(loop))
    return named or any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)


@rule(
    "set-epoch-missing",
    "a `DistributedSampler` that is never given `set_epoch`",
    why="it shuffles by (seed, epoch): every epoch has the same order, and nothing says so",
    severity=Severity.DISEASE,
    wrong="""
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=64, sampler=sampler)
for epoch in range(10):
    for batch in loader:
        train(batch)
""",
    right="""
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=64, sampler=sampler)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for batch in loader:
        train(batch)
""",
)
def set_epoch_missing(program: Program) -> Iterator[Alarm]:
    told = any(isinstance(node, ast.Attribute) and node.attr == "set_epoch" for module in program.modules for node in ast.walk(module.tree))
    if told or program.has_trainer:
        return
    named = any(has_epochs(module) for module in program.modules)
    for call in program.loaders:
        if not named and not is_repeated(call, counted=True):
            continue
        sampler = call.given("sampler")
        if isinstance(sampler, ast.Call) and call.module.called(sampler).rpartition(".")[2] == DISTRIBUTED_SAMPLER:
            shuffle = next((keyword.value for keyword in sampler.keywords if keyword.arg == "shuffle"), None)
            if _is_none(shuffle) and shuffle is not None:
                continue
            advice = (
                "call sampler.set_epoch(epoch) at the head of each epoch",
                "antifreeze.DataLoader advances it by itself where it was forgotten, and says so once",
            )
            yield Alarm(call.module, sampler, "this DistributedSampler is never given set_epoch", advice)


def has_epochs(module: Module) -> bool:
    """A `for epoch in …` that is not empty of loops or calls."""
    return any(isinstance(node, ast.For) and "epoch" in ast.unparse(node.target).lower() for node in ast.walk(module.tree))


def is_repeated(call: LoaderCall, counted: bool = False) -> bool:
    """It is iterated in a loop that it was not made in: once per epoch, whatever that loop's variable is called. With `counted` only
    `for … in range(…)` and `while` are such loops: one over models or thresholds is no training."""
    made = call.node.lineno
    for loop in loops_over(call):
        outer = next((each for each in call.module.above(loop) if isinstance(each, (ast.For, ast.While))), None)
        if outer is None or made in range(outer.lineno, (outer.end_lineno or 0) + 1):
            continue
        if not counted or isinstance(outer, ast.While) or call.module.called(outer.iter).rpartition(".")[2] in ("range", "trange", "count"):
            return True
    return False


def loops_over(call: LoaderCall) -> Iterator[ast.For]:
    """The `for` loops of its module that iterate this loader by its name, also through enumerate(), tqdm() and the like."""
    if not call.name:
        return
    for node in ast.walk(call.module.tree):
        if isinstance(node, ast.For):
            iterated = node.iter
            while isinstance(iterated, ast.Call) and iterated.args:
                iterated = iterated.args[0]
            if ast.unparse(iterated) == call.name:
                yield node


@rule(
    "pin-memory-without-non-blocking",
    "`pin_memory=True`, and copies to the GPU that wait all the same",
    why="pinned memory is worth its cost only where the copy runs beside the computation: `.to(device)` waits for it",
    severity=Severity.SLOW,
    wrong="""
loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
for pictures, labels in loader:
    pictures = pictures.to("cuda")
""",
    right="""
loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
for pictures, labels in loader:
    pictures = pictures.to("cuda", non_blocking=True)
""",
)
def pin_memory_without_non_blocking(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        if call.constant("pin_memory", False) is not True:
            continue
        for loop in loops_over(call):
            names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            copies = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and _copies(call.module, node, names)]
            if copies and not any(_is_asked(node) for node in copies):
                advice = ("give non_blocking=True to the copies of the batch",)
                yield Alarm(call.module, copies[0], "the batch is pinned, but its copy to the GPU waits", advice)


def _copies(module: Module, node: ast.Call, names: set[str]) -> bool:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("to", "cuda"):
        return False
    root = node.func.value
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    if not isinstance(root, ast.Name) or root.id not in names:
        return False
    if node.func.attr == "cuda":
        return True
    place = module.value_of(node.args[0]) if node.args else next((each.value for each in node.keywords if each.arg == "device"), None)
    is_type = place is None or module.dotted(place).startswith("torch.")
    return not is_type and not (isinstance(place, ast.Constant) and place.value == "cpu")


def _is_asked(node: ast.Call) -> bool:
    return any(keyword.arg in ("non_blocking", None) for keyword in node.keywords) or len(node.args) > 2


@rule(
    "persistent-workers-missing",
    "workers that are started again for every epoch",
    why="torch ends its workers after each epoch and starts them anew: imports, caches and open files are lost, and the loop waits",
    severity=Severity.NOTE,
    wrong="""
loader = DataLoader(dataset, batch_size=64, num_workers=8)
for epoch in range(90):
    for batch in loader:
        train(batch)
""",
    right="""
loader = DataLoader(dataset, batch_size=64, num_workers=8, persistent_workers=True)
for epoch in range(90):
    for batch in loader:
        train(batch)
""",
)
def persistent_workers_missing(program: Program) -> Iterator[Alarm]:
    for call in program.loaders:
        workers = call.constant("num_workers", 0)
        known = workers is ... or (isinstance(workers, int) and workers > 0)
        if call.is_ours or not known or not call.is_complete or "persistent_workers" in call.arguments or _is_changed(call):
            continue
        if is_repeated(call):
            advice = ("give persistent_workers=True",)
            yield Alarm(call.module, call.node, "the workers of this loader are started again in every epoch", advice)


def _is_changed(call: LoaderCall) -> bool:
    """The program changes the data set between epochs (`dataset.set_epoch(…)`, `dataset.x = …`): live workers would not see it."""
    name = ast.unparse(call.arguments["dataset"]) if "dataset" in call.arguments else ""
    for node in ast.walk(call.module.tree):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == name
            and (isinstance(node.ctx, ast.Store) or node.attr == "set_epoch")
        ):
            return True
    return False
