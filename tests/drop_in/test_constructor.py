"""The door: the same arguments, attributes, errors and warnings as torch's."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from antifreeze.torch_private import TORCH_ARGUMENTS, accelerator_for_pinning

from .contract import CLASS_UNDER_TEST, TORCH, Ours, Torchs, assert_same, drain, ours_only
from .datasets import Count, SizedCount, Squares

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def parameters(cls: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(cls.__init__).parameters)


def test_is_a_torch_loader() -> None:
    assert isinstance(Ours(Squares()), torch.utils.data.DataLoader)


@pytest.mark.skipif(CLASS_UNDER_TEST == "torchdata", reason="torchdata is behind torch")
def test_the_same_arguments_in_the_same_order_with_the_same_defaults() -> None:
    ours, torchs = parameters(Ours), parameters(Torchs)
    assert [(p.name, p.default) for p in ours.values() if p.kind is not KEYWORD_ONLY and p.kind is not inspect.Parameter.VAR_KEYWORD] == [
        (p.name, p.default) for p in torchs.values() if p.kind is not KEYWORD_ONLY
    ]
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


def test_all_of_torchs_arguments_by_position() -> None:
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    ours, torchs = (
        cls(Squares(), 3, True, None, None, 0, list, False, True, 0, None, None, generator)
        for cls, generator in zip((Ours, Torchs), generators, strict=True)
    )
    assert_same(list(ours), list(torchs))


MAP: list[tuple[str, dict[str, Any]]] = [
    ("negative workers", {"num_workers": -1}),
    ("no number of workers", {"num_workers": None}),
    ("negative timeout", {"timeout": -1}),
    ("timeout of words", {"timeout": "soon"}),
    ("prefetch without workers", {"prefetch_factor": 2}),
    ("negative prefetch", {"prefetch_factor": -1, "num_workers": 1}),
    ("persistent without workers", {"persistent_workers": True}),
    ("sampler and shuffle", {"sampler": [1], "shuffle": True}),
    ("batch_sampler and batch_size", {"batch_sampler": [[1]], "batch_size": 2}),
    ("batch_sampler and batch_size None", {"batch_sampler": [[1]], "batch_size": None}),
    ("batch_sampler and shuffle", {"batch_sampler": [[1]], "shuffle": True}),
    ("batch_sampler and sampler", {"batch_sampler": [[1]], "sampler": [1]}),
    ("batch_sampler and drop_last", {"batch_sampler": [[1]], "drop_last": True}),
    ("no batches but drop_last", {"batch_size": None, "drop_last": True}),
    ("batch_size 0", {"batch_size": 0}),
    ("batch_size below 0", {"batch_size": -2}),
    ("batch_size a fraction", {"batch_size": 2.5}),
    ("batch_size True", {"batch_size": True}),
    ("batch_size of words", {"batch_size": "4"}),
    ("drop_last of words", {"drop_last": "yes"}),
    ("context without workers", {"multiprocessing_context": "fork"}),
    ("unknown context", {"multiprocessing_context": "spoon", "num_workers": 1}),
    ("context of another type", {"multiprocessing_context": 7, "num_workers": 1}),
]
OTHER: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("stream and shuffle", Count, {"shuffle": True}),
    ("stream and sampler", Count, {"sampler": [1]}),
    ("stream and batch_sampler", Count, {"batch_sampler": [[1]]}),
    ("stream and drop_last without batches", Count, {"batch_size": None, "drop_last": True}),
    ("stream and batch_size 0", Count, {"batch_size": 0}),
    ("shuffle of nothing", list, {"shuffle": True}),
    ("shuffle without a length", lambda: iter([1]), {"shuffle": True}),
    ("shuffle of None", lambda: None, {"shuffle": True}),
]


@pytest.mark.parametrize(
    ("make", "kwargs"), [(Squares, row[1]) for row in MAP] + [row[1:] for row in OTHER], ids=[row[0] for row in MAP + OTHER]
)
def test_what_torch_refuses_is_refused_in_the_same_words(make: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    with pytest.raises(Exception) as torchs:  # noqa: PT011, RUF100
        Torchs(make(), **kwargs)
    with pytest.raises(torchs.type) as ours:
        Ours(make(), **kwargs)
    mask = f"0x{id(kwargs):x}"
    assert _without_addresses(str(ours.value)).replace(mask, "") == _without_addresses(str(torchs.value)).replace(mask, "")


def _without_addresses(text: str) -> str:
    return " ".join(word for word in text.split() if "0x" not in word)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own half-made iterator
@pytest.mark.parametrize(
    "kwargs",
    [{"timeout": 1}, {"num_workers": 1, "prefetch_factor": 0}, {"num_workers": 1, "prefetch_factor": 1.5}, {"generator": 3}],
    ids=str,
)
def test_what_torch_refuses_when_iterated(kwargs: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, TypeError)) as torchs:
        iter(Torchs(Squares(), **kwargs))
    kind, words = torchs.type, str(torchs.value)
    del torchs
    gc.collect()
    with pytest.raises(kind) as ours:
        iter(Ours(Squares(), **kwargs))
    assert str(ours.value) == words or not words  # before 2.13 some were bare assertions


@pytest.mark.parametrize("count", ["2", "auot"])
def test_a_number_of_workers_in_words_is_the_error_it_is_with_torch_and_says_more(count: str) -> None:
    with pytest.raises(TypeError):
        Torchs(Squares(), num_workers=count)
    with pytest.raises(TypeError, match=r"num_workers|not supported between instances"):
        Ours(Squares(), num_workers=count)


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        Ours(Squares(), batchsize=3)


@pytest.mark.parametrize("attribute", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_what_may_not_be_set_later(attribute: str) -> None:
    loader = Ours(Squares(), batch_size=2)
    with pytest.raises(ValueError, match=f"{attribute} attribute should not be set after {type(loader).__name__} is initialized"):
        setattr(loader, attribute, getattr(loader, attribute))


def test_what_may_be_set_later() -> None:
    loader = Ours(Squares(), batch_size=5)
    loader.collate_fn = len
    loader.num_workers = 1
    loader.prefetch_factor = 3
    assert list(loader) == [5, 5]


def test_a_context_set_later_is_checked() -> None:
    loader = Ours(Squares(), num_workers=1)
    with pytest.raises(ValueError, match="valid start method"):
        loader.multiprocessing_context = "spoon"
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context.get_start_method() == "spawn"


ATTRIBUTES: list[tuple[str, Callable[[], Any], Callable[[Any], dict[str, Any]]]] = [
    ("plain", Squares, lambda _: {}),
    ("shuffle", Squares, lambda _: {"shuffle": True, "batch_size": 4, "drop_last": True}),
    ("workers", Squares, lambda _: {"num_workers": 2, "persistent_workers": True, "timeout": 5, "worker_init_fn": len, "in_order": False}),
    ("prefetch", Squares, lambda _: {"num_workers": 1, "prefetch_factor": 7, "multiprocessing_context": "spawn"}),
    ("sampler", Squares, lambda data: {"sampler": RandomSampler(data, replacement=True), "collate_fn": list}),
    ("batch_sampler", Squares, lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 3, False)}),
    ("no batches", Squares, lambda _: {"batch_size": None, "pin_memory": True, "pin_memory_device": "cuda"}),
    ("stream", Count, lambda _: {"batch_size": 3}),
]


@pytest.mark.parametrize(("make", "kwargs"), [row[1:] for row in ATTRIBUTES], ids=[row[0] for row in ATTRIBUTES])
def test_the_same_attributes(make: Callable[[], Any], kwargs: Callable[[Any], dict[str, Any]]) -> None:
    dataset = make()
    given = {name: value for name, value in kwargs(dataset).items() if name in TORCH_ARGUMENTS}
    ours, torchs = Ours(dataset, **given), Torchs(dataset, **given)
    for name, value in vars(torchs).items():
        theirs = getattr(ours, name)
        same = theirs == value or (type(theirs) is type(value) and "Sampler" in type(value).__name__)
        assert same, f"{name}: ours {theirs!r}, torch's {value!r}"
    assert ours._auto_collation == torchs._auto_collation
    assert type(ours._index_sampler) is type(torchs._index_sampler)


def heard(cls: Any, dataset: Any, kwargs: dict[str, Any], *, ask_length: bool) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="This process .* is multi-threaded, use of fork")  # one per fork, from Python 3.12 on
        loader = cls(dataset, **kwargs)
        if ask_length:
            len(loader)
        try:
            list(loader)
        except RuntimeError as error:  # torch before 2.7 pins for the device that is named, also where there is none
            warnings.warn(f"{type(error).__name__}: {error}".splitlines()[-1], stacklevel=1)
    said = [(warning.category, str(warning.message)) for warning in caught]
    return [(category, text) for category, text in said if not text.startswith("antifreeze:")]  # ours come beside torch's


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WARNINGS: list[tuple[str, Callable[[], Any], dict[str, Any], int]] = [
    ("none", Squares, {"num_workers": 1}, 0),
    ("pin_memory without an accelerator", Squares, {"pin_memory": True}, 1),
    ("pin_memory without an accelerator, with workers", Squares, {"pin_memory": True, "num_workers": 1}, 1),
    ("pin_memory_device", Squares, {"pin_memory": True, "pin_memory_device": "cuda"}, 2),
    ("pin_memory_device alone", Squares, {"pin_memory_device": "cuda"}, 0),
    ("more workers than cores", Squares, {"num_workers": CORES + 1}, 2),
    ("a longer stream than said", lambda: SizedCount(6, 4), {"batch_size": None}, 2),
    ("a longer stream than said, in workers", lambda: SizedCount(3, 4), {"batch_size": None, "num_workers": 2}, 2),
    ("a stream as long as said", lambda: SizedCount(4, 4), {"batch_size": None}, 0),
]


@pytest.mark.skipif(accelerator_for_pinning() is not None, reason="the warnings are about having none")
@pytest.mark.parametrize(("make", "kwargs", "count"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS])
def test_the_same_warnings(make: Callable[[], Any], kwargs: dict[str, Any], count: int) -> None:
    dataset = make()
    torchs = heard(Torchs, dataset, kwargs, ask_length=True)
    assert len(torchs) == count or TORCH < (2, 13)
    assert heard(Ours, dataset, kwargs, ask_length=True) == torchs


def test_a_length_nobody_asked_for_is_not_held_against_the_stream() -> None:
    assert heard(Ours, SizedCount(6, 4), {"batch_size": None}, ask_length=False) == []


LENGTHS: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("plain", Squares, {}),
    ("batches", Squares, {"batch_size": 4}),
    ("drop_last", Squares, {"batch_size": 4, "drop_last": True}),
    ("no batches", Squares, {"batch_size": None}),
    ("sampler", Squares, {"sampler": [1, 2, 3], "batch_size": 2}),
    ("batch_sampler", Squares, {"batch_sampler": [[1], [2, 3], []]}),
    ("empty", lambda: Squares(0), {"batch_size": 3}),
    ("stream", lambda: SizedCount(7, 7), {"batch_size": 3}),
    ("stream, drop_last", lambda: SizedCount(7, 7), {"batch_size": 3, "drop_last": True}),
    ("stream without batches", lambda: SizedCount(7, 7), {"batch_size": None}),
]


@pytest.mark.parametrize(("make", "kwargs"), [row[1:] for row in LENGTHS], ids=[row[0] for row in LENGTHS])
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_same_length(make: Callable[[], Any], kwargs: dict[str, Any], num_workers: int) -> None:
    assert len(Ours(make(), num_workers=num_workers, **kwargs)) == len(Torchs(make(), num_workers=num_workers, **kwargs))


def test_no_length_where_torch_has_none() -> None:
    for dataset, kwargs in ((Count(), {}), (Squares(), {"sampler": (i for i in range(3))})):
        with pytest.raises(TypeError, match="has no len"):
            len(Ours(dataset, **kwargs))


def test_an_iterator_is_its_own_iterator_and_has_a_length() -> None:
    for num_workers in (0, 1):
        batches = iter(Ours(Squares(), batch_size=4, num_workers=num_workers))
        assert iter(batches) is batches
        assert len(batches) == 3
        assert len(drain(batches)) == 3
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(batches)
        with pytest.raises(NotImplementedError):
            pickle.dumps(batches)


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_loader_can_be_copied(clone: Callable[[Any], Any]) -> None:
    loader = Ours(Squares(), batch_size=4, num_workers=1)
    expected = list(loader)
    assert_same(list(clone(loader)), expected)


def test_a_subclass_and_its_own_iteration() -> None:
    class Twice(Ours[int]):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mine = "kept"

        def __iter__(self) -> Any:
            yield from super().__iter__()
            yield from super().__iter__()

    loader = Twice(Squares(), batch_size=5, num_workers=1)
    assert_same(list(loader), list(Torchs(Squares(), batch_size=5)) * 2)
    assert loader.mine == "kept"


@pytest.mark.parametrize("name", ["options", "device", "epoch", "report", "close", "_options", "_cursor", "_open", "_ranks", "_usage"])
@pytest.mark.parametrize("first", [True, False], ids=["before torch's", "after torch's"])
def test_an_attribute_of_a_subclass_is_its_own(name: str, first: bool) -> None:
    class Named(Ours[int]):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if first:
                setattr(self, name, "mine")
            super().__init__(*args, **kwargs)
            if not first:
                setattr(self, name, "mine")

    loader = Named(Squares(), batch_size=5, num_workers=1)
    for _ in range(2):
        assert_same(list(loader), list(Torchs(Squares(), batch_size=5)))
    assert getattr(loader, name) == "mine"


def test_no_attribute_has_a_name_that_a_subclass_may_well_have() -> None:
    ours, torchs = Ours(Squares()), Torchs(Squares())
    known = {*vars(torchs), "in_order"}  # which torch has from 2.6 on
    assert {name for name in vars(ours) if not name.startswith("_")} == {name for name in known if not name.startswith("_")}


@ours_only
def test_auto_number_of_workers() -> None:
    loader = Ours(Squares(), batch_size=4, num_workers="auto")
    assert isinstance(loader.num_workers, int)
    assert_same(list(loader), list(Torchs(Squares(), batch_size=4)))
    with pytest.raises((TypeError, ValueError), match="num_workers"):
        Ours(Squares(), num_workers="several")
