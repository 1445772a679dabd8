"""One module of the program: what its names mean, as far as simple names tell.

    from torch.utils import data            data.DataLoader  ->  "torch.utils.data.DataLoader"
    W = os.cpu_count()                      W                ->  the expression os.cpu_count()
    self.rng = Generator()                  self.rng         ->  the expression Generator()

A name that is assigned twice, or by a loop, an argument or an unpacking, has no known value.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from antifreeze.checks.code.source import Source

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_STARRED = ("DataLoader", "Dataset", "IterableDataset", "DistributedSampler", "get_worker_info", "TensorDataset", "Subset")
_FOLLOWED = 8


@dataclass
class Module:
    name: str
    """As it is imported; "__main__" for the script itself."""
    source: Source
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    assigned: dict[tuple[ast.AST, str], list[ast.expr | None]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.source.path

    @property
    def tree(self) -> ast.Module:
        return self.source.tree

    # --- names ---

    def dotted(self, node: ast.AST | None) -> str:
        """The full dotted name of a Name or Attribute; "" for anything else. A name of this module begins with the module's."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id if self.is_builtin(node.id) else f"{self.name}.{node.id}")
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""

    def is_builtin(self, name: str) -> bool:
        return name in _BUILTINS and (self.tree, name) not in self.assigned

    def called(self, node: ast.AST | None) -> str:
        """The full dotted name of what is called; "" where it is no call."""
        return self.dotted(node.func) if isinstance(node, ast.Call) else ""

    # --- places ---

    def scope_of(self, node: ast.AST) -> Scope:
        while not isinstance(parent := self.parents.get(node, self.tree), _SCOPES):
            node = parent
        return parent

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((each for each in self.above(node) if isinstance(each, ast.ClassDef)), None)

    # --- values ---

    def value_of(self, node: ast.expr) -> ast.expr:
        """What a simple name or `self.x` stands for; the expression itself where that is not known."""
        for _ in range(_FOLLOWED):
            value = self._one_step(node)
            if value is None:
                break
            node = value
        return node

    def _one_step(self, node: ast.expr) -> ast.expr | None:
        if isinstance(node, ast.Name):
            scope: ast.AST | None = self.scope_of(node)
            while scope is not None:
                if (scope, node.id) in self.assigned:
                    values = self.assigned[scope, node.id]
                    return values[0] if len(values) == 1 else None
                scope = None if isinstance(scope, ast.Module) else self.scope_of(scope)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            owner = self.class_of(node)
            values = self.assigned.get((owner, f"self.{node.attr}"), []) if owner else []
            return values[0] if len(values) == 1 else None
        return None


_BUILTINS = frozenset(dir(builtins))


def build_module(name: str, source: Source) -> Module:
    module = Module(name, source)
    for node in ast.walk(source.tree):
        for child in ast.iter_child_nodes(node):
            module.parents[child] = node
    for node in ast.walk(source.tree):
        _note_import(module, node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
            module.assigned.update({(node, argument.arg): [None] for argument in given if argument is not None})
        for target, value in _assignments(node):
            _note_assignment(module, node, target, value)
    return module


def import_origin(module_name: str, is_package: bool, node: ast.ImportFrom) -> str:
    """The absolute name of the module a `from … import` takes from."""
    if not node.level:
        return node.module or ""
    package = module_name.split(".")
    above = package[: len(package) - node.level + (1 if is_package else 0)]
    return ".".join([*above, *([node.module] if node.module else [])])


def _note_import(module: Module, node: ast.AST) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            module.aliases[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        origin = import_origin(module.name, module.path.endswith("__init__.py"), node)
        for alias in node.names:
            if alias.name == "*":
                module.aliases.update({name: f"{origin}.{name}" for name in _STARRED} if origin.startswith("torch.utils.data") else {})
            else:
                module.aliases[alias.asname or alias.name] = f"{origin}.{alias.name}".lstrip(".")


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        yield node.target, node.value
    elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None


def _note_assignment(module: Module, node: ast.AST, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            _note_assignment(module, node, part, None)
    elif isinstance(target, ast.Name):
        module.assigned.setdefault((module.scope_of(node), target.id), []).append(value)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        owner = module.class_of(node)
        if owner is not None:
            module.assigned.setdefault((owner, f"self.{target.attr}"), []).append(value)
