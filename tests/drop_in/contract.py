"""What "the same as torch" means: one comparison, one way to run a loader, one way to choose the class under test.

Promised behaviour:
1. `difference(ours, torchs)` is None exactly when types, dtypes, shapes, strides, values (bit for bit, NaN included) and the tree agree.
2. `run(cls, case, num_workers)` seeds everything, builds everything afresh, and gives what came: batches, or batches and an error.
"""

from __future__ import annotations

import os
import random
import re
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""For the few rows where torch itself was another before 2.13; everything else holds from 2.4 on."""
TAKES_NUMPY_BOOLS = True
"""torch.tensor(np.bool_(True)) is an error in older ones of torch with newer ones of numpy (2.7 with 2.5, for one)."""
try:
    torch.tensor(np.bool_(True))
except TypeError:
    TAKES_NUMPY_BOOLS = False
CLASS_UNDER_TEST = os.environ.get("ANTIFREEZE_CONTRACT_CLASS", "antifreeze")
Torchs: Any = torch.utils.data.DataLoader
Ours: Any
if CLASS_UNDER_TEST == "torch":
    Ours = Torchs
elif CLASS_UNDER_TEST == "torchdata":
    from torchdata.stateful_dataloader import StatefulDataLoader

    Ours = StatefulDataLoader
else:
    import antifreeze

    Ours = antifreeze.DataLoader

EVERYTHING = "ANTIFREEZE_CONTRACT_EVERYTHING" in os.environ  # also our own promises, to see another class break them
ours_only = pytest.mark.skipif(CLASS_UNDER_TEST != "antifreeze" and not EVERYTHING, reason="a promise torch does not make")
stateful_only = pytest.mark.skipif(CLASS_UNDER_TEST == "torch", reason="torch has no state_dict")

REPEATS = pytest.mark.filterwarnings("ignore:antifreeze. two workers began with the same samples")
"""For streams that are the same in every worker on purpose: we say so, torch does not; the batches are torch's."""

TOO_MANY_WORKERS = "This DataLoader will create"  # torch warns above the number of cores; how many we have is no contract


@dataclass(frozen=True)
class Case:
    """One row of a table. `make` builds the data set, `kwargs` the loader's arguments (given the data set, so samplers are fresh)."""

    name: str
    make: Callable[[], Any]
    kwargs: Callable[[Any], dict[str, Any]] = lambda _: {}
    epochs: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass
class Outcome:
    batches: list[Any] = field(default_factory=list)
    error: Exception | None = None


def rows(cases: Sequence[Any]) -> Any:
    names = [str(case) for case in cases]
    assert len(set(names)) == len(names), "two rows of one name"
    return pytest.mark.parametrize("case", cases, ids=names)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_states() -> tuple[bytes, bytes, bytes]:
    name, keys, position, *rest = np.random.get_state()
    return repr(random.getstate()).encode(), repr((name, keys.tobytes(), position, rest)).encode(), torch.get_rng_state().numpy().tobytes()


def build(cls: Any, dataset: Any, **kwargs: Any) -> Any:
    """The loader, without torch's warning about more workers than cores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
        return cls(dataset, **kwargs)


def drain(loader: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
        return list(loader)


def run(cls: Any, case: Case, num_workers: int = 0, *, seed: int = 7, **more: Any) -> Outcome:
    seed_all(seed)
    outcome = Outcome()
    try:
        dataset = case.make()
        loader = build(cls, dataset, **{"num_workers": num_workers, **case.kwargs(dataset), **more})
        for _ in range(case.epochs):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
                for batch in loader:
                    outcome.batches.append(batch)  # what came before an error counts
            outcome.batches.append("end of epoch")
    except Exception as error:
        outcome.error = without_frames(error)
    return outcome


def without_frames(error: Exception) -> Exception:
    """Frames would keep the iterator and its workers alive; torch's then take 5 s each to go."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def assert_same(ours: Any, torchs: Any) -> None:
    found = difference(ours, torchs)
    assert found is None, found


def assert_same_outcome(ours: Outcome, torchs: Outcome, torch_without_workers: Outcome | None = None) -> None:
    """The same batches; or an error of the same type that says what torch's says in its last line.

    torch's workers collate into shared memory (`out=`), and fail, or fail otherwise, on some batches that torch makes without workers:
    there ours may do what torch does without workers.
    """
    try:
        assert_same_error(ours.error, torchs.error)
        assert_same(ours.batches, torchs.batches)
    except AssertionError:
        if torchs.error is None or torch_without_workers is None:
            raise
        assert_same_outcome(ours, torch_without_workers)


def assert_same_error(ours: Exception | None, torchs: Exception | None) -> None:
    if torchs is None:
        if ours is not None:
            raise AssertionError(f"torch loads this, ours raised {type(ours).__name__}: {ours}") from ours
        return
    assert ours is not None, f"torch raised {type(torchs).__name__}: {torchs}; ours raised nothing"
    assert isinstance(ours, type(torchs)), f"torch raised {type(torchs).__name__}: {torchs}; ours {type(ours).__name__}: {ours}"
    told = last_line(torchs) in str(ours) or re.search(r"\bsample \d+\b", str(ours))  # naming the sample is better than torch's words
    assert told, f"torch says {last_line(torchs)!r}, ours says {str(ours)!r}"


def last_line(error: Exception) -> str:
    """The words of the original error: torch puts the worker's whole traceback before them, and the type's name."""
    lines = str(error).strip().splitlines()
    last = lines[-1] if lines else ""
    return last.split(": ", 1)[1] if len(lines) > 1 and ": " in last else last


def difference(ours: Any, torchs: Any, where: str = "batches") -> str | None:
    if type(ours) is not type(torchs):
        return f"{where}: ours is a {type(ours).__name__} {ours!r:.200}, torch's a {type(torchs).__name__} {torchs!r:.200}"
    if torchs is None or type(torchs) is object:
        return None
    if isinstance(torchs, torch.Tensor):
        return _tensor_difference(ours, torchs, where)
    if isinstance(torchs, np.ndarray):
        return _first(
            _unequal(where, "dtype", ours.dtype, torchs.dtype),
            _unequal(where, "shape", ours.shape, torchs.shape),
            _unequal(where, "strides", ours.strides, torchs.strides),
            lambda: (
                _unequal(where, "values", ours.tolist(), torchs.tolist())
                if torchs.dtype.hasobject
                else _unequal(where, "bytes", ours.tobytes(), torchs.tobytes())
            ),
        )
    if isinstance(torchs, float):
        return _unequal(where, "bits", struct.pack("d", ours), struct.pack("d", torchs))
    if isinstance(torchs, Mapping):
        return _first(
            _unequal(where, "keys", list(ours), list(torchs)),
            lambda: _first(*(_later(ours[key], torchs[key], f"{where}[{key!r}]") for key in torchs)),
            _later(getattr(ours, "__dict__", None), getattr(torchs, "__dict__", None), f"vars({where})"),
        )
    if isinstance(torchs, Sequence) and not isinstance(torchs, (str, bytes)):
        return _first(
            _unequal(where, "length", len(ours), len(torchs)),
            lambda: _first(*(_later(ours[i], torchs[i], f"{where}[{i}]") for i in range(len(torchs)))),
        )
    if hasattr(torchs, "__dict__") and not isinstance(torchs, type):
        return difference(vars(ours), vars(torchs), f"vars({where})")
    return _unequal(where, "value", ours, torchs)


def _tensor_difference(ours: torch.Tensor, torchs: torch.Tensor, where: str) -> str | None:
    facts = ("dtype", "layout", "device", "requires_grad", "is_leaf", "is_nested", "is_quantized")
    for fact in facts:
        found = _unequal(where, fact, getattr(ours, fact), getattr(torchs, fact))
        if found:
            return found
    if torchs.is_nested:
        return difference(list(ours.unbind()), list(torchs.unbind()), f"{where}.unbind()")
    if torchs.layout is torch.sparse_coo:
        parts = [
            ("shape", lambda t: t.shape),
            ("coalesced", lambda t: t.is_coalesced()),
            ("indices", lambda t: t._indices()),
            ("values", _coo_values),
        ]
        return _first(*(_later(get(ours), get(torchs), f"{where}.{name}") for name, get in parts))
    if torchs.layout is torch.sparse_csr:
        parts = [("shape", lambda t: t.shape), ("crow", lambda t: t.crow_indices()), ("col", lambda t: t.col_indices())]
        parts.append(("values", lambda t: t.values()))
        return _first(*(_later(get(ours), get(torchs), f"{where}.{name}") for name, get in parts))
    return _first(
        _unequal(where, "shape", tuple(ours.shape), tuple(torchs.shape)),
        _unequal(where, "strides", ours.stride() if ours.numel() else None, torchs.stride() if torchs.numel() else None),
        _unequal(where, "conjugate", ours.is_conj(), torchs.is_conj()),
        lambda: None if tensor_bytes(ours) == tensor_bytes(torchs) else f"{where}: values: ours {ours!r:.300}, torch's {torchs!r:.300}",
    )


def _coo_values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._values()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().contiguous().reshape(-1)
    return b"" if plain.numel() == 0 else plain.view(torch.uint8).numpy().tobytes()


def tree_bytes(tree: Any) -> bytes:
    """Every leaf's bytes, for comparing many runs of one loader."""
    if isinstance(tree, torch.Tensor):
        return tensor_bytes(tree)
    if isinstance(tree, Mapping):
        return b"".join(tree_bytes(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return b"".join(tree_bytes(value) for value in tree)
    return repr(tree).encode()


def _unequal(where: str, what: str, ours: Any, torchs: Any) -> str | None:
    same = type(ours) is type(torchs) and bool(ours == torchs)
    return None if same else f"{where}: {what}: ours {ours!r:.200}, torch's {torchs!r:.200}"


def _later(ours: Any, torchs: Any, where: str) -> Callable[[], str | None]:
    return lambda: difference(ours, torchs, where)


def _first(*findings: Any) -> str | None:
    for finding in findings:
        found = finding() if callable(finding) else finding
        if found:
            return str(found)
    return None
