"""The rules of docs/architecture.md as functions: source text in, breaches out (one line each). No file is read here.

A module is named by its path below src/antifreeze: "loader.py", "supervisor/state.py", "plan/__init__.py".
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator

PACKAGE = "antifreeze"

# Top to bottom. Each name is a module or package directly below src/antifreeze; it imports itself and what stands in lower rows.
# Names joined by "+" stand together and may import each other; other names of one row may not.
LAYERS: dict[str, tuple[str, ...]] = {
    "the programs": ("__main__", "selftest", "profiling"),
    "the public names": ("__init__",),
    "running scripts": ("running",),
    "of whole data sets": ("lengths", "caching"),
    "what users call": ("cli", "loader+report+verdict", "replay", "tracing"),
    "before the run": ("checks",),
    "explaining": ("doctor",),
    "handing out": ("delivery",),
    "deciding how many": ("tuning",),
    "running workers": ("supervisor",),
    "in the child": ("worker",),
    "what workers fill": ("slots", "channel", "plan"),
    "where samples come from": ("batching", "sources", "packing", "distributed"),
    "the vocabulary": (
        *("events", "choices", "cgroups", "descriptors", "gate", "linux", "living", "naming"),
        *("options", "parts", "saying", "signals", "spans", "torch_private"),
    ),
    "the bottom": ("errors",),
}

PURE_FILES = (
    "supervisor/state.py",
    "supervisor/tasks.py",
    "supervisor/exchange.py",
    "supervisor/desk.py",
    "supervisor/losses.py",
    "supervisor/hedging.py",
    "supervisor/races.py",
    "supervisor/policy.py",
    "verdict.py",
    "tuning/belief.py",
    "tuning/decide.py",
    "tuning/setting.py",
    "tuning/sharing.py",
    "tuning/window.py",
    "doctor/findings*",
    "profiling/recommend.py",
)
NOT_IN_PURE_FILES = ("os", "time", "multiprocessing", "torch")

MAY_START_OR_KILL = (
    "supervisor/process.py",
    "supervisor/by_context.py",
    "supervisor/clean_server.py",
    "supervisor/nursery.py",
    "worker/server.py",
    "worker/nursery.py",
    "doctor/*",
    "checks/live/child.py",
    "selftest/*",
    "cli.py",
)
# worker.kill() is not among them: that asks process.py, whose object it is. Whoever cannot make a process cannot hold another one.
STARTS_OR_KILLS = re.compile(
    r"((os|signal)\.)?(fork|forkpty|posix_spawnp?|spawn[lv]p?e?|system|popen|kill|killpg|pidfd_send_signal)|(.*\.)?(Process|Popen)|subprocess\..*"
)

WAIT_AT_GATES = ("channel/*", "delivery/*", "supervisor/*", "worker/*", "gate.py")
NOT_AT_GATES = {"Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}

MAY_SELECT = ("worker/held_loop.py",)  # which asks its number first

MAY_TOUCH_TORCH_PRIVATE = ("torch_private.py",)
KNOWN_PRIVATE = {"_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter", "_DatasetKind"}


def layer_breaches(module: str, source: str) -> list[str]:
    here = _layer_name(module)
    if here not in _places():
        return [f"{module}: stands in no layer; add {here!r} to LAYERS"]
    return [
        f"{module}:{line}: imports {target}, which does not stand below {here}"
        for line, target in _imports(module, source)
        if target.split(".")[0] == PACKAGE and not _may_import(here, _target_name(target))
    ]


def purity_breaches(module: str, source: str) -> list[str]:
    if not _matches(module, PURE_FILES):
        return []
    return [
        f"{module}:{line}: imports {target}, but this file decides and does not act"
        for line, target in _imports(module, source)
        if target.split(".")[0] in NOT_IN_PURE_FILES
    ]


def process_breaches(module: str, source: str) -> list[str]:
    if _matches(module, MAY_START_OR_KILL):
        return []
    calls = [call for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    return [
        f"{module}:{call.lineno}: calls {ast.unparse(call.func)}(), but only {MAY_START_OR_KILL[0]} starts or ends processes"
        for call in calls
        if STARTS_OR_KILLS.fullmatch(ast.unparse(call.func))
    ]


def torch_private_breaches(module: str, source: str) -> list[str]:
    if _matches(module, MAY_TOUCH_TORCH_PRIVATE):
        return []
    tree = ast.parse(source)
    found = [(line, target) for line, target in _imports(module, source) if target.startswith("torch.") and _has_private_part(target)]
    of_torch = _names_bound_to_torch(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and (_root_name(node) in of_torch or node.attr in KNOWN_PRIVATE):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Call) and _last_name(node.func) == "getattr" and _root_name(node.args[0]) in of_torch:
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)):
                found.append((node.lineno, ast.unparse(node)))
    return [f"{module}:{line}: touches torch's private {name}, but only torch_private.py may" for line, name in found]


def waiting_breaches(module: str, source: str) -> list[str]:
    """Where a signal's handler, or ThreadEnded, may raise at any moment."""
    imports = {target.split(".")[0] for _, target in _imports(module, source)}
    if not _matches(module, WAIT_AT_GATES) or not imports & {"threading", "multiprocessing", "asyncio"}:
        return []
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Attribute, ast.Name, ast.alias))]
    return [
        f"{module}:{node.lineno}: uses {name} of threading, whose lock is lost to an exception that falls into it: gate.py"
        for node in names
        if (name := _last_name(node) if not isinstance(node, ast.alias) else node.name) in NOT_AT_GATES
    ]


def select_breaches(module: str, source: str) -> list[str]:
    if _matches(module, MAY_SELECT):
        return []
    calls = [call for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    return [
        f"{module}:{call.lineno}: select.select() takes no file number above 1023: descriptors.wait_readable"
        for call in calls
        if ast.unparse(call.func) == "select.select"
    ]


RULES = (layer_breaches, purity_breaches, process_breaches, torch_private_breaches, waiting_breaches, select_breaches)


def _places() -> dict[str, tuple[int, str]]:
    """name -> (row counted from the bottom, the group it stands in)."""
    rows = enumerate(reversed(LAYERS.values()))
    return {name: (row, group) for row, groups in rows for group in groups for name in group.split("+")}


def _may_import(here: str, target: str) -> bool:
    (row, group), (target_row, target_group) = _places()[here], _places().get(target, (len(LAYERS), target))
    return group == target_group or target_row < row


def _layer_name(module: str) -> str:
    return module.removesuffix(".py").split("/")[0]


def _target_name(target: str) -> str:
    """ "antifreeze.supervisor.state" -> "supervisor"; the package itself, or a public name in it, -> "__init__"."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in _places() else "__init__"


def _imports(module: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything imported, wherever in the file it stands; relative ones made absolute."""
    package = [PACKAGE, *module.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = [*above, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*origin, alias.name])) for alias in node.names)


def _names_bound_to_torch(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or "torch") for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _has_private_part(target: str) -> bool:
    return any(_is_private(part) for part in target.split("."))
