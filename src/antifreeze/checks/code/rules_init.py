"""What a data set's __init__ should not do: it runs once, in the parent, and workers inherit what it left."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.checks.code.module import Module
from antifreeze.checks.code.program import DataSetClass, Program
from antifreeze.checks.code.rule import Alarm, own_nodes, rule
from antifreeze.doctor.findings.model import Confidence, Severity

DECODERS = (
    *("PIL.Image.open", "cv2.imread", "torchvision.io.read_image", "torchvision.io.decode_image", "imageio.imread", "imageio.v2.imread"),
    *("imageio.v3.imread", "skimage.io.imread", "matplotlib.image.imread", "torchaudio.load", "librosa.load", "soundfile.read"),
    *("torchvision.io.read_video", "nibabel.load", "pydicom.dcmread", "tifffile.imread", "rasterio.open"),
)
READERS = ("numpy.load", "torch.load")
HANDLES = {
    "h5py.File": "an HDF5 file",
    "lmdb.open": "an LMDB environment",
    "lmdb.Environment": "an LMDB environment",
    "zipfile.ZipFile": "a zip file",
    "tarfile.open": "a tar file",
    "tarfile.TarFile": "a tar file",
    "sqlite3.connect": "a database connection",
    "psycopg2.connect": "a database connection",
    "psycopg.connect": "a database connection",
    "pymysql.connect": "a database connection",
    "duckdb.connect": "a database connection",
    "socket.socket": "a socket",
    "socket.create_connection": "a socket",
    "open": "a file",
    "io.open": "a file",
    "gzip.open": "a file",
    "netCDF4.Dataset": "an HDF5 file",
    "tables.open_file": "an HDF5 file",
    "rocksdb.DB": "a database",
}
WHOLE_FILES = ("json.load", "json.loads", "orjson.loads", "ujson.load", "ujson.loads", "pickle.load", "yaml.safe_load", "yaml.load")
_READING = ("open", "read", "load", "decode")
LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")
GENERATORS = (
    *("numpy.random.default_rng", "numpy.random.Generator", "numpy.random.RandomState", "random.Random", "torch.Generator"),
    *("jax.random.PRNGKey", "jax.random.key"),
)
_ONLY_ASKED = ("size", "width", "height", "shape", "mode", "info", "format", "ndim", "dtype")


@rule(
    "data-loaded-in-init",
    "a data set that decodes every file in `__init__`",
    why="the whole data set must fit into memory, the first batch comes after the last file, and under spawn each worker gets a copy",
    severity=Severity.SLOW,
    wrong="""
class Pictures(Dataset):
    def __init__(self, paths):
        self.pictures = [Image.open(path).convert("RGB") for path in paths]

    def __getitem__(self, index):
        return self.pictures[index]
""",
    right="""
class Pictures(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, index):
        return Image.open(self.paths[index]).convert("RGB")
""",
)
def data_loaded_in_init(program: Program) -> Iterator[Alarm]:
    for dataset in program.datasets:
        for module, function in program.reached(dataset, "__init__"):
            for loop in own_nodes(function):
                call = _stored_decode(module, loop)
                if call is not None:
                    name = ast.unparse(call.func)
                    sure = Confidence.LIKELY if module.called(call) in DECODERS else Confidence.POSSIBLE
                    advice = ("keep the paths in __init__, and load one sample in __getitem__: that runs in the workers, side by side",)
                    yield Alarm(module, call, f"{dataset.name} loads every sample in __init__ ({name})", advice, confidence=sure)


def _stored_decode(module: Module, loop: ast.AST) -> ast.Call | None:
    """A decoder that a loop calls for each file, and whose result is kept in `self` or a list; not one that is only asked for its size."""
    if _is_short(module, loop):
        return None
    if isinstance(loop, (ast.ListComp, ast.DictComp)):
        kept = [loop.elt] if isinstance(loop, ast.ListComp) else [loop.value]
    elif isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
        kept = list(_kept_values(loop))
    else:
        return None
    tainted: dict[str, ast.Call] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            call = _decode_in(module, node.value, {})
            if call is not None:
                tainted[node.targets[0].id] = call
        elif isinstance(node, ast.With):
            for item in node.items:
                call = _decode_in(module, item.context_expr, {})
                if call is not None and isinstance(item.optional_vars, ast.Name):
                    tainted[item.optional_vars.id] = call
    return next((call for value in kept if (call := _decode_in(module, value, tainted)) is not None), None)


def _is_short(module: Module, loop: ast.AST) -> bool:
    """Over a few things that are written out: `for split in ("train", "val")`."""
    iterated = loop.generators[0].iter if isinstance(loop, (ast.ListComp, ast.DictComp)) else getattr(loop, "iter", None)
    return isinstance(iterated, ast.expr) and isinstance(module.value_of(iterated), (ast.Tuple, ast.List, ast.Dict, ast.Set))


def _kept_values(loop: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend") and node.args:
            yield node.args[0]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node.value


def _is_read_whole(module: Module, call: ast.Call) -> bool:
    """`file.read()` of a file that was opened as bytes, and `path.read_bytes()`."""
    if not isinstance(call.func, ast.Attribute) or call.args:
        return False
    if call.func.attr == "read_bytes":
        return True
    owner = call.func.value
    opened = next((each for each in module.above(call) if isinstance(each, ast.With)), None)
    items = [item for item in opened.items if isinstance(item.optional_vars, ast.Name)] if opened else []
    source = next((item.context_expr for item in items if ast.unparse(item.optional_vars or owner) == ast.unparse(owner)), owner)
    return call.func.attr == "read" and isinstance(source, ast.Call) and module.called(source) == "open" and _opens_bytes(source)


def _opens_bytes(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else next((each.value for each in call.keywords if each.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and "b" in str(mode.value)


def _decode_in(module: Module, value: ast.expr, tainted: dict[str, ast.Call]) -> ast.Call | None:
    if isinstance(value, ast.Attribute) and value.attr in _ONLY_ASKED:
        return None
    if isinstance(value, ast.Call):
        if _is_read_whole(module, value):
            return value
        name = module.called(value)
        if name in DECODERS or (name in READERS and not _is_mapped(value)):
            return value
        if name == "len":
            return None
    if isinstance(value, ast.Name):
        return tainted.get(value.id)
    parts = (part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
    return next((call for part in parts if (call := _decode_in(module, part, tainted)) is not None), None)


@rule(
    "objects-loaded-in-init",
    "a file that `__init__` reads whole into Python objects, which are the samples",
    why="every object that a worker looks at is copied for it (its reference count is written), so memory grows with each worker",
    severity=Severity.NOTE,
    confidence=Confidence.POSSIBLE,
    wrong="""
class Texts(Dataset):
    def __init__(self, path):
        with open(path) as file:
            self.texts = json.load(file)

    def __getitem__(self, index):
        return encode(self.texts[index]["text"])
""",
    right="""
class Texts(Dataset):
    def __init__(self, path):
        self.path = path
        self.starts = np.load(path + ".starts.npy", mmap_mode="r")  # where each line begins: one array, which no worker copies

    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            file.seek(self.starts[index])
            return encode(json.loads(file.readline())["text"])
""",
)
def objects_loaded_in_init(program: Program) -> Iterator[Alarm]:
    for dataset, module, node, attribute, value in carried_to_workers(program):
        call = _whole_file(module, value) if attribute in _indexed_in_worker(program, dataset) else None
        if call is not None:
            advice = (
                "keep what is large in arrays, Arrow or a file that is mapped, and find a sample in it by its place",
                "`antifreeze.check(dataset)` measures what the workers would copy",
            )
            what = f"{dataset.name}.{attribute} holds every sample as Python objects ({ast.unparse(call.func)})"
            yield Alarm(module, node, what, advice)


def _indexed_in_worker(program: Program, dataset: DataSetClass) -> set[str]:
    """The attributes that __getitem__ takes its sample from by the index; none where it reads a file, which they then only name."""
    found = dataset.method("__getitem__")
    if found is None or len(found[1].args.args) < 2:
        return set()
    for _, function in program.reached(dataset, *dataset.loading):
        for node in own_nodes(function):
            if isinstance(node, ast.Call) and any(word in ast.unparse(node.func).lower() for word in _READING):
                return set()
    index = found[1].args.args[1].arg
    taken = [node for node in own_nodes(found[1]) if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == index]
    owners = [ast.unparse(node.value) for node in taken]
    return {owner.removeprefix("self.") for owner in owners if owner.startswith("self.")}


def _whole_file(module: Module, value: ast.expr) -> ast.Call | None:
    """json.load(f), json.load(f)["rows"], list(json.load(f)), [json.loads(line) for line in f]"""
    value = module.value_of(value)
    if isinstance(value, ast.Call):
        if module.called(value) in WHOLE_FILES:
            return value
        return _whole_file(module, value.args[0]) if module.called(value) in ("list", "sorted") and value.args else None
    if isinstance(value, ast.Subscript):
        return _whole_file(module, value.value)
    return _whole_file(module, value.elt) if isinstance(value, ast.ListComp) else None


def _is_mapped(call: ast.Call) -> bool:
    return any(keyword.arg in ("mmap_mode", "mmap") for keyword in call.keywords)


def init_attributes(program: Program, dataset: DataSetClass) -> Iterator[tuple[Module, ast.Assign | ast.AnnAssign, str, ast.expr]]:
    """(module, statement, attribute, value) for each `self.attribute = value` that __init__ comes to, unless it is taken back there."""
    for module, function in program.reached(dataset, "__init__"):
        if module.class_of(function) is None:
            continue
        text = ast.unparse(function)
        for node in own_nodes(function):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                    taken_back = (f"self.{target.attr}.close()", f"self.{target.attr} = None", f"del self.{target.attr}")
                    if not any(words in text for words in taken_back):
                        yield module, node, target.attr, module.value_of(node.value)


def carried_to_workers(program: Program) -> Iterator[tuple[DataSetClass, Module, ast.Assign | ast.AnnAssign, str, ast.expr]]:
    """The same of every data set whose loader may have workers."""
    for dataset in program.datasets:
        if program.may_have_workers(dataset):
            yield from ((dataset, *found) for found in init_attributes(program, dataset))


@rule(
    "handle-opened-in-init",
    "a file, database or archive that is opened in `__init__` and used in the workers",
    why="forked workers share its position, locks and connection: they read each other's bytes, fail a checksum, or hang",
    severity=Severity.DISEASE,
    wrong="""
class Volumes(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r")

    def __getitem__(self, index):
        return self.file["volumes"][index]


loader = DataLoader(Volumes("scans.h5"), batch_size=8, num_workers=4)
""",
    right="""
class Volumes(Dataset):
    def __init__(self, path):
        self.path = path
        self.file = None

    def __getitem__(self, index):
        if self.file is None:  # in the worker, on first use
            self.file = h5py.File(self.path, "r")
        return self.file["volumes"][index]


loader = DataLoader(Volumes("scans.h5"), batch_size=8, num_workers=4)
""",
)
def handle_opened_in_init(program: Program) -> Iterator[Alarm]:
    for dataset, module, node, attribute, value in carried_to_workers(program):
        kind = HANDLES.get(_opened_by(module, value))
        if kind is not None:
            yield Alarm(
                module,
                node,
                f"{dataset.name}.{attribute} is {kind} that is opened before the workers are forked",
                (f"set self.{attribute} = None in __init__, and open it on first use in the worker",),
            )
    for module, node, name in _shared_names(program):
        kind = HANDLES.get(_opened_by(module, node.value))
        if kind is not None:
            advice = (f"set {name} = None here, and open it on first use in the worker",)
            yield Alarm(module, node, f"{name} is {kind} that is opened before the workers are forked", advice)


def _opened_by(module: Module, value: ast.expr) -> str:
    """What opened it: also behind `h5py.File(path)["pictures"]` and `lmdb.open(path).begin()`, which keep the file open."""
    value = module.value_of(value)
    if isinstance(value, ast.Subscript) and (isinstance(value.slice, ast.JoinedStr) or _is_text(value.slice)):
        return _opened_by(module, value.value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "begin":
        return _opened_by(module, value.func.value)
    return module.called(value)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _shared_names(program: Program) -> Iterator[tuple[Module, ast.Assign, str]]:
    """Names of a module, or of a data set's class, that loading a sample uses: `LOCK = Lock()` above, and `with LOCK:` in __getitem__."""
    for dataset in program.datasets:
        if not program.may_have_workers(dataset):
            continue
        used = _used_in_worker(program, dataset)
        owners = [(module, module.tree.body, f"{module.name}.") for module in program.modules]
        owners += [(each.module, each.node.body, "self.") for each in (dataset, *dataset.bases)]
        for module, body, before in owners:
            for node in body:
                name = node.targets[0].id if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else ""
                if isinstance(node, ast.Assign) and before + name in used:
                    yield module, node, name if before != "self." else f"{dataset.name}.{name}"


def _used_in_worker(program: Program, dataset: DataSetClass) -> set[str]:
    """ "module.NAME" and "self.name" that loading mentions, and does not set itself."""
    mentioned, made = set[str](), set[str]()
    for module, function in program.reached(dataset, *dataset.loading):
        for node in own_nodes(function):
            if isinstance(node, ast.Name):
                kept = mentioned if isinstance(node.ctx, ast.Load) else made
                kept.add(program.canonical(module.dotted(node)))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                (mentioned if isinstance(node.ctx, ast.Load) else made).add(f"self.{node.attr}")
    return mentioned - made


@rule(
    "lock-in-dataset",
    "a lock that a data set carries into its workers",
    why="a lock that is held while a worker is forked, or whose holder is killed, is never opened again: the loader freezes without a word",
    severity=Severity.DISEASE,
    confidence=Confidence.POSSIBLE,
    wrong="""
class Records(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index):
        with self.lock:
            return read_record(self.paths[index])
""",
    right="""
class Records(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, index):
        return read_record(self.paths[index])  # several processes may read one file without a lock
""",
)
def lock_in_dataset(program: Program) -> Iterator[Alarm]:
    carried: list[tuple[Module, ast.Assign | ast.AnnAssign, str, ast.expr]] = [
        (module, node, f"{dataset.name}.{attribute}", value) for dataset, module, node, attribute, value in carried_to_workers(program)
    ]
    carried += [(module, node, name, node.value) for module, node, name in _shared_names(program)]
    for module, node, what, value in carried:
        name = module.called(value)
        if not name.endswith(tuple(f".{lock}" for lock in LOCKS)) or "asyncio" in name:
            continue
        shared = "multiprocessing" in name or "_ctx" in name
        whose = "all workers share" if shared else "each worker gets its own copy of"
        yield Alarm(
            module,
            node,
            f"{what} is a lock that {whose}",
            (
                "reading files from several processes needs no lock; leave it out",
                "where something must be locked, lock a file (fcntl.flock with a limit): the kernel opens it when its holder dies",
            ),
            confidence=Confidence.LIKELY if shared else Confidence.POSSIBLE,
        )


@rule(
    "random-numbers-repeated",
    "a random generator of the data set's own, made before the workers start",
    why="every worker gets a copy in the same state: all draw the same numbers, and the same again in the next epoch",
    severity=Severity.DISEASE,
    wrong="""
class Crops(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        left = self.rng.integers(0, 32)
        return load(self.paths[index])[:, left:]
""",
    right="""
class Crops(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, index):
        left = int(torch.randint(0, 32, ()))  # torch seeds the global generators in each worker
        return load(self.paths[index])[:, left:]
""",
)
def random_numbers_repeated(program: Program) -> Iterator[Alarm]:
    for dataset in program.datasets:
        uses = program.uses(dataset)
        if not program.may_have_workers(dataset) or any(call.seeds_or_splits_by_itself for call in uses):
            continue
        drawn = _drawn_in_worker(program, dataset)
        for module, node, attribute, value in init_attributes(program, dataset):
            if module.called(_unseeded(value)) in GENERATORS and f"self.{attribute}" in drawn:
                yield _repeated(module, node, f"{dataset.name}.{attribute}")
        for module in program.modules:
            for each in module.tree.body:
                name = each.targets[0].id if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) else None
                if isinstance(each, ast.Assign) and f"{module.name}.{name}" in drawn and module.called(each.value) in GENERATORS:
                    yield _repeated(module, each, str(name))


def _unseeded(value: ast.expr) -> ast.expr:
    """torch.Generator().manual_seed(0) is the generator."""
    seeds = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed"
    return value.func.value if seeds and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else value


def _drawn_in_worker(program: Program, dataset: DataSetClass) -> set[str]:
    """The generators that loading a sample uses: "self.rng", "module.rng"; not those it seeds itself."""
    drawn: set[str] = set()
    seeded: set[str] = set()
    for module, function in program.reached(dataset, *dataset.loading):
        for node in own_nodes(function):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                name = owner if owner.startswith("self.") else module.dotted(node.value)
                (seeded if node.attr in ("seed", "manual_seed") else drawn).add(name)
            elif isinstance(node, ast.Assign):
                seeded.update(ast.unparse(target) for target in node.targets)
            elif isinstance(node, ast.keyword) and node.arg == "generator":
                drawn.add(ast.unparse(node.value))
    return drawn - seeded - _seeded_elsewhere(dataset)


def _seeded_elsewhere(dataset: DataSetClass) -> set[str]:
    """Generators that a method other than __init__ seeds: somebody calls it in each worker (as DataPipes do)."""
    methods = [each for owner in (dataset, *dataset.bases) for each in owner.node.body if getattr(each, "name", "__init__") != "__init__"]
    calls = [node for method in methods for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return {ast.unparse(node.value) for node in calls if node.attr in ("seed", "manual_seed")}


def _repeated(module: Module, node: ast.AST, name: str) -> Alarm:
    return Alarm(
        module,
        node,
        f"{name} is a random generator that every worker repeats",
        (
            "draw from the global generators (torch, numpy.random, random): they are seeded for each worker",
            "or make it where it is used, from the sample: np.random.default_rng((seed, epoch, index))",
            "or make it anew in worker_init_fn from torch.initial_seed()",
        ),
    )
