"""What __getitem__ and __iter__ should not do: they run in a worker, and whoever waits for them waits without a word."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.checks.code.module import Function, Module
from antifreeze.checks.code.program import Kind, Program
from antifreeze.checks.code.rule import Alarm, own_nodes, rule
from antifreeze.doctor.findings.model import Confidence, Severity

LIMITED_BY = {
    **{f"requests.{verb}": "timeout" for verb in ("get", "post", "put", "head", "request")},
    **{f"httpx.{verb}": "" for verb in ("get", "post")},  # has a limit of its own
    "urllib.request.urlopen": "timeout",
    **{f"subprocess.{name}": "timeout" for name in ("run", "call", "check_call", "check_output")},
    "socket.create_connection": "timeout",
}
SESSIONS = ("requests.Session", "requests.session", "requests.sessions.Session")
SESSION_VERBS = ("get", "post", "put", "head", "request")
QUEUES = {f"{owner}.{kind}" for owner in ("queue", "multiprocessing", "torch.multiprocessing") for kind in ("Queue", "SimpleQueue")}
ASKING = {*LIMITED_BY, "time.sleep", "os.path.exists", "os.path.isfile", "os.path.isdir", "os.access"}
ASKED_OF_PATHS = {"exists", "is_file", "is_dir"}
POOL_SIZES = {"torch.set_num_threads", "cv2.setNumThreads", "numexpr.set_num_threads", "mkl.set_num_threads", "numba.set_num_threads"}
CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.")
GROWING = {"append", "extend", "add", "update", "write", "pop", "popleft", "remove", "discard", "get_nowait"}
RANDOM = ("random.", "numpy.random.", "torch.rand", "torch.randint", "torch.randperm")
POOLED = (
    "cvtColor",
    "resize",
    "warpAffine",
    "warpPerspective",
    "remap",
    "GaussianBlur",
    "medianBlur",
    "blur",
    "filter2D",
    "flip",
    "rotate",
)


@rule(
    "none-for-a-bad-sample",
    "an exception that is swallowed, so that `__getitem__` gives `None`",
    why="default_collate fails on None far from the cause, or a custom one shrinks the batch; which samples are bad is never known",
    severity=Severity.DISEASE,
    wrong="""
class Pictures(Dataset):
    def __getitem__(self, index):
        try:
            return decode(self.paths[index])
        except Exception:
            return None
""",
    right="""
class Pictures(Dataset):
    def __getitem__(self, index):
        return decode(self.paths[index])


# antifreeze.DataLoader(..., on_bad_sample="skip", bad_samples_file="bad.jsonl") leaves bad samples out, and lists them
""",
)
def none_for_a_bad_sample(program: Program) -> Iterator[Alarm]:
    for dataset in program.datasets:
        found = dataset.method("__getitem__")
        if found is None or any(call.constant("collate_fn", None) is not None for call in program.uses(dataset)):
            continue  # a collate function of its own may well expect None
        module, function = found
        for node in own_nodes(function):
            if isinstance(node, ast.Try):
                for handler in node.handlers:
                    place = _gives_none(node, handler, function)
                    if place is not None:
                        yield Alarm(
                            module,
                            place,
                            f"{dataset.name}.__getitem__ gives None when {_caught(handler)} is raised",
                            (
                                "let it raise: antifreeze.DataLoader(…, on_bad_sample='skip', bad_samples_file='bad.jsonl') goes on "
                                "without the sample and writes down which it was",
                            ),
                        )


def _gives_none(node: ast.Try, handler: ast.ExceptHandler, function: Function) -> ast.AST | None:
    for each in own_nodes(handler):
        if isinstance(each, ast.Return) and (each.value is None or _is_none(each.value)):
            return each
        if isinstance(each, ast.Assign) and _is_none(each.value) and _is_all_that_is_given(each, node, function):
            return each
    silent = all(isinstance(each, (ast.Pass, ast.Expr)) for each in handler.body)
    if silent and _stays_none(node, function):
        return handler
    ends_function = function.body[-1] is node and not node.finalbody and any(isinstance(each, ast.Return) for each in ast.walk(node))
    return handler if silent and ends_function else None


def _is_none(value: ast.expr) -> bool:
    """None, or a tuple of nothing else."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(_is_none(each) for each in value.elts)
    return isinstance(value, ast.Constant) and value.value is None


def _is_all_that_is_given(node: ast.Assign, tried: ast.Try, function: Function) -> bool:
    """`except OSError: sample = None`, and right after the try `return sample`."""
    following = function.body[function.body.index(tried) + 1 :] if tried in function.body else []
    given = following[0].value if following and isinstance(following[0], ast.Return) else None
    return isinstance(given, ast.Name) and _sets(node, given.id)


def _stays_none(node: ast.Try, function: Function) -> bool:
    """`sample = None`, then a `try:` that may fail to set it, then `return sample`."""
    if node not in function.body or not isinstance(last := function.body[-1], ast.Return) or not isinstance(last.value, ast.Name):
        return False
    before, after = function.body[: function.body.index(node)], function.body[function.body.index(node) + 1 :]
    name = last.value.id
    begins = [each for each in before if isinstance(each, ast.Assign) and _sets(each, name)]
    is_none = bool(begins) and isinstance(value := begins[-1].value, ast.Constant) and value.value is None
    return is_none and any(_sets(each, name) for each in node.body) and len(after) == 1


def _sets(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target))


def _caught(handler: ast.ExceptHandler) -> str:
    return ast.unparse(handler.type) if handler.type is not None else "anything"


@rule(
    "loop-without-limit",
    "a loop in `__getitem__` that nothing bounds: it tries again for ever, or draws until something fits",
    why="for one sample where it never succeeds, the worker never comes back, and torch's loader waits without a word",
    severity=Severity.DISEASE,
    wrong="""
class Pictures(Dataset):
    def __getitem__(self, index):
        while True:
            try:
                return decode(self.paths[index])
            except OSError:
                time.sleep(1)
""",
    right="""
class Pictures(Dataset):
    def __getitem__(self, index):
        for attempt in range(3):
            try:
                return decode(self.paths[index])
            except OSError:
                time.sleep(1)
        raise OSError(f"{self.paths[index]} cannot be read")
""",
)
def loop_without_limit(program: Program) -> Iterator[Alarm]:
    for dataset in program.datasets:
        if dataset.kind is Kind.ITERABLE:  # an endless stream is a stream
            continue
        for module, function in program.reached(dataset, "__getitem__", "__getitems__"):
            for node in own_nodes(function):
                told = _endless(module, node) if isinstance(node, ast.While) else None
                if told is not None:
                    why, sure = told
                    yield Alarm(
                        module,
                        node,
                        f"this loop of {dataset.name}.{function.name} {why}",
                        (
                            "bound it: `for attempt in range(…)`, and raise after the last one",
                            "antifreeze.DataLoader(…, sample_timeout_s=60) ends a sample that never comes, and names its line",
                        ),
                        confidence=sure,
                    )


def _endless(module: Module, loop: ast.While) -> tuple[str, Confidence] | None:
    always = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    exits = list(_exits(loop))
    if always and not exits:
        return "has no end", Confidence.CERTAIN
    swallowed = [each for each in exits if _is_tried(module, each, loop)]
    if always and len(swallowed) == len(exits):
        return "tries again for ever where the sample cannot be read", Confidence.LIKELY
    called = {name for node in ast.walk(loop) if (name := module.called(node))}
    counts = any(_counts(node) for node in ast.walk(loop))
    if any(name.startswith(RANDOM) for name in called) and not counts:
        return "draws until something fits, and nothing says that something will", Confidence.POSSIBLE
    if "cv2.imread" in called and _is_nothing(loop.test) and not counts and len(swallowed) == len(exits):
        return f"reads again while `{ast.unparse(loop.test)}`, which a file that cannot be decoded is for ever", Confidence.LIKELY
    asks = (bool(called & ASKING) or _asks_for_a_path(loop)) and not any(name.startswith(CLOCKS) for name in called)
    if asks and not counts and len(swallowed) == len(exits) and _wants_an_answer(loop):
        return f"asks again while `{ast.unparse(loop.test)}`, and nothing says that this will end", Confidence.LIKELY
    return None


def _is_nothing(test: ast.expr) -> bool:
    """`picture is None`"""
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and ast.unparse(test.comparators[0]) == "None"


def _wants_an_answer(loop: ast.While) -> bool:
    """`while r.status_code != 200`, `while not ready`; not `while url is not None` or `while queue`, which run out, nor what grows."""
    test = loop.test
    wants = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    if isinstance(test, ast.Compare):
        wants = not any(isinstance(side, ast.Constant) and side.value is None for side in test.comparators)
    grows = (node.func.attr for node in ast.walk(loop) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return wants and not set(grows) & GROWING


def _asks_for_a_path(loop: ast.While) -> bool:
    """`while not Path(name).exists()`"""
    calls = [node.func for node in ast.walk(loop.test) if isinstance(node, ast.Call)]
    return any(isinstance(called, ast.Attribute) and called.attr in ASKED_OF_PATHS for called in calls)


def _counts(node: ast.AST) -> bool:
    """`tries += 1`, or `tries = tries + 1`."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        return any(ast.unparse(target) == ast.unparse(node.value.left) for target in node.targets)
    return isinstance(node, ast.AugAssign)


def _exits(loop: ast.AST, inner: bool = False) -> Iterator[ast.stmt]:
    """Statements that leave the loop: return, raise, and its own breaks."""
    for child in ast.iter_child_nodes(loop):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.Return, ast.Raise)) or (isinstance(child, ast.Break) and not inner):
            yield child
        yield from _exits(child, inner or isinstance(child, (ast.For, ast.While, ast.AsyncFor)))


def _is_tried(module: Module, exit: ast.stmt, loop: ast.While) -> bool:
    """It stands in a `try:` whose handlers stay in the loop."""
    below: ast.AST = exit
    for above in module.above(exit):
        if isinstance(above, ast.Try) and below in [*above.body, *above.orelse]:
            stays = [handler for handler in above.handlers if not any(True for _ in _exits(handler))]
            if stays:
                return True
        if above is loop:
            return False
        below = above
    return False


@rule(
    "read-without-limit",
    "a network call or program that is waited for without a limit",
    why="a server that takes the request and never answers holds the worker for ever; the others wait for its batch",
    severity=Severity.DISEASE,
    wrong="""
class Remote(Dataset):
    def __getitem__(self, index):
        return decode(requests.get(self.urls[index]).content)
""",
    right="""
class Remote(Dataset):
    def __getitem__(self, index):
        return decode(requests.get(self.urls[index], timeout=20).content)
""",
)
def read_without_limit(program: Program) -> Iterator[Alarm]:
    for module, function, who in worker_code(program):
        for node in own_nodes(function):
            call = module.called(node)
            if not isinstance(node, ast.Call):
                continue
            missing = _missing_limit(module, node, call)
            if missing is not None:
                name = ast.unparse(node.func)
                yield Alarm(
                    module,
                    node,
                    f"{who} waits for {name}() without a limit",
                    (missing, "antifreeze.DataLoader(…, sample_timeout_s=60) bounds every sample, whatever it waits for"),
                )


def _missing_limit(module: Module, node: ast.Call, call: str) -> str | None:
    given = {keyword.arg for keyword in node.keywords}
    if None in given:
        return None
    if LIMITED_BY.get(call) and LIMITED_BY[call] not in given:
        enough = {"urllib.request.urlopen": 3, "socket.create_connection": 2}.get(call, 99)
        return f"give it {LIMITED_BY[call]}=" if len(node.args) < enough else None
    if isinstance(node.func, ast.Attribute) and "timeout" not in given:
        made = module.called(module.value_of(node.func.value))
        if made in SESSIONS and node.func.attr in SESSION_VERBS:
            return "give it timeout="
        waits = len(node.args) < 2 and not {ast.unparse(value) for value in (*node.args, *(each.value for each in node.keywords))} & {
            "False"
        }
        if made in QUEUES and node.func.attr == "get" and waits:
            return "give it timeout=: whoever should put something in may be gone"
        if made == "subprocess.Popen" and node.func.attr in ("communicate", "wait") and not node.args:
            return "give it timeout=, and kill the program when it is over"
    if call in ("fcntl.flock", "fcntl.lockf") and len(node.args) > 1:
        how = ast.unparse(node.args[1])
        if "LOCK_NB" not in how and "LOCK_UN" not in how:
            return "ask with LOCK_NB, and give up after some tries: the holder may be stopped, or on another machine"
    return None


def worker_code(program: Program) -> Iterator[tuple[Module, Function | ast.Lambda, str]]:
    """(module, function, who it is) of everything of the program that runs in a worker."""
    seen: set[Function] = set()
    for dataset in program.datasets:
        if program.may_have_workers(dataset):
            for module, function in program.reached(dataset, *dataset.loading):
                if function not in seen:
                    seen.add(function)
                    yield module, function, f"{dataset.name}.{function.name}" if module.class_of(function) else function.name
    for call in program.loaders:
        for argument in ("collate_fn", "worker_init_fn"):
            if not call.has_workers:
                continue
            value = call.given(argument)
            if isinstance(value, ast.Lambda):
                yield call.module, value, argument
            found = program.function(program.canonical(call.module.dotted(call.arguments.get(argument))))
            if found is not None and found[1] not in seen:
                seen.add(found[1])
                yield found[0], found[1], f"{argument} {found[1].name}"


@rule(
    "cuda-in-worker",
    "the GPU is used in a data set or collate function",
    why="a forked worker cannot use CUDA (`Cannot re-initialize CUDA in forked subprocess`); a spawned one takes its own 500 MB of the GPU",
    severity=Severity.DISEASE,
    wrong="""
class Pictures(Dataset):
    def __getitem__(self, index):
        return decode(self.paths[index]).to("cuda")


loader = DataLoader(Pictures(), batch_size=32, num_workers=4)
""",
    right="""
class Pictures(Dataset):
    def __getitem__(self, index):
        return decode(self.paths[index])


loader = DataLoader(Pictures(), batch_size=32, num_workers=4, pin_memory=True)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)
""",
)
def cuda_in_worker(program: Program) -> Iterator[Alarm]:
    for module, function, who in worker_code(program):
        for node in own_nodes(function):
            if isinstance(node, ast.Call) and _goes_to_gpu(module, node):
                advice = ("give CPU tensors, and move the batch in the training loop: batch.to(device, non_blocking=True)",)
                yield Alarm(module, node, f"{who} uses the GPU in a worker", advice)


def _goes_to_gpu(module: Module, node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and module.dotted(node.func) != "torch.cuda":
        return not module.dotted(node.func).startswith("torch.")
    places = [keyword.value for keyword in node.keywords if keyword.arg == "device"]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        places += node.args[:1]
    return any(is_gpu(module, place) for place in places)


def is_gpu(module: Module, node: ast.expr) -> bool:
    value = module.value_of(node)
    if isinstance(value, ast.IfExp):  # "cuda" if torch.cuda.is_available() else "cpu"
        return is_gpu(module, value.body) or is_gpu(module, value.orelse)
    if isinstance(value, ast.Call) and module.called(value) == "torch.device" and value.args:
        return is_gpu(module, value.args[0])
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("cuda")


@rule(
    "threads-in-workers",
    "OpenCV or OpenMP with a thread pool of its own in every worker",
    why="each worker starts a thread per core: workers × cores threads fight, and a pool that is forked while busy hangs",
    severity=Severity.SLOW,
    wrong="""
class Pictures(Dataset):
    def __getitem__(self, index):
        picture = cv2.imread(self.paths[index])
        return cv2.resize(picture, (224, 224))


loader = DataLoader(Pictures(), batch_size=32, num_workers=8)
""",
    right="""
cv2.setNumThreads(0)  # the workers are the parallelism


class Pictures(Dataset):
    def __getitem__(self, index):
        picture = cv2.imread(self.paths[index])
        return cv2.resize(picture, (224, 224))


loader = DataLoader(Pictures(), batch_size=32, num_workers=8)
""",
)
def threads_in_workers(program: Program) -> Iterator[Alarm]:
    for module, function, who in worker_code(program):
        for node in own_nodes(function):
            size = node.args[0] if isinstance(node, ast.Call) and module.called(node) in POOL_SIZES and node.args else None
            if isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value > 1:
                advice = ("leave it at one thread: torch sets that in every worker, and the workers are the parallelism",)
                yield Alarm(module, node, f"{who} gives every worker {size.value} threads ({ast.unparse(node)})", advice)
    if "cv2.setNumThreads" in program.called_names:
        return
    for dataset in program.datasets:
        if program.has_workers(dataset):
            for module, function in program.reached(dataset, *dataset.loading):
                for node in own_nodes(function):
                    owner, _, name = module.called(node).rpartition(".")
                    if owner == "cv2" and name in POOLED:
                        advice = ("call cv2.setNumThreads(0) before the workers start, or in worker_init_fn",)
                        yield Alarm(module, node, f"cv2.{name}() starts a thread pool in every worker", advice)
                        return
