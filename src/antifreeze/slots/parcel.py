"""A batch of any kind in a slot: a pickle, with the bytes of tensors and arrays beside it instead of inside it.

    |count|offset size|offset size|…|   pickle of the objects   |   table of tensors   |  bytes  |  bytes  | …
     header, int64                       part 0                     part 1                part 2…

1. A dense CPU tensor is one row of the table: (storage part, offset, size, stride, dtype, requires_grad); one of a user's own class
   is such a row, and what torch makes it of.
2. Tensors that overlap in one storage share one part, and share it again in the parent; a view of a huge storage sends only
   the bytes it spans. Strides are kept unless that would send much more than the values.
3. Everything else goes the way pickle protocol 5 knows, its buffers out of band: numpy arrays are not copied into the pickle. What
   arrives can be written to, also where the array could not: it is the user's own, as it is after a plain pickle.
4. What cannot be pickled raises here, in the worker, beside the code that made it.
5. A batch of plain tensors alone needs no pickle: plain.py has its way (its first number is negative).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from antifreeze.slots.layout import ALIGNMENT
from antifreeze.slots.plain import PlainParcel, pack_plain, unpack_plain
from antifreeze.torch_private import Unpickler, is_made_of_storage, is_typed_storage, with_dtype, without_class, without_dtype

_PARTS_BEFORE_BUFFERS = 2
_WASTE_BYTES = 1 << 16
_GRAIN = 16  # parts of a storage begin at multiples of this, so that every dtype stays aligned

_NON_LEAF = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing process "
    "boundaries.  If you just want to transfer the data, call detach() on the tensor before serializing (e.g., putting it "
    "on the queue)."
)


@dataclass
class Parcel:
    """The parts of one batch, not yet in a slot."""

    parts: list[Any]
    size_bytes: int = 0
    offsets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = 8 * (1 + 2 * len(self.parts))
        for part in self.parts:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            self.offsets.append(at)
            at += len(part)
        self.size_bytes = at

    def write(self, buffer: Any) -> None:
        places = [number for offset, part in zip(self.offsets, self.parts, strict=True) for number in (offset, len(part))]
        struct.pack_into(f"<{1 + len(places)}q", buffer, 0, len(self.parts), *places)
        target = np.frombuffer(buffer, dtype=np.uint8)
        for offset, part in zip(self.offsets, self.parts, strict=True):
            if len(part):
                target[offset : offset + len(part)] = np.frombuffer(part, dtype=np.uint8)


def pack(batch: Any) -> Parcel | PlainParcel:
    """Raises what pickle raises where the batch holds something that cannot leave the process."""
    return pack_plain(batch) or pack_any(batch)


def pack_any(batch: Any) -> Parcel:
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = _Pickler(stream, buffers.append)
    pickler.dump(batch)
    storages, table = _split_storages(pickler.tensors)
    arrays = [buffer.raw() for buffer in buffers]
    return Parcel([stream.getbuffer(), memoryview(pickle.dumps((len(storages), table), protocol=5)), *storages, *arrays])


def unpack(owner: Any) -> Any:
    """The batch; its tensors and arrays are views of `owner` and keep it alive."""
    (count,) = struct.unpack_from("<q", owner, 0)
    if count < 0:
        return unpack_plain(owner)
    places = struct.unpack_from(f"<{2 * count}q", owner, 8)
    view = memoryview(owner)
    parts = [view[offset : offset + size] for offset, size in zip(places[::2], places[1::2], strict=True)]
    storage_count, table = pickle.loads(parts[1])
    storages = [
        _storage_over(owner, places[2 * number], places[2 * number + 1])
        for number in range(_PARTS_BEFORE_BUFFERS, _PARTS_BEFORE_BUFFERS + storage_count)
    ]
    tensors = [_restore(storages, *row) for row in table]
    unpickler = _Unpickler(io.BytesIO(parts[0]), buffers=parts[_PARTS_BEFORE_BUFFERS + storage_count :])
    unpickler.tensors = tensors
    return unpickler.load()


# --- pickling ---------------------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, keep_buffer: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=keep_buffer)
        self.tensors: list[torch.Tensor] = []

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_dense(value):
            if value.requires_grad and not value.is_leaf:
                raise RuntimeError(_NON_LEAF)
            self.tensors.append(value.resolve_conj().resolve_neg())
            return _tensor_number, (len(self.tensors) - 1,)
        if type(value) is torch.UntypedStorage and value.device.type == "cpu":  # by itself it does not pickle
            return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(value),)
        if is_typed_storage(value) and without_dtype(value).device.type == "cpu":  # what quantized tensors pickle themselves as
            return with_dtype, (without_dtype(value), value.dtype)
        if type(value) is np.ndarray and value.flags.forc and not value.flags.writeable:
            return value.copy(order="K").__reduce_ex__(5)  # a buffer that was read-only would be one again
        registered = _registered().get(type(value))
        if registered is not None:
            return registered(value)
        return self._of_subclass(value) if isinstance(value, torch.Tensor) and type(value) not in copyreg.dispatch_table else NotImplemented

    def _of_subclass(self, value: torch.Tensor) -> Any:
        """As torch makes it, but of the bytes that it spans: torch would pickle its whole storage, of a crop of a huge one too."""
        reduced: Any = value.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        if not is_made_of_storage(reduced) or value.device.type != "cpu":
            return NotImplemented
        make, (_, kind, _, state) = reduced
        self.tensors.append(without_class(value).resolve_conj().resolve_neg())
        return make, (_tensor_number, kind, (len(self.tensors) - 1,), state)


def _registered() -> dict[type, Callable[[Any], Any]]:
    """What users have told multiprocessing about their types, which is how torch's workers send them; torch's own entries are about
    shared memory, and Python's about what needs none of this."""
    if len(ForkingPickler._extra_reducers) != len(_known_reducers):  # type: ignore[attr-defined]
        _known_reducers.clear()
        _known_reducers.update(ForkingPickler._extra_reducers)  # type: ignore[attr-defined]
        _users_reducers.clear()
        others = ("torch", "multiprocessing")
        _users_reducers.update(item for item in _known_reducers.items() if getattr(item[1], "__module__", "").split(".")[0] not in others)
    return _users_reducers


_known_reducers: dict[type, Callable[[Any], Any]] = {}
_users_reducers: dict[type, Callable[[Any], Any]] = {}


def _tensor_number(number: int) -> torch.Tensor:
    raise RuntimeError("a parcel was unpickled outside of antifreeze")


class _Unpickler(Unpickler):
    tensors: list[torch.Tensor]

    def find_class(self, module: str, name: str) -> Any:
        if name == "_tensor_number" and module == __name__:
            return self.tensors.__getitem__
        return super().find_class(module, name)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not (tensor.is_nested or tensor.is_quantized)


# --- tensors to parts of storages and back ----------------------------------------------------------------------------


@dataclass
class _Piece:
    tensor: torch.Tensor
    begin: int
    end: int
    part: int = -1


def _split_storages(tensors: list[torch.Tensor]) -> tuple[list[memoryview], list[tuple[Any, ...]]]:
    pieces = [_piece(tensor) for tensor in tensors]
    by_storage: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_storage.setdefault(piece.tensor.untyped_storage()._cdata, []).append(piece)
    parts: list[memoryview] = []
    part_begins: list[int] = []
    for sharing in by_storage.values():
        for begin, end, group in _overlapping(sharing):
            for piece in group:
                piece.part = len(parts)
            parts.append(_bytes_of(group[0].tensor, begin, end))
            part_begins.append(begin)
    table = [_row(piece, part_begins[piece.part]) for piece in pieces]
    return parts, table


def _piece(tensor: torch.Tensor) -> _Piece:
    requires_grad, tensor = tensor.requires_grad, tensor.detach()
    wasted_bytes = (_span(tensor) - 2 * tensor.numel()) * tensor.element_size()
    if tensor.numel() and wasted_bytes > _WASTE_BYTES:
        tensor = tensor.contiguous()
    tensor.requires_grad_(requires_grad)
    if not tensor.numel():  # it may begin behind the end of its storage
        return _Piece(tensor, 0, 0)
    item = tensor.element_size()
    begin = int(tensor.storage_offset()) * item
    return _Piece(tensor, begin, begin + _span(tensor) * item)


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlapping(pieces: list[_Piece]) -> list[tuple[int, int, list[_Piece]]]:
    groups: list[tuple[int, int, list[_Piece]]] = []
    for piece in sorted(pieces, key=lambda piece: piece.begin):
        begin = piece.begin // _GRAIN * _GRAIN
        if groups and begin < groups[-1][1]:
            first, end, group = groups[-1]
            groups[-1] = (first, max(end, piece.end), [*group, piece])
        else:
            groups.append((begin, piece.end, [piece]))
    return groups


def _bytes_of(tensor: torch.Tensor, begin: int, end: int) -> memoryview:
    if end <= begin:
        return memoryview(b"")
    window = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage(), begin, (end - begin,), (1,))
    return window.numpy().data


def _row(piece: _Piece, part_begin: int) -> tuple[Any, ...]:
    tensor = piece.tensor
    offset = (piece.begin - part_begin) // tensor.element_size()
    return piece.part, offset, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad


def _storage_over(owner: Any, offset: int, size: int) -> torch.UntypedStorage:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
    return torch.frombuffer(owner, dtype=torch.uint8, count=size, offset=offset).untyped_storage()


def _restore(
    storages: list[torch.UntypedStorage],
    part: int,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storages[part], offset, shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor
