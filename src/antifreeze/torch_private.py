"""The only file that touches torch's private names, each with its reason; torch 2.4 to 2.15, and later."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as _dataloader
import torch.utils.data.graph_settings as _graph_settings
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data._utils import collate as _collate
from torch.utils.data._utils import pin_memory as _pin
from torch.utils.data._utils import worker as _worker

BaseIterator: Any = _dataloader._BaseDataLoaderIter
"""Our iterators subclass it: frameworks test for it, and its __init__ draws the base seed and warns exactly as torch does."""

TorchDataLoader = _dataloader.DataLoader

TORCH_ARGUMENTS = frozenset(inspect.signature(_dataloader.DataLoader.__init__).parameters)
"""What this torch knows; `in_order` came with torch 2.6."""


def modes_at_work() -> bool:
    """Whether something stands between the program and torch's own functions: a default device, a mode of the user's."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def is_iterable_kind(loader: Any) -> bool:
    return bool(loader._dataset_kind == _dataloader._DatasetKind.Iterable)


def worker_info(worker_id: int, num_workers: int, base_seed: int, dataset: Any) -> Any:
    """What get_worker_info() answers in worker `worker_id`."""
    return _worker.WorkerInfo(id=worker_id, num_workers=num_workers, seed=base_seed + worker_id, dataset=dataset)


def swap_worker_info(info: Any) -> Any:
    """Puts `info` in place and returns what was there: one process may host several streams, each with its own."""
    if _here.is_worker:
        previous, _here.info = _here.info, info
    else:
        previous, _worker._worker_info = _worker._worker_info, info
    return previous


def seed_torch(seed: int) -> None:
    """torch.manual_seed, without what a torch built for no device does for nothing: for each kind of device it notes the call with its
    stack, reads the source for that, and so takes 1.4 MB of each worker's memory."""
    if _knows_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _knows_devices() -> bool:
    of_its_own = torch._C._get_privateuse1_backend_name() != "privateuseone"
    return of_its_own or sys.platform == "darwin" or any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))


class _Here(threading.local):
    """What get_worker_info() answers in a thread that is a worker."""

    is_worker = False
    info: Any = None


_here = _Here()
_threads_lock = threading.Lock()
_threads = 0
_torchs_code: Any = _worker.get_worker_info.__code__


def enter_worker_thread() -> None:
    """This thread is a worker. torch's get_worker_info() returns one global, and everybody has imported that very function, so while
    there are such threads its code is another one: the same global, but in these threads their own. (An object in the global's place
    would not be None in the user's own thread, which is what data sets ask.)"""
    global _threads
    _here.is_worker = True
    with _threads_lock:
        _threads += 1
        _worker.get_worker_info.__code__ = _get_worker_info.__code__


def is_worker_thread() -> bool:
    return bool(getattr(_here, "is_worker", False))


def leave_worker_thread() -> None:
    global _threads
    _here.is_worker, _here.info = False, None
    with _threads_lock:
        _threads -= 1
        if not _threads:
            _worker.get_worker_info.__code__ = _torchs_code


def _get_worker_info() -> Any:
    from antifreeze.torch_private import worker_info_here  # it runs among torch's globals

    return worker_info_here()


def worker_info_here() -> Any:
    return _here.info if _here.is_worker else _worker._worker_info


def _after_fork_in_child() -> None:
    global _here, _threads, _threads_lock
    _here, _threads, _threads_lock = _Here(), 0, threading.Lock()
    _worker.get_worker_info.__code__ = _torchs_code


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def default_store() -> Any:
    """The key-value store behind the default process group; None where there is none. (torch has no public name for it.)"""
    try:
        return torch.distributed.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None


def numpy_seed(base_seed: int, worker_id: int) -> Any:
    """The words torch seeds numpy with in worker `worker_id`."""
    return _worker._generate_state(base_seed, worker_id)  # type: ignore[no-untyped-call]


def is_datapipe(dataset: Any) -> bool:
    return isinstance(dataset, (IterDataPipe, MapDataPipe))


def sharded_init_fn(worker_init_fn: Callable[[int], None] | None, world_size: int, rank: int) -> Callable[[int], None]:
    """DataPipes shard themselves inside torch's wrapper of the user's init function."""
    return _ShardingInit(worker_init_fn, world_size, rank)


class _ShardingInit:
    def __init__(self, worker_init_fn: Callable[[int], None] | None, world_size: int, rank: int) -> None:
        self.arguments = (worker_init_fn, world_size, rank)

    def __call__(self, worker_id: int) -> None:
        _dataloader._sharding_worker_init_fn(*self.arguments, worker_id)


def apply_sharding(dataset: Any, world_size: int, rank: int) -> None:
    _graph_settings.apply_sharding(dataset, world_size, rank)


def seed_datapipe(dataset: Any, shared_seed: int | None) -> Any:
    """A DataPipe graph takes its shuffles from one seed that all workers share."""
    if not isinstance(dataset, IterDataPipe) or shared_seed is None:
        return dataset
    generator = torch.Generator()
    generator.manual_seed(shared_seed)
    return _graph_settings.apply_random_seed(dataset, generator)


def loads(content: bytes) -> Any:
    return load(io.BytesIO(content))


def load(file: Any) -> Any:
    """pickle.load, of what may hold tensors."""
    return Unpickler(file).load()


class Unpickler(pickle.Unpickler):
    """For tensors, whose pickles name functions of torch's that do more than is asked for here."""

    def find_class(self, module: str, name: str) -> Any:
        return _INSTEAD.get((module, name)) or super().find_class(module, name)


def _load_storage(content: bytes) -> Any:
    """As torch has it from 2.5 on; that of 2.4 warns of its own torch.load, which where warnings are errors would end a worker."""
    return torch.load(io.BytesIO(content), weights_only=False)


def _rebuild_sparse(layout: torch.layout, parts: tuple[Any, ...]) -> torch.Tensor:
    """torch's own keeps each on a list that only torch.load empties, and that lies elsewhere from version to version: it would live for
    ever. What is in a pickle stays, for the sake of files."""
    if layout is torch.sparse_coo:
        indices, values, size, is_coalesced = parts
        return torch.sparse_coo_tensor(indices, values, size, check_invariants=False, is_coalesced=is_coalesced)
    return torch.sparse_compressed_tensor(*parts, layout=layout, check_invariants=False)


_INSTEAD: dict[tuple[str, str], Any] = {
    ("torch.storage", "_load_from_bytes"): _load_storage,
    ("torch._utils", "_rebuild_sparse_tensor"): _rebuild_sparse,
}


def is_typed_storage(value: Any) -> bool:
    return type(value) is torch.storage.TypedStorage


def without_dtype(storage: Any) -> Any:
    """(The public names of a TypedStorage warn that it will be gone.)"""
    return storage._untyped_storage


def with_dtype(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def is_made_of_storage(reduced: Any) -> bool:
    """Whether what a tensor of a user's own class is pickled as is (make it of a type, (rebuild, type, (storage, …), state))."""
    return bool(reduced[0] is torch._tensor._rebuild_from_type_v2 and reduced[1][0] is torch._utils._rebuild_tensor_v2)


def without_class(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, a leaf, as a tensor of torch's own class; what the user's class makes of such calls is passed by."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor).requires_grad_(tensor.requires_grad)


is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""torch's own iterator opens a record_function for every batch, which costs more than some batches."""


def generator_address(generator: torch.Generator) -> int:
    """Where the generator lies: asking it for its state copies 5 KB, and that once per batch is too much."""
    return int(generator._cdata)  # type: ignore[attr-defined]


default_collate: Callable[[list[Any]], Any] = _collate.default_collate
default_convert: Callable[[Any], Any] = _collate.default_convert
pin_batch: Callable[..., Any] = _pin.pin_memory

_collate_tensors: Any = _collate.collate_tensor_fn
_ORIGINAL_COLLATES: dict[Any, Any] = dict(_collate.default_collate_fn_map)


def collates_as_torch(sample_part: Any) -> bool:
    """Whether default_collate still treats a value of this type as torch shipped it (users may register their own)."""
    kind = type(sample_part)
    return _resolve(sample_part, kind, _collate.default_collate_fn_map) in (
        _resolve(sample_part, kind, _ORIGINAL_COLLATES),
        _stack_plainly,
    )


def _resolve(value: Any, kind: type, functions: dict[Any, Any]) -> Any:
    if kind in functions:
        return functions[kind]
    return next((function for known, function in functions.items() if isinstance(value, known)), None)


def stack_without_shared_memory() -> None:
    """In a worker, torch's tensor collate allocates fresh named shared memory for every batch. Ours brings its own, so the
    registry that torch documents for extending default_collate gets a plain stack, in this worker process only."""
    if _collate.default_collate_fn_map.get(torch.Tensor) is _collate_tensors:
        _collate.default_collate_fn_map[torch.Tensor] = _stack_plainly


def collate_in_thread(samples: Any) -> Any:
    """default_collate in a worker that is a thread: the same results as in a worker process, without shared memory and without a change
    of the registry that the user's own code uses."""
    functions = _collate.default_collate_fn_map
    if functions.get(torch.Tensor) is _collate_tensors:
        functions = {**functions, torch.Tensor: _stack_plainly}
    return _collate.collate(samples, collate_fn_map=functions)


def _stack_plainly(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Samples in a list or a tuple; of anything else torch.stack says what it says without us."""
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided or any(getattr(tensor, "requires_grad", False) for tensor in batch):
        return _collate_tensors(batch, collate_fn_map=collate_fn_map)
    # as torch's own in a worker: the first sample's dtype is the batch's
    return torch.stack(batch, 0, out=first.new_empty((len(batch), *first.shape)))


SHARED_AMONG_THREADS = 32_768
"""Elements from which on torch copies one tensor in several threads (at::internal::GRAIN_SIZE)."""


def collate_alone(samples: Any) -> Any:
    """default_collate with the same results, but for stacks of large tensors that are made in this thread alone. Functions that the user
    has registered are called as ever, and see torch as he left it."""
    functions = _collate.default_collate_fn_map
    if functions.get(torch.Tensor) is _collate_tensors:
        functions = {**functions, torch.Tensor: _stack_alone}
    return _collate.collate(samples, collate_fn_map=functions)


def _stack_alone(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if not _may_stack_alone(batch):
        return _collate_tensors(batch, collate_fn_map=collate_fn_map)
    stacked = batch[0].new_empty((len(batch), *batch[0].shape))
    try:
        into = stacked.numpy()
        for row, tensor in enumerate(batch):
            into[row] = tensor.numpy()
    except (TypeError, RuntimeError):  # what numpy does not know: bfloat16, a lazy conjugate
        return _collate_tensors(batch, collate_fn_map=collate_fn_map)
    return stacked


def _may_stack_alone(batch: Any) -> bool:
    """Plain ones of one shape and dtype; and no worker of torch's, who stacks in shared memory."""
    if type(batch) not in (list, tuple) or set(map(type, batch)) != {torch.Tensor} or modes_at_work() or torch.get_num_threads() == 1:
        return False
    first = batch[0]
    if first.numel() < SHARED_AMONG_THREADS or first.layout is not torch.strided or first.device.type != "cpu" or first.is_nested:
        return False
    dtype, shape = first.dtype, first.shape
    return all(each.dtype == dtype and each.shape == shape and not each.requires_grad and each.is_contiguous() for each in batch)


def accelerator_for_pinning() -> str | None:
    """The accelerator torch would pin for, or None; `torch.accelerator` came with torch 2.6."""
    if hasattr(torch, "accelerator"):
        current = torch.accelerator.current_accelerator()
        return str(current.type) if current is not None and torch.accelerator.is_available() else None
    return "cuda" if torch.cuda.is_available() else None
