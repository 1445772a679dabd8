"""What a fresh worker needs: under spawn and forkserver (Python 3.14's default) all is pickled, and the script imported again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.checks.code.module import Function, Module
from antifreeze.checks.code.program import LoaderCall, Program
from antifreeze.checks.code.rule import Alarm, rule
from antifreeze.checks.code.rules_init import init_attributes
from antifreeze.doctor.findings.model import Confidence, Severity

FRESH = ("spawn", "forkserver")


@rule(
    "not-picklable-under-spawn",
    "a lambda, or a function or class made inside a function, that must reach a fresh worker",
    why="pickle sends functions and classes by name, and these have none that a fresh process could import",
    severity=Severity.DISEASE,
    wrong="""
torch.multiprocessing.set_start_method("spawn")
loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=lambda samples: pad(samples))
""",
    right="""
def collate(samples):
    return pad(samples)


torch.multiprocessing.set_start_method("spawn")
if __name__ == "__main__":
    loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=collate)
""",
)
def not_picklable_under_spawn(program: Program) -> Iterator[Alarm]:
    for call in fresh_loaders(program):
        how = program.start_method_of(call)
        for argument, value in call.arguments.items():
            told = _nameless(program, call.module, value)
            if told is None and argument == "dataset":
                told = _nameless_in_dataset(program, call)
            if told is not None:
                module, node, what = told
                advice = (
                    "give it a name at the top of the module",
                    "antifreeze.DataLoader sends such things by value (cloudpickle)",
                )
                yield Alarm(module, node, f"{what} cannot be sent to a worker that is started by {how}", advice)


def fresh_loaders(program: Program) -> Iterator[LoaderCall]:
    for call in program.loaders:
        if not call.is_ours and call.has_workers and program.start_method_of(call) in FRESH:
            yield call


def _nameless(program: Program, module: Module, value: ast.expr) -> tuple[Module, ast.AST, str] | None:
    value = module.value_of(value)
    if isinstance(value, ast.Lambda):
        return module, value, "a lambda"
    if isinstance(value, ast.Name):
        local = _local_function(module, value)
        return (module, value, f"the local function {local.name}") if local else None
    return None


def _nameless_in_dataset(program: Program, call: LoaderCall) -> tuple[Module, ast.AST, str] | None:
    made = call.given("dataset")
    if not isinstance(made, ast.Call):
        return None
    given = _kept_lambda(call.module, made)
    if given is not None:
        return call.module, given, "a lambda"
    dataset = program.dataset_of(call)
    if dataset is None:
        return None
    if not isinstance(dataset.module.scope_of(dataset.node), ast.Module):
        return call.module, made, f"the local class {dataset.name}"
    if any(dataset.method(name) for name in ("__getstate__", "__reduce__", "__reduce_ex__")):
        return None  # it says itself what is sent
    for module, _, attribute, value in init_attributes(program, dataset):
        kept = _kept_lambda(module, value)
        if kept is not None:
            return module, kept, f"{dataset.name}.{attribute}, a lambda,"
    return None


def _kept_lambda(module: Module, value: ast.expr) -> ast.Lambda | None:
    """One that the value still holds: given to a class or in a list, and not used up on the way, as the key of `sorted` is."""
    if isinstance(value, ast.Lambda):
        return value
    parts: list[ast.expr] = []
    if isinstance(value, (ast.List, ast.Tuple)):
        parts = value.elts
    elif isinstance(value, ast.Dict):
        parts = value.values
    elif isinstance(value, ast.Call) and module.called(value).rpartition(".")[2][:1].isupper():
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
    return next((found for part in parts if (found := _kept_lambda(module, part)) is not None), None)


def _local_function(module: Module, name: ast.Name) -> Function | None:
    scope = module.scope_of(name)
    while not isinstance(scope, ast.Module):
        for each in ast.walk(scope):
            if isinstance(each, ast.FunctionDef) and each is not scope and each.name == name.id and module.scope_of(each) is scope:
                return each
        scope = module.scope_of(scope)
    return None


@rule(
    "no-main-guard",
    "workers that are started as the script is imported",
    why="a fresh worker imports the script again; without the guard it would start workers of its own, and Python stops it (RuntimeError)",
    severity=Severity.DISEASE,
    confidence=Confidence.CERTAIN,
    wrong="""
torch.multiprocessing.set_start_method("spawn")
loader = DataLoader(dataset, batch_size=8, num_workers=2)
for batch in loader:
    train(batch)
""",
    right="""
def main():
    torch.multiprocessing.set_start_method("spawn")
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    for batch in loader:
        train(batch)


if __name__ == "__main__":
    main()
""",
)
def no_main_guard(program: Program) -> Iterator[Alarm]:
    script = program.modules[0]
    starters = {call.node for call in fresh_loaders(program)}
    for statement in script.tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or _is_guard(statement):
            continue
        node = _starts_workers(program, script, statement, starters, set())
        if node is not None:
            advice = ('put what the script does into a function, and call it below `if __name__ == "__main__":`',)
            yield Alarm(script, statement, "workers are started while the script is imported, which they do themselves", advice)
            return


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _starts_workers(program: Program, module: Module, where: ast.AST, loaders: set[ast.Call], seen: set[Function]) -> ast.AST | None:
    """The loader call that running this comes to, directly or through functions of the program."""
    for node in ast.walk(where):
        if node in loaders:
            return node
        found = program.function(program.canonical(module.called(node))) if isinstance(node, ast.Call) else None
        if found is not None and found[1] not in seen:
            seen.add(found[1])
            deeper = _starts_workers(program, found[0], found[1], loaders, seen)
            if deeper is not None:
                return deeper
    return None
