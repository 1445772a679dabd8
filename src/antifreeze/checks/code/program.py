"""The script and its local modules, as rules see them: data set classes, DataLoader calls, and which belongs to which."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from antifreeze.checks.code.module import Function, Module, build_module, import_origin
from antifreeze.checks.code.source import Source, read_source
from antifreeze.checks.errors import NotCheckable

MOST_MODULES = 60
LOADER_PACKAGES = ("torch.", "torchdata.", "torch_geometric.", "monai.", "antifreeze.")
LOADER_NAMES = ("DataLoader", "StatefulDataLoader")
LOADER_ARGUMENTS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last"),
    *("timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
TRAINERS = ("lightning.", "pytorch_lightning.", "accelerate.", "transformers.", "composer.", "fastai.")
_REACH = 6


class Kind(Enum):
    MAP = "map"
    ITERABLE = "iterable"


@dataclass(eq=False)
class DataSetClass:
    module: Module
    node: ast.ClassDef
    kind: Kind
    bases: tuple[DataSetClass, ...] = ()
    """Those of the program itself, nearest first."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def full_name(self) -> str:
        return f"{self.module.name}.{self.node.name}"

    def method(self, name: str) -> tuple[Module, Function] | None:
        for owner in (self, *self.bases):
            for each in owner.node.body:
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
                    return owner.module, each
        return None

    @property
    def loading(self) -> tuple[str, ...]:
        """The methods that run in a worker."""
        return ("__getitem__", "__getitems__", "__iter__", "__next__")


@dataclass(eq=False)
class LoaderCall:
    module: Module
    node: ast.Call
    full_name: str
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    is_complete: bool = True
    """No `**options` of unknown content."""

    @property
    def is_ours(self) -> bool:
        return self.full_name.startswith("antifreeze.")

    def given(self, name: str) -> ast.expr | None:
        """What the argument stands for, or None where it was not given."""
        return self.module.value_of(self.arguments[name]) if name in self.arguments else None

    def constant(self, name: str, default: object) -> object:
        """The value where it is known, `...` where it is not."""
        value = self.given(name)
        if value is None:
            return default if self.is_complete else ...
        return value.value if isinstance(value, ast.Constant) else ...

    @property
    def has_workers(self) -> bool:
        """It has, or may have."""
        return self.constant("num_workers", 0) not in (0, None)

    @property
    def seeds_or_splits_by_itself(self) -> bool:
        return self.constant("worker_init_fn", None) is not None

    @property
    def name(self) -> str:
        """The variable it is put into; "" where it is none."""
        parent = self.module.parents.get(self.node)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return ast.unparse(parent.targets[0])
        return ""


@dataclass(eq=False)
class Program:
    modules: list[Module]
    """The script first."""
    unread: list[str] = field(default_factory=list)
    default_start: str = "fork"
    """How workers start where the program does not say."""

    # --- classes ---

    @cached_property
    def datasets(self) -> list[DataSetClass]:
        found: dict[str, DataSetClass] = {}
        nodes = [(module, node) for module in self.modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
        self._by_name = {f"{module.name}.{node.name}": (module, node) for module, node in nodes}
        for name in self._by_name:
            self._classify(name, found, set())
        for name in {module.called(call.given("dataset")) for call in self.loaders for module in [call.module]}:
            if name in self._by_name and name not in found:  # a data set by its methods alone
                module, node = self._by_name[name]
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                if "__getitem__" in methods:
                    found[name] = DataSetClass(module, node, Kind.MAP)
        return list(found.values())

    def _classify(self, name: str, found: dict[str, DataSetClass], asked: set[str]) -> DataSetClass | None:
        if name in found or name in asked or name not in self._by_name:
            return found.get(name)
        asked.add(name)
        module, node = self._by_name[name]
        kind: Kind | None = None
        bases: list[DataSetClass] = []
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base  # Dataset[int]
            above = module.dotted(base)
            own = self._classify(self.canonical(above), found, asked)
            if own is not None:
                kind, bases = kind or own.kind, [*bases, own, *own.bases]
            else:
                kind = kind or _library_kind(above)
        if kind is not None:
            found[name] = DataSetClass(module, node, kind, tuple(bases))
        return found.get(name)

    def canonical(self, name: str) -> str:
        """A name that a local module only hands on, by where it was made."""
        for _ in range(_REACH):
            owner, _, last = name.rpartition(".")
            module = self.module(owner)
            if module is None or last not in module.aliases:
                return name
            name = module.aliases[last]
        return name

    def module(self, name: str) -> Module | None:
        return next((module for module in self.modules if module.name == name), None)

    # --- loaders ---

    @cached_property
    def loaders(self) -> list[LoaderCall]:
        own = self._own_loader_classes()
        calls = []
        for module in self.modules:
            for node in ast.walk(module.tree):
                called = module.value_of(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
                name = self.canonical(module.dotted(called) or module.called(node))  # also `make = DataLoader`, then `make(…)`
                if isinstance(node, ast.Call) and (is_loader_name(name) or name in own):
                    calls.append(_loader_call(module, node, own.get(name, name)))
        return calls

    def _own_loader_classes(self) -> dict[str, str]:
        """Subclasses of a DataLoader that take its arguments: their name -> the loader's."""
        found: dict[str, str] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef) and not any(getattr(each, "name", "") == "__init__" for each in node.body):
                    above = next((name for base in node.bases if is_loader_name(name := module.dotted(base))), None)
                    if above is not None:
                        found[f"{module.name}.{node.name}"] = above
        return found

    def uses(self, dataset: DataSetClass) -> list[LoaderCall]:
        """The loaders that are known to load from it."""
        return [call for call in self.loaders if self.dataset_of(call) is dataset]

    def dataset_of(self, call: LoaderCall) -> DataSetClass | None:
        name = self.canonical(call.module.called(call.given("dataset")))
        return next((each for each in self.datasets if each.full_name == name), None) if name else None

    def may_have_workers(self, dataset: DataSetClass) -> bool:
        """Not only where a loader with workers is seen: most data sets stand in a file of their own."""
        uses = self.uses(dataset)
        return any(call.has_workers for call in uses) if uses else True

    def has_workers(self, dataset: DataSetClass) -> bool:
        return any(call.has_workers for call in self.uses(dataset))

    # --- what a method comes to ---

    def reached(self, dataset: DataSetClass, *methods: str) -> Iterator[tuple[Module, Function]]:
        """These methods, and the methods and plain functions of the program that they call."""
        todo = [found for name in methods if (found := dataset.method(name)) is not None]
        seen: list[Function] = []
        for _ in range(_REACH):
            todo = [(module, function) for module, function in todo if function not in seen]
            yield from todo
            seen += [function for _, function in todo]
            todo = [found for module, function in todo for found in self._called_from(dataset, module, function)]

    def _called_from(self, dataset: DataSetClass, module: Module, function: Function) -> Iterator[tuple[Module, Function]]:
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
                found = dataset.method(node.func.attr)
            else:
                found = self.function(self.canonical(module.called(node)))
            if found is not None:
                yield found

    def function(self, name: str) -> tuple[Module, Function] | None:
        owner, _, last = name.rpartition(".")
        module = self.module(owner)
        for each in module.tree.body if module else ():
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == last:
                return module, each  # type: ignore[return-value]
        return None

    # --- the whole ---

    def calls(self) -> Iterator[tuple[Module, ast.Call, str]]:
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call):
                    yield module, node, self.canonical(module.called(node))

    @cached_property
    def called_names(self) -> frozenset[str]:
        return frozenset(name for _, _, name in self.calls())

    @cached_property
    def has_trainer(self) -> bool:
        """A framework runs the loop, and sees to epochs, devices and ranks."""
        return any(name.startswith(TRAINERS) for module in self.modules for name in module.aliases.values())

    @cached_property
    def start_method(self) -> str:
        for _, node, name in self.calls():
            if name.endswith("multiprocessing.set_start_method") and node.args and isinstance(node.args[0], ast.Constant):
                return str(node.args[0].value)
        return self.default_start

    def start_method_of(self, call: LoaderCall) -> str:
        value = call.given("multiprocessing_context")
        if isinstance(value, ast.Call) and call.module.called(value).endswith("get_context") and value.args:
            value = value.args[0]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        return self.start_method


def is_loader_name(name: str) -> bool:
    return name.rpartition(".")[2] in LOADER_NAMES and name.startswith(LOADER_PACKAGES)


def _library_kind(name: str) -> Kind | None:
    last = name.rpartition(".")[2]
    if name.startswith("torch.utils.data"):
        return Kind.ITERABLE if last.startswith("Iter") else Kind.MAP if last.endswith(("Dataset", "DataPipe", "Subset")) else None
    if name.startswith("torchvision.datasets"):
        return Kind.MAP
    if name.startswith(("torchaudio.datasets", "torch_geometric.data")) and last.endswith("Dataset"):
        return Kind.MAP
    return None


def _loader_call(module: Module, node: ast.Call, name: str) -> LoaderCall:
    call = LoaderCall(module, node, name)
    for position, value in enumerate(node.args):
        if isinstance(value, ast.Starred) or position >= len(LOADER_ARGUMENTS):
            call.is_complete = False
            break
        call.arguments[LOADER_ARGUMENTS[position]] = value
    for keyword in node.keywords:
        if keyword.arg is not None:
            call.arguments[keyword.arg] = keyword.value
        elif (spread := _spread(module, keyword.value)) is not None:
            call.arguments.update(spread)
        else:
            call.is_complete = False
    return call


def _spread(module: Module, node: ast.expr) -> dict[str, ast.expr] | None:
    """`**options` where options is a dict of constants keys that nobody changes."""
    changed = isinstance(node, ast.Name) and any(
        (isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == node.id)
        or (isinstance(each, ast.Call) and ast.unparse(each.func) == f"{node.id}.update")
        for each in ast.walk(module.tree)
    )
    value = module.value_of(node)
    if isinstance(value, ast.Dict) and not changed and all(isinstance(key, ast.Constant) for key in value.keys):
        return {str(key.value): part for key, part in zip(value.keys, value.values, strict=True) if isinstance(key, ast.Constant)}
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "dict" and not value.args and not changed:
        return {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg is not None}
    return None


# --- reading ---


def read_program(path: str, default_start: str = "fork") -> Program:
    """The script, and what it imports from beside itself; a local module that cannot be read is named in `unread`."""
    return follow_imports(read_source(path), default_start)


def follow_imports(script: Source, default_start: str = "fork") -> Program:
    root = Path(os.path.dirname(os.path.abspath(script.path)))
    program = Program([build_module("__main__", script)], default_start=default_start)
    todo = [program.modules[0]]
    seen = {os.path.abspath(script.path)}
    while todo and len(program.modules) < MOST_MODULES:
        module = todo.pop(0)
        for name in _imported_names(module):
            file = _local_file(root, name)
            if file is None or str(file) in seen:
                continue
            seen.add(str(file))
            try:
                found = build_module(name, read_source(_shown(file)))
            except NotCheckable as error:
                program.unread.append(str(error))
                continue
            program.modules.append(found)
            todo.append(found)
    return program


def _imported_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = import_origin(module.name, module.path.endswith("__init__.py"), node)
            yield origin
            yield from (f"{origin}.{alias.name}".lstrip(".") for alias in node.names)


def _local_file(root: Path, name: str) -> Path | None:
    if not name:
        return None
    place = root.joinpath(*name.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _shown(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative
