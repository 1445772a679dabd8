"""Kinds of samples: each a function of the index. What torch makes of a batch of them is the contract."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .contract import TAKES_NUMPY_BOOLS
from .datasets import Marked, Pair, Point, Tagged, Typed

Kinds = dict[str, Callable[[int], Any]]

STRUCTURES: Kinds = {
    "tuple": lambda i: (torch.full((2,), i), i),
    "list": lambda i: [torch.full((2,), i), float(i)],
    "dict": lambda i: {"a": torch.full((2,), i), "b": i},
    "int keys": lambda i: {3: i, 1: float(i), None: "x"},
    "OrderedDict": lambda i: OrderedDict([("z", i), ("a", torch.ones(2) * i)]),
    "UserDict": lambda i: UserDict(a=i, b=torch.ones(1) * i),
    "UserList": lambda i: UserList([i, torch.ones(1) * i]),
    "dict subclass": lambda i: Tagged(a=i, b=torch.ones(2) * i),
    "namedtuple": lambda i: Pair(torch.ones(2, 2) * i, i),
    "NamedTuple": lambda i: Typed(np.ones(2) * i, (i, str(i))),
    "nested": lambda i: {"a": [{"b": (torch.ones(1) * i, Pair(i, {"c": float(i)}))}, [i]], "d": {"e": {"f": np.float32(i)}}},
    "empty dict": lambda i: {},
    "empty tuple": lambda i: (),
    "empty list": lambda i: [],
    "tuple of nothing and something": lambda i: ((), i, {}),
    "range": lambda i: range(i, i + 3),
    "one-tuple": lambda i: (torch.ones(2) * i,),
    "same tensor twice": lambda i: (t := torch.full((3,), i), t),
    "str": lambda i: f"sample {i}",
    "empty str": lambda i: "",
    "bytes": lambda i: bytes([i]) * i,
    "str in a tuple": lambda i: (torch.ones(2) * i, f"sample {i}"),
    "bytes in a dict": lambda i: {"x": i, "raw": b"\x00" * i},
}

FLOAT8 = [name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
DTYPES = [
    "float16",
    "bfloat16",
    "float64",
    "complex64",
    "complex128",
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
]

TENSORS: Kinds = {
    "all dtypes": lambda i: {name: torch.tensor([i, 1, 0]).to(getattr(torch, name)) for name in DTYPES + FLOAT8},
    "bfloat16": lambda i: torch.tensor([i, 0.1], dtype=torch.bfloat16),
    "0-d": torch.tensor,
    "0-d float": lambda i: torch.tensor(float(i)),
    "zero-size": lambda i: torch.empty(0),
    "zero-size in the middle": lambda i: torch.empty(3, 0, 2),
    "zero-size beside a real one": lambda i: (torch.empty(0, dtype=torch.int64), i),
    "NaN and minus zero": lambda i: torch.tensor([float("nan"), -0.0, float("inf"), i]),
    "transposed": lambda i: (torch.arange(6).reshape(2, 3) + i).T,
    "strided": lambda i: (torch.arange(12) + i)[::3],
    "expanded": lambda i: torch.tensor([float(i)]).expand(3),
    "channels last": lambda i: (torch.arange(16.0).reshape(1, 4, 2, 2) + i).contiguous(memory_format=torch.channels_last)[0],
    "view of a large one": lambda i: torch.arange(1000)[i : i + 2],
    "conjugate": lambda i: torch.tensor([1 + 1j * i]).conj(),
    "requires grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    "parameter": lambda i: torch.nn.Parameter(torch.full((2,), float(i))),
    "subclass": lambda i: torch.full((2,), i).as_subclass(Marked),
    "sparse coo": lambda i: torch.eye(3).mul(i).to_sparse(),
    "sparse csr": lambda i: torch.eye(3).mul(i + 1).to_sparse_csr(),
    "many dimensions": lambda i: torch.full((1, 2, 1, 2, 1, 2, 1), i),
    "large": lambda i: torch.full((300, 300), float(i)),
}

NUMPY_SCALARS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "float64"]
NUMPY_SCALARS += ["complex64", "complex128", "str_", *(["bool_"] if TAKES_NUMPY_BOOLS else [])]
ODD_SCALARS = ["uint64", "longdouble", "bytes_"]  # torch takes them here and refuses them there

NUMPY: Kinds = {
    "all scalars": lambda i: {name: getattr(np, name)(i % 2) for name in NUMPY_SCALARS},
    **{f"scalar {name}": (lambda i, name=name: getattr(np, name)(i % 2)) for name in ODD_SCALARS},
    "all arrays": lambda i: [np.array([[i, 1]]).astype(code) for code in ("<f4", "<f2", "|b1", "|u1", "<u2", "<i8", "<c8")],
    "big-endian array": lambda i: np.array([i], dtype=">f4"),
    "big-endian scalar": lambda i: np.array([i], dtype=">i4")[0],
    "0-d array": np.array,
    "zero-size array": lambda i: np.empty((0, 2)),
    "fortran order": lambda i: np.asfortranarray(np.arange(6).reshape(2, 3) + i),
    "strided array": lambda i: (np.arange(10) + i)[::2],
    "reversed array": lambda i: (np.arange(3) + i)[::-1],
    "str array": lambda i: np.array(["a", "b"]),
    "object array": lambda i: np.array([{}, None], dtype=object),
    "structured array": lambda i: np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
    "datetime64": lambda i: np.datetime64("2024-01-01") + np.timedelta64(i, "D"),
    "timedelta64": lambda i: np.timedelta64(i, "s"),
    "masked array": lambda i: np.ma.masked_array([i, 2], mask=[0, 1]),
    "recarray": lambda i: np.array([i, 2.0]).view(np.recarray),
}

NUMBERS: Kinds = {
    "python int": lambda i: i,
    "python float": lambda i: i + 0.1,
    "python bool": lambda i: i % 2 == 0,
    "negative int": lambda i: -(2**62) - i,
    "int too large at the end": lambda i: 2**63 if i == 2 else i,
    "int then float": lambda i: i + 0.5 if i % 3 else i,
    "float then int": lambda i: i if i % 3 else i + 0.5,
    "bool then int": lambda i: i if i % 3 else True,
    "bool then float": lambda i: i + 0.5 if i % 3 else True,
    "int then bool": lambda i: True if i % 3 else i,
    "float then bool": lambda i: True if i % 3 else 0.5,
    "int then numpy float": lambda i: np.float32(0.5) if i % 3 else i,
    "numpy float then int": lambda i: i if i % 3 else np.float32(0.5),
    "numpy int32 then int64": lambda i: np.int64(2**40) if i % 3 else np.int32(1),
    "numpy float32 then float64": lambda i: np.float64(0.1) if i % 3 else np.float32(0.1),
    "int then 0-d tensor": lambda i: torch.tensor(i) if i % 3 else i,
    "int then str": lambda i: "x" if i % 3 else i,
    "str then int": lambda i: i if i % 3 else "x",
    "complex": lambda i: complex(i, 1),
    "NaN": lambda i: float("nan"),
}

IRREGULAR: Kinds = {
    "ragged": lambda i: torch.ones(2 + i),
    "ragged at the end": lambda i: torch.ones(3 if i == 5 else 2),
    "ragged of equal count": lambda i: torch.ones(2, 3) if i % 3 else torch.ones(3, 2),
    "ragged numpy": lambda i: np.ones(2 + i),
    "ragged lists": lambda i: [1] * (1 + i),
    "ragged inside a dict": lambda i: {"a": i, "b": {"c": torch.ones(1 + i)}},
    "another dimension": lambda i: torch.ones(2) if i % 3 else torch.ones(2, 1),
    "scalar then vector": lambda i: torch.ones(1) if i % 3 else torch.tensor(1.0),
    "int32 then int64": lambda i: torch.ones(2, dtype=torch.int64 if i % 3 else torch.int32),
    "int64 then int32": lambda i: torch.ones(2, dtype=torch.int32 if i % 3 else torch.int64),
    "int then float tensor": lambda i: torch.full((2,), 0.5) if i % 3 else torch.ones(2, dtype=torch.int64),
    "float then int tensor": lambda i: torch.ones(2, dtype=torch.int64) if i % 3 else torch.full((2,), 0.5),
    "float32 then float64": lambda i: torch.full((2,), 0.1, dtype=torch.float64 if i % 3 else torch.float32),
    "bool then float tensor": lambda i: torch.full((2,), 0.5) if i % 3 else torch.tensor([True, False]),
    "tensor then numpy": lambda i: np.ones(2, dtype=np.float32) if i % 3 else torch.ones(2),
    "numpy then tensor": lambda i: torch.ones(2) if i % 3 else np.ones(2, dtype=np.float32),
    "numpy float32 then float64 arrays": lambda i: np.full(2, 0.1, dtype=np.float64 if i % 3 else np.float32),
    "one requires grad": lambda i: torch.ones(2, requires_grad=i % 3 == 1),
    "strided then contiguous": lambda i: torch.arange(4.0)[::2] if i % 3 else torch.ones(2),
    "tuple then list": lambda i: [i, i] if i % 3 else (i, i),
    "list then tuple": lambda i: (i, i) if i % 3 else [i, i],
    "tuple then longer tuple": lambda i: (i, i, i) if i % 3 else (i, i),
    "namedtuple then tuple": lambda i: (i, i) if i % 3 else Pair(i, i),
    "namedtuple then longer tuple": lambda i: (i, i, i) if i % 3 else Pair(i, i),
    "more keys later": lambda i: {"a": i, "b": i} if i % 3 else {"a": i},
    "fewer keys later": lambda i: {"a": i} if i % 3 else {"a": i, "b": i},
    "other key order": lambda i: {"b": i, "a": -i} if i % 3 else {"a": -i, "b": i},
    "dict then OrderedDict": lambda i: OrderedDict(a=i) if i % 3 else {"a": i},
    "None": lambda i: None,
    "None at the end": lambda i: None if i == 5 else torch.ones(2),
    "None inside": lambda i: (i, None),
    "an object": lambda i: object(),
    "a set": lambda i: {i},
    "an unregistered dataclass": lambda i: Point(torch.ones(1), "x"),
    "a function": lambda i: len,
}

ALL: Kinds = {**STRUCTURES, **TENSORS, **NUMPY, **NUMBERS, **IRREGULAR}
assert len(ALL) == sum(map(len, (STRUCTURES, TENSORS, NUMPY, NUMBERS, IRREGULAR))), "two kinds of one name"
