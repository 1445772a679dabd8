"""What a `__getitem__` does, where all it does is to pick rows: read off its byte code, before it has run.

    def __getitem__(self, i):                                            ──▶  Picks(attributes=("x", "y"))
        return torch.from_numpy(self.x[i]), int(self.y[i])

1. The code is run on symbols. Known are: `self.NAME[index]`; tuples, lists and dicts of such rows; locals; and what makes a row a number
   or a tensor without changing its values (`_MAKERS`, `_METHODS`). Anything else, a branch or a call for one, and nothing is said.
2. Byte code, not source: that is what runs, also where the file has changed since, or there is none (a notebook, exec).
3. What a name of the module or of the builtins means is looked up, and looked up again by `still_means`: they can be changed.
4. What becomes of a row's dtype is not known here: gather.py runs the code on rows made up for that, and compares.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

_MAKERS: tuple[Any, ...] = (
    int,
    float,
    *(each for each in (torch.tensor, torch.as_tensor, torch.from_numpy) if type(each) is BuiltinFunctionType),
)
"""Of a row they make the same values: as a Python number, or as a tensor, of another dtype where one is named."""
_METHODS = frozenset({"clone", "copy", "item", "float", "double", "half", "long", "int"})
_NOT_A_PLAIN_FUNCTION = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_LONGEST = 200
"""Instructions: what picks rows is far shorter."""


@dataclass(frozen=True)
class Picks:
    """The rows that a sample is made of, in the order in which default_collate meets them."""

    attributes: tuple[str, ...]
    code: CodeType
    names: tuple[tuple[str, Any], ...]
    of_torch: tuple[tuple[str, Any], ...]

    def still_means(self, function: Any) -> bool:
        """Whether what was read is what would run now."""
        if type(function) is not FunctionType or function.__code__ is not self.code:
            return False
        if any(vars(torch).get(name) is not meaning for name, meaning in self.of_torch):
            return False
        return all(_look_up(function, name) is meaning for name, meaning in self.names)


def picks_of(function: Any) -> Picks | None:
    """None where it does, or may do, anything but pick rows. Each epoch asks anew; reading takes 0.1 ms, so it is done once."""
    if type(function) is not FunctionType:
        return None
    picks = _read.get(function)
    if picks is None or not picks.still_means(function):
        picks = _read[function] = _read_off(function)
    return picks if picks.attributes else None


_read: WeakKeyDictionary[FunctionType, Picks] = WeakKeyDictionary()


def _read_off(function: FunctionType) -> Picks:
    """With no attributes where it is not that, as far as its names mean what they mean now."""
    code = function.__code__
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & _NOT_A_PLAIN_FUNCTION or code.co_freevars or code.co_cellvars:
        return Picks((), code, (), ())
    run = _Run(function)
    attributes: list[str] = []
    try:
        _collect(run.result(), attributes)
    except _SomethingElse:
        attributes.clear()
    return Picks(tuple(attributes), code, tuple(run.names.items()), tuple(run.of_torch.items()))


class _SomethingElse(Exception):
    """Than picking rows."""


# --- symbols ---


class _Self:
    pass


class _Index:
    pass


class _Null:
    """What the interpreter keeps on its stack beside a function that is no method."""


@dataclass(frozen=True)
class _Attribute:
    name: str


@dataclass(frozen=True)
class _Row:
    attribute: str


@dataclass(frozen=True)
class _Method:
    of: _Row


@dataclass(frozen=True)
class _Known:
    """An object of the program: a constant, a module, a function, a dtype."""

    value: Any


@dataclass(frozen=True)
class _Several:
    parts: tuple[Any, ...]


def _collect(made: Any, attributes: list[str]) -> None:
    if type(made) is _Row:
        attributes.append(made.attribute)
    elif type(made) is _Several and made.parts:
        for part in made.parts:
            _collect(part, attributes)
    else:
        raise _SomethingElse


def _look_up(function: FunctionType, name: str) -> Any:
    if name in function.__globals__:
        return function.__globals__[name]
    builtins = function.__globals__.get("__builtins__", {})
    return (builtins if isinstance(builtins, dict) else vars(builtins)).get(name)


class _Run:
    """One run of the code on symbols, for every version of the byte code from Python 3.10 on."""

    def __init__(self, function: FunctionType) -> None:
        self.names: dict[str, Any] = {}
        self.of_torch: dict[str, Any] = {}
        self._function = function
        self._stack: list[Any] = []
        first, second = function.__code__.co_varnames[:2]
        self._locals: dict[str, Any] = {first: _Self(), second: _Index()}
        self._keywords: tuple[str, ...] = ()

    def result(self) -> Any:
        if getattr(self._function.__code__, "co_exceptiontable", b""):
            raise _SomethingElse
        for count, step in enumerate(dis.get_instructions(self._function.__code__)):
            if step.opname == "RETURN_VALUE":
                return self._pop()
            does = _STEPS.get(step.opname)
            if does is None or count > _LONGEST:
                raise _SomethingElse
            does(self, step)
        raise _SomethingElse

    def _pop(self) -> Any:
        if not self._stack:
            raise _SomethingElse
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    # --- one per kind of instruction ---

    def nothing(self, _: dis.Instruction) -> None:
        pass

    def push_null(self, _: dis.Instruction) -> None:
        self._stack.append(_Null())

    def load_local(self, step: dis.Instruction) -> None:
        for name in step.argval if isinstance(step.argval, tuple) else (step.argval,):
            if name not in self._locals:
                raise _SomethingElse
            self._stack.append(self._locals[name])

    def store_local(self, step: dis.Instruction) -> None:
        for name in step.argval if isinstance(step.argval, tuple) else (step.argval,):
            self._locals[name] = self._pop()

    def store_and_load(self, step: dis.Instruction) -> None:
        stored, loaded = step.argval
        self._locals[stored] = self._pop()
        if loaded not in self._locals:
            raise _SomethingElse
        self._stack.append(self._locals[loaded])

    def swap(self, step: dis.Instruction) -> None:
        depth = 2 if step.opname == "ROT_TWO" else step.arg or 0
        if not 1 <= depth <= len(self._stack):
            raise _SomethingElse
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

    def bury(self, step: dis.Instruction) -> None:
        """Of Python 3.10: the top goes below the next two."""
        if len(self._stack) < 3:
            raise _SomethingElse
        self._stack.insert(-2, self._stack.pop())

    def load_constant(self, step: dis.Instruction) -> None:
        self._stack.append(_Known(step.argval))

    def load_global(self, step: dis.Instruction) -> None:
        name = str(step.argval)
        self.names[name] = meaning = _look_up(self._function, name)
        null = [_Null()] if "NULL" in step.argrepr else []
        self._stack += [*null, _Known(meaning)]

    def load_attribute(self, step: dis.Instruction) -> None:
        owner, name = self._pop(), str(step.argval)
        if type(owner) is _Self:
            self._stack.append(_Attribute(name))
        elif type(owner) is _Row and name in _METHODS:
            self._stack.append(_Method(owner))
        elif type(owner) is _Known and owner.value is torch:
            self.of_torch[name] = meaning = vars(torch).get(name)
            self._stack.append(_Known(meaning))
        else:
            raise _SomethingElse
        if step.opname == "LOAD_METHOD" or "NULL" in step.argrepr:
            self._stack.append(_Null())

    def pick(self, step: dis.Instruction) -> None:
        if step.opname == "BINARY_OP" and step.argrepr != "[]":
            raise _SomethingElse
        owner, key = self._pop_many(2)
        if type(owner) is not _Attribute or type(key) is not _Index:
            raise _SomethingElse
        self._stack.append(_Row(owner.name))

    def build(self, step: dis.Instruction) -> None:
        self._stack.append(_Several(tuple(self._pop_many(step.arg or 0))))

    def build_dict(self, step: dis.Instruction) -> None:
        parts = self._pop_many(2 * (step.arg or 0))
        self._push_dict(parts[::2], parts[1::2])

    def build_dict_of_known_keys(self, step: dis.Instruction) -> None:
        keys = self._pop()
        if type(keys) is not _Known:
            raise _SomethingElse
        self._push_dict([_Known(key) for key in keys.value], self._pop_many(step.arg or 0))

    def _push_dict(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        if any(type(key) is not _Known or type(key.value) is not str for key in keys):
            raise _SomethingElse
        self._stack.append(_Several(tuple({key.value: value for key, value in zip(keys, values, strict=True)}.values())))

    def name_keywords(self, step: dis.Instruction) -> None:
        named = self._function.__code__.co_consts[step.arg] if step.opname == "KW_NAMES" and step.arg is not None else None
        self._keywords = named if isinstance(named, tuple) else ()

    def call(self, step: dis.Instruction) -> None:
        if step.opname in ("CALL_KW", "CALL_FUNCTION_KW"):
            names = self._pop()
            if type(names) is not _Known:
                raise _SomethingElse
            self._keywords = names.value
        given = self._pop_many(step.arg or 0)
        callee = self._pop()
        if type(callee) is _Null:
            callee = self._pop()
        elif self._stack and type(self._stack[-1]) is _Null:
            self._stack.pop()
        keywords, self._keywords = self._keywords, ()
        self._stack.append(_made(callee, given[: len(given) - len(keywords)], dict(zip(keywords, given[-len(keywords) :], strict=False))))


def _made(callee: Any, given: Sequence[Any], named: dict[str, Any]) -> _Row:
    """The row that such a call makes of the one it is given."""
    if type(callee) is _Method and not given and not named:
        return callee.of
    if type(callee) is _Known and any(callee.value is maker for maker in _MAKERS) and len(given) == 1 and type(given[0]) is _Row:
        dtype = named.pop("dtype", _Known(torch.float32))
        if not named and type(dtype) is _Known and isinstance(dtype.value, torch.dtype):
            row: _Row = given[0]
            return row
    raise _SomethingElse


_STEPS: dict[str, Callable[[_Run, dis.Instruction], None]] = {
    **dict.fromkeys(("RESUME", "NOP", "CACHE", "PRECALL", "EXTENDED_ARG"), _Run.nothing),
    **dict.fromkeys(
        (
            *("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST"),
            *("LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"),
        ),
        _Run.load_local,
    ),
    **dict.fromkeys(("STORE_FAST", "STORE_FAST_STORE_FAST"), _Run.store_local),
    **dict.fromkeys(("SWAP", "ROT_TWO"), _Run.swap),
    "ROT_THREE": _Run.bury,
    "STORE_FAST_LOAD_FAST": _Run.store_and_load,
    **dict.fromkeys(("LOAD_CONST", "LOAD_SMALL_INT"), _Run.load_constant),
    "LOAD_GLOBAL": _Run.load_global,
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), _Run.load_attribute),
    **dict.fromkeys(("BINARY_SUBSCR", "BINARY_OP"), _Run.pick),
    **dict.fromkeys(("BUILD_TUPLE", "BUILD_LIST"), _Run.build),
    "BUILD_MAP": _Run.build_dict,
    "BUILD_CONST_KEY_MAP": _Run.build_dict_of_known_keys,
    "PUSH_NULL": _Run.push_null,
    "KW_NAMES": _Run.name_keywords,
    **dict.fromkeys(("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD"), _Run.call),
}
