"""A state taken anywhere, loaded anywhere: the rest of the epoch and the next one, byte for byte, augmentation included."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, SequentialSampler, get_worker_info

from .contract import CLASS_UNDER_TEST, Case, Ours, assert_same, drain, ours_only, rows, seed_all, stateful_only
from .datasets import Count, Squares
from .resuming import MAPS, STREAMS, Counted, Saved, StatefulStream, bytes_of, new_loader, resume, rng_now, through_a_file, uninterrupted

NOISE = ["ignore:'set_vital' is deprecated", "ignore:This DataLoader will create"]  # torchdata calls the one, torch says the other
pytestmark = [stateful_only, pytest.mark.filterwarnings(*NOISE)]


def expected(whole: Any, name: str) -> list[list[bytes]]:
    """The two epochs that follow a state."""
    first, second = bytes_of(whole.first), bytes_of(whole.second)
    if name == "end":
        return [second]
    return [first[whole.saved[name].taken :], second]


def check(case: Case, whole: Any, name: str, num_workers: int, **more: Any) -> Any:
    loader, epochs = resume(case, whole.saved[name], num_workers, **more)
    for number, (ours, wanted) in enumerate(zip(map(bytes_of, epochs), expected(whole, name), strict=False)):
        assert ours == wanted, f"state {name!r}, resumed with {num_workers} workers: epoch {number} after it is another"
    return loader


LAZY = ("sampler that draws batch by batch", "batch sampler that draws batch by batch")
SIMPLE = ("plain", "drop_last", "list of indices", "replacement", "distributed")  # nothing in them that others have not
MAP_ROWS = [(case, n) for case in MAPS for n in (0, 2) if n == 0 or case.name not in SIMPLE]


@ours_only
@pytest.mark.parametrize(("case", "saving_workers"), MAP_ROWS, ids=str)
def test_map_style_from_every_position(case: Case, saving_workers: int) -> None:
    whole = uninterrupted(case, saving_workers)
    assert bytes_of(whole.first) != bytes_of(whole.second), "an epoch like the other would prove nothing"
    for name in whole.saved:
        check(case, whole, name, 0)
    middle = str(len(whole.first) // 2)
    if saving_workers:
        check(case, whole, middle, 1)
    else:
        check(case, whole, "0", 3)
        check(case, whole, middle, 2)


@ours_only
@rows([case for case in MAPS if case.name in ("shuffle", "generator", "sampler with a state", "weighted")])
def test_map_style_with_other_arguments_of_the_workers(case: Case) -> None:
    whole = uninterrupted(case, 3, prefetch_factor=5)
    for name, num_workers, more in [
        ("2", 1, {"prefetch_factor": 1}),
        ("3", 2, {"prefetch_factor": 4}),
        ("before", 2, {}),
        ("1", 0, {}),
    ]:
        check(case, whole, name, num_workers, **more)


STREAM_ROWS = [(case, n) for case in STREAMS for n in (0, 1, 2, 3) if n in (0, 2) or case.name == "stream with a state"]


@ours_only
@pytest.mark.parametrize(("case", "num_workers"), STREAM_ROWS, ids=str)
def test_streams_from_every_position(case: Case, num_workers: int) -> None:
    whole = uninterrupted(case, num_workers)
    last = str(len(whole.first))
    some = {0: list(whole.saved), 1: ["before", "2", last, "end"], 2: ["0", "3", last], 3: ["4", "end"]}
    for name in some[num_workers]:
        check(case, whole, name, num_workers)


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_loads_no_sample_it_does_not_deliver(num_workers: int) -> None:
    for case in (case for case in MAPS if case.name in ("plain", "shuffle", "sampler with a state")):
        whole = uninterrupted(case, num_workers)
        seed_all(999)
        loader = new_loader(case, num_workers)
        loader.load_state_dict(whole.saved["3"].state)
        rest = {int(index) for batch in drain(loader) for index in batch[:, 0].tolist()}
        assert loader.dataset.loaded.tolist() == [int(index in rest) for index in range(23)]


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
@rows([case for case in STREAMS if case.name in ("stream with a state", "stream of iterators with a state")])
def test_a_stream_with_a_state_is_not_replayed(case: Case, num_workers: int) -> None:
    whole = uninterrupted(case, num_workers)
    loader = new_loader(case, num_workers)
    loader.load_state_dict(whole.saved["3"].state)
    rest = {int(index) for batch in drain(loader) for index in batch[:, 0].tolist()}
    assert loader.dataset.loaded.tolist() == [int(index in rest) for index in range(23)]


@ours_only
def test_a_generator_needs_no_restored_rng() -> None:
    case = next(case for case in MAPS if case.name == "generator")
    whole = uninterrupted(case, 2)
    for name in ("before", "0", "2", "end"):
        _, epochs = resume(case, whole.saved[name], 0, restore_rng=False)
        assert bytes_of(epochs[0]) == expected(whole, name)[0]
        if name != "end":
            assert bytes_of(epochs[1]) == bytes_of(whole.second)


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
@rows([case for case in MAPS if case.name in ("shuffle", "weighted", "sampler with a state", *LAZY)])
def test_the_rest_of_the_epoch_needs_no_restored_rng(case: Case, num_workers: int) -> None:
    whole = uninterrupted(case, 2)
    _, epochs = resume(case, whole.saved["2"], num_workers, restore_rng=False)
    assert bytes_of(epochs[0]) == bytes_of(whole.first)[2:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_asking_for_the_state_changes_nothing(num_workers: int) -> None:
    """Neither the batches nor a state taken before."""
    case = Case("", lambda: Squares(23), lambda _: {"batch_size": 4, "shuffle": True})
    whole = uninterrupted(case, num_workers)
    seed_all(13)
    loader = new_loader(case, num_workers)
    if CLASS_UNDER_TEST == "antifreeze":  # torchdata draws when it is asked before iter()
        assert_same([drain(loader), drain(loader)], [whole.first, whole.second])
    loader = new_loader(case, num_workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    before = pickle.dumps(state)
    drain(batches)
    assert pickle.dumps(state) == before


@ours_only
@pytest.mark.parametrize("dataset", [Counted(), StatefulStream(9)], ids=["map-style", "stream with a state"])
def test_a_state_is_plain_data(dataset: Any) -> None:
    loader = Ours(dataset, batch_size=4, generator=torch.Generator())
    for state in (loader.state_dict(), [next(iter(loader)), loader.state_dict()][1]):
        assert type(state) is dict
        assert_same(json.loads(json.dumps(state)), state)
        assert_same(pickle.loads(pickle.dumps(state)), state)
        assert_same(through_a_file(state), state)
        assert_same(copy.deepcopy(state), state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_loader_can_be_saved_and_resumed(num_workers: int) -> None:
    case = Case("", lambda: Squares(23), lambda _: {"batch_size": 4, "shuffle": True})
    seed_all(13)
    loader = new_loader(case, num_workers)
    whole: list[Any] = []
    for _ in range(6):
        batches = iter(loader)
        whole.append(next(batches))
        state = loader.state_dict()
        loader = new_loader(case, num_workers)
        loader.load_state_dict(state)
    assert list(loader) == []
    assert sorted(torch.cat([batch[1] for batch in whole]).tolist()) == list(range(23))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_load_state_dict_into_the_very_loader(num_workers: int) -> None:
    loader = Ours(Squares(10), batch_size=3, num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = drain(batches)
    loader.load_state_dict(state)
    assert_same(drain(loader), rest)
    assert len(drain(loader)) == 4, "a state is for one epoch"
    loader.load_state_dict({})
    assert len(drain(loader)) == 4


AS_TORCHDATA: list[tuple[int, dict[str, Any]]] = [
    (0, {"batch_size": 3}),
    (0, {"batch_size": 3, "drop_last": True}),
    (0, {"batch_size": None}),
    (0, {"batch_sampler": [[3, 1], [4], [1, 5]]}),
    (2, {"batch_size": 3}),
]


@pytest.mark.parametrize(("num_workers", "kwargs"), AS_TORCHDATA, ids=str)
def test_the_same_shape_of_use_as_torchdata(num_workers: int, kwargs: dict[str, Any]) -> None:
    StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    case = Case("", lambda: Squares(7), lambda _: kwargs)
    ours, torchdatas = (uninterrupted(case, num_workers, cls) for cls in (Ours, StatefulDataLoader))
    assert_same(ours.first, torchdatas.first)
    assert list(ours.saved) == list(torchdatas.saved)
    for name in list(ours.saved) if not num_workers else ["1", str(len(ours.first)), "end"]:
        resumed = [resume(case, whole.saved[name], num_workers, cls)[1] for whole, cls in ((ours, Ours), (torchdatas, StatefulDataLoader))]
        assert_same(resumed[0], resumed[1])


MISFITS: list[tuple[str, Any, dict[str, Any], Any, dict[str, Any], list[str]]] = [
    ("length", Counted, {"batch_size": 4}, lambda: Counted(24), {"batch_size": 4}, ["23", "24"]),
    ("batch size", Counted, {"batch_size": 4}, Counted, {"batch_size": 5}, ["batch_size", "4", "5"]),
    ("batches or none", Counted, {"batch_size": 4}, Counted, {"batch_size": None}, ["batch_size", "4", "None"]),
    ("drop_last", Counted, {"batch_size": 4}, Counted, {"batch_size": 4, "drop_last": True}, ["drop_last"]),
    ("stream for map", Counted, {"batch_size": 4}, Count, {"batch_size": 4}, ["iterable", "map-style"]),
    ("map for stream", Count, {"batch_size": 4}, Counted, {"batch_size": 4}, ["iterable", "map-style"]),
    ("sampler", Counted, {"batch_size": 4}, Counted, {"batch_size": 4, "shuffle": True}, ["SequentialSampler", "RandomSampler"]),
]


@ours_only
@pytest.mark.parametrize(
    ("make", "kwargs", "other", "other_kwargs", "words"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS]
)
@pytest.mark.parametrize("taken", [0, 2])
def test_a_state_of_another_loader_is_refused(make: Any, kwargs: Any, other: Any, other_kwargs: Any, words: list[str], taken: int) -> None:
    from antifreeze.errors import StateMismatch

    loader = Ours(make(), **kwargs)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    refusing = Ours(other(), **other_kwargs)
    with pytest.raises(StateMismatch) as raised:
        refusing.load_state_dict(loader.state_dict())
    said = str(raised.value)
    del raised  # with the frames it holds
    assert all(word in said for word in words), said
    assert len(drain(refusing)) > 0, "and the loader can be used"


@ours_only
@pytest.mark.parametrize("state", [{"_num_yielded": 3}, [1], "state", 7, {"version": 99}], ids=str)
def test_what_is_no_state_is_refused(state: Any) -> None:
    from antifreeze.errors import StateMismatch

    with pytest.raises(StateMismatch):
        Ours(Counted(), batch_size=4).load_state_dict(state)


@ours_only
@pytest.mark.parametrize("before", [True, False])
def test_a_generator_more_or_less_is_refused_within_an_epoch_and_fine_between_two(before: bool) -> None:
    from antifreeze.errors import StateMismatch

    def loader(seeded: bool) -> Any:
        return Ours(Counted(), batch_size=4, shuffle=True, generator=torch.Generator() if seeded else None)

    saved, other = loader(before), loader(not before)
    next(iter(saved))
    with pytest.raises(StateMismatch, match="generators of its own"):
        other.load_state_dict(saved.state_dict())
    drain(saved)
    other.load_state_dict(saved.state_dict())
    assert len(drain(other)) == 6


@ours_only
@pytest.mark.parametrize("make", [Counted, Count])
def test_a_state_that_lacks_something_says_what(make: Any) -> None:
    from antifreeze.errors import StateMismatch

    saved = Ours(make(), batch_size=4)
    next(iter(saved))
    state = saved.state_dict()
    for name in state.keys() - {"version", "fingerprint", "drawn", "asked", "sampler_state_at_end"}:
        with pytest.raises(StateMismatch, match=name):
            Ours(make(), batch_size=4).load_state_dict({key: value for key, value in state.items() if key != name})


@ours_only
def test_a_batch_sampler_of_another_size_is_refused() -> None:
    from antifreeze.errors import StateMismatch

    def loader(size: int) -> Any:
        return Ours(Counted(), batch_sampler=BatchSampler(SequentialSampler(range(23)), size, False))

    saved = loader(4)
    next(iter(saved))
    with pytest.raises(StateMismatch, match="batch"):
        loader(5).load_state_dict(saved.state_dict())


@ours_only
def test_out_of_order_delivers_each_batch_once() -> None:
    """What came early is not loaded again, what was passed over is."""
    case = Case("", lambda: Squares(40), lambda _: {"batch_size": 2, "in_order": False})
    loader = new_loader(case, 3)
    batches = iter(loader)
    seen = [next(batches)[1] for _ in range(7)]
    saved = Saved(through_a_file(loader.state_dict()), rng_now(), 7)
    _, (rest, _) = resume(case, saved, 2)
    assert sorted(torch.cat([*seen, *(batch[1] for batch in rest)]).tolist()) == list(range(40))


class CountedByItself(IterableDataset[int]):
    """Its position is the data set's own, so two streams in one process must not share it."""

    def __init__(self) -> None:
        self.next: int | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        self.next = first if self.next is None else self.next
        while self.next < 24:
            self.next += step
            yield self.next - step
        self.next = None

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


@ours_only
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_without_a_state_begins_at_its_beginning_beside_one_with(num_workers: int) -> None:
    saved = Ours(CountedByItself(), batch_size=4, num_workers=2)
    assert next(iter(saved)).tolist() == [0, 2, 4, 6]
    loader = Ours(CountedByItself(), batch_size=4, num_workers=num_workers)
    loader.load_state_dict(saved.state_dict())
    rest = [[1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15], [16, 18, 20, 22], [17, 19, 21, 23]]
    assert [batch.tolist() for batch in loader] == rest


class Mute(Count):
    """Has a state, and does not give it; torch never asks for it."""

    def state_dict(self) -> Any:
        raise RuntimeError("not now")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("nobody has a state of this")


class Unpicklable(Mute):
    def state_dict(self) -> Any:
        return {"where": lambda: 0}


@ours_only
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Mute, Unpicklable])
@pytest.mark.filterwarnings("ignore:antifreeze. stream 0 has no state")
def test_a_stream_whose_state_cannot_be_had_is_loaded_all_the_same_and_drawn_again(kind: type[Mute], num_workers: int) -> None:
    whole = drain(Ours(Count(), batch_size=4))
    loader = Ours(kind(), batch_size=4, num_workers=num_workers)
    batches = iter(loader)
    assert_same(next(batches), whole[0])
    state = loader.state_dict()
    assert_same(list(batches), whole[1:])
    again = Ours(kind(), batch_size=4, num_workers=num_workers)
    again.load_state_dict(state)
    assert_same(drain(again), whole[1:])


@ours_only
def test_why_a_stream_has_no_state_is_said_once() -> None:
    with pytest.warns(UserWarning, match=r"stream 0 has no state, as state_dict\(\) of Mute failed.*RuntimeError: not now") as said:
        drain(Ours(Mute(), batch_size=4))
    assert len(said) == 1


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_taken_before_the_first_batch(num_workers: int) -> None:
    loader = Ours(range(40), batch_size=4, shuffle=True, num_workers=num_workers)
    batches = iter(loader)
    state = loader.state_dict()
    whole = [batch.tolist() for batch in batches]
    torch.manual_seed(999)
    other = Ours(range(40), batch_size=4, shuffle=True)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == whole


@pytest.mark.filterwarnings("ignore:antifreeze. sampler.set_epoch")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("delivered", [0, 2, 5])
def test_a_run_that_nobody_sets_the_epoch_of_goes_on_as_it_would_have(num_workers: int, delivered: int) -> None:
    def loader() -> Any:
        sampler: Any = DistributedSampler(range(40), 2, 0)  # type: ignore[arg-type]
        return Ours(range(40), 4, sampler=sampler, num_workers=num_workers, persistent_workers=num_workers > 0)

    first = loader()
    list(first)
    iterator = iter(first)
    for _ in range(delivered):
        next(iterator)
    if delivered == 5:
        assert next(iterator, None) is None
    state = first.state_dict()
    rest = [batch.tolist() for batch in [*iterator, *first, *first]]
    resumed = loader()
    resumed.load_state_dict(state)
    epochs = [*resumed, *resumed] if delivered == 5 else [*resumed, *resumed, *resumed]
    assert [batch.tolist() for batch in epochs] == rest
    for each in (first, resumed):
        each.close()
