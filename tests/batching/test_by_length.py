"""BatchesByLength and StreamByLength: pure."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from antifreeze import BadSample, BatchesByLength, OptionError, StreamByLength
from antifreeze.plan.map_plan import MapPlan, Quarantine

LENGTHS = np.random.default_rng(0).integers(1, 500, 3000)
some_lengths = st.lists(st.integers(0, 300), max_size=80)


def epoch_of(sampler: BatchesByLength, epoch: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


@given(
    some_lengths,
    st.integers(1, 9) | st.none(),
    st.integers(300, 900),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 8]),
    st.integers(0, 3),
)
def test_every_sample_once_and_never_more_than_max_tokens(
    lengths: list[int], batch_size: int | None, max_tokens: int, padded: bool, shuffle: bool, multiple_of: int, epoch: int
) -> None:
    options: dict[str, Any] = {"max_tokens": max_tokens + 8, "padded": padded, "multiple_of": multiple_of, "shuffle": shuffle}
    sampler = BatchesByLength(lengths, batch_size, **options)
    batches = epoch_of(sampler, epoch)
    assert sorted(flat(batches)) == list(range(len(lengths))) and len(batches) == len(sampler)
    for batch in batches:
        sizes = [-(-lengths[index] // multiple_of) * multiple_of for index in batch]
        assert batch and (max(sizes) * len(sizes) if padded else sum(sizes)) <= max_tokens + 8
        assert batch_size is None or len(batch) <= batch_size


@given(some_lengths, st.integers(1, 9), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans())
def test_ranks_have_as_many_batches_and_together_everything(
    lengths: list[int], batch_size: int, ranks: int, drop_last: bool, shuffle: bool, by_tokens: bool
) -> None:
    limit: dict[str, Any] = {"max_tokens": 50 * batch_size, "too_long": "alone"} if by_tokens else {"batch_size": batch_size}
    options: dict[str, Any] = {"drop_last": drop_last, "shuffle": shuffle, "num_replicas": ranks, **limit}
    shares = [epoch_of(BatchesByLength(lengths, rank=rank, **options), 1) for rank in range(ranks)]
    alone = BatchesByLength(lengths, drop_last=drop_last, shuffle=shuffle, num_replicas=1, rank=0, **limit)
    assert {len(share) for share in shares} == {len(alone) // ranks if drop_last else -(-len(alone) // ranks)}
    delivered = flat([batch for share in shares for batch in share])
    if drop_last:
        assert len(set(delivered)) == len(delivered)
    else:
        assert set(delivered) == set(range(len(lengths)))


def test_drop_last_leaves_out_less_than_a_batch_and_not_the_same_samples() -> None:
    sampler = BatchesByLength(LENGTHS[:103], 10, shuffle=True, drop_last=True)
    left_out = [set(range(103)) - set(flat(epoch_of(sampler, epoch))) for epoch in range(4)]
    assert [len(some) for some in left_out] == [3] * 4 and len(set(map(frozenset, left_out))) > 1
    assert {len(batch) for batch in sampler} == {10}


def test_ranks_of_one_step_have_batches_about_as_long() -> None:
    samplers = [BatchesByLength(LENGTHS, 20, shuffle=True, num_replicas=4, rank=rank) for rank in range(4)]
    for step in zip(*samplers, strict=True):
        longest = [max(LENGTHS[batch]) for batch in step]
        assert max(longest) <= 1.25 * min(longest) + 16


def test_little_is_padding() -> None:
    by_chance = 1 - LENGTHS.sum() / sum(max(part) * len(part) for part in np.array_split(LENGTHS, 100))
    sampler = BatchesByLength(LENGTHS, 30, shuffle=True)
    used = sum(max(LENGTHS[batch]) * len(batch) for batch in sampler)
    assert by_chance > 0.4 and 1 - LENGTHS.sum() / used < 0.05 and abs(sampler.padding - (1 - LENGTHS.sum() / used)) < 0.02
    assert "3,000 samples in 100 batches" in repr(sampler)


def test_epochs_differ_and_are_the_same_again() -> None:
    sampler, again = (BatchesByLength(LENGTHS, max_tokens=4000, shuffle=True, seed=5) for _ in range(2))
    epochs = [list(sampler) for _ in range(3)]
    assert sampler.epoch == 2 and [epoch_of(again, epoch) for epoch in range(3)] == epochs
    assert epochs[0] != epochs[1] and {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}
    assert epoch_of(BatchesByLength(LENGTHS, max_tokens=4000, shuffle=True, seed=6)) != epochs[0]
    assert len({len(epoch) for epoch in epochs}) == 1
    assert sorted(map(len, epochs[0])) == sorted(map(len, epochs[1]))


def test_set_epoch_is_obeyed_and_an_iterator_that_is_never_used_counts_for_nothing() -> None:
    sampler = BatchesByLength(LENGTHS, 100, shuffle=True)
    iter(sampler)
    first = list(sampler)
    assert sampler.epoch == 0
    sampler.set_epoch(0)
    assert list(sampler) == first
    next(iter(sampler))
    assert sampler.epoch == 1  # an epoch that was broken off is over too
    sampler.set_epoch(7)
    assert list(sampler) != first and sampler.epoch == 7


def test_without_a_shuffle_the_longest_come_first_and_always_so() -> None:
    sampler = BatchesByLength(LENGTHS, 50)
    longest = [max(LENGTHS[batch]) for batch in sampler]
    assert longest == sorted(longest, reverse=True) and list(sampler) == list(sampler)


def test_what_is_too_long() -> None:
    lengths = [5, 900, 7, 1200]
    with pytest.raises(OptionError, match=r"2 of 4 samples are longer than max_tokens=100: 1 \(900\), 3 \(1,200\)"):
        BatchesByLength(lengths, max_tokens=100)
    assert sorted(map(sorted, BatchesByLength(lengths, max_tokens=100, too_long="alone"))) == [[0, 2], [1], [3]]
    skipping = BatchesByLength(lengths, max_tokens=100, too_long="skip")
    assert sorted(flat(list(skipping))) == [0, 2] and len(skipping) == 1


def test_what_is_too_long_once_it_is_rounded_up_is_told_so() -> None:
    with pytest.raises(OptionError, match=r"longer than max_tokens=10 when rounded up to multiple_of=8: 0 \(9\)"):
        BatchesByLength([9], max_tokens=10, multiple_of=8)
    with pytest.raises(BadSample, match="when rounded up to multiple_of=8"):
        list(StreamByLength([[0] * 9], max_tokens=10, multiple_of=8))


@pytest.mark.parametrize("padded", [True, False])
def test_samples_of_no_length_make_no_batch_without_end(padded: bool) -> None:
    assert max(map(len, BatchesByLength([0] * 1000, max_tokens=10, padded=padded))) == 10
    assert max(map(len, StreamByLength([[]] * 1000, max_tokens=10, padded=padded))) == 10


def test_numbers_may_be_numpys_or_beyond_all_bounds() -> None:
    sampler = BatchesByLength(LENGTHS, max_tokens=LENGTHS.max() * 4, shuffle=True, seed=np.int64(3), multiple_of=np.int32(8))
    sampler.set_epoch(torch.tensor(2))  # type: ignore[arg-type]
    assert sorted(flat(list(sampler))) == list(range(3000)) and sampler.epoch == 2
    assert [sorted(batch) for batch in BatchesByLength([3, 1, 2], 10**30, max_tokens=10**30)] == [[0, 1, 2]]
    assert [len(batch) for batch in StreamByLength([[1]] * 9, np.int64(3))] == [3, 3, 3]


@given(some_lengths.filter(bool), st.sampled_from([1, 8]), st.booleans())
def test_who_stands_in_is_no_longer_than_the_class_of_the_bad_one(lengths: list[int], multiple_of: int, padded: bool) -> None:
    sampler = BatchesByLength(lengths, max_tokens=100, multiple_of=multiple_of, padded=padded, too_long="skip")
    comes = flat(list(sampler))
    for index in comes:
        others = sampler.stand_ins(index).tolist()
        assert set(others) <= set(comes) - {index} and all(lengths[other] <= lengths[index] * 17 / 16 + 8 for other in others)
        assert others or not any(lengths[other] <= lengths[index] for other in comes if other != index)


def test_ranks_keep_to_max_tokens_where_a_quarantined_sample_is_replaced() -> None:
    lengths = np.append(np.arange(1, 40).repeat(5), [4000] * 50)
    listed = set(range(0, 195, 3))
    sampler = BatchesByLength(lengths, max_tokens=100, too_long="skip", shuffle=True)
    plan = MapPlan(sampler, True, quarantine=Quarantine(frozenset(map(repr, listed)), samples=len(lengths)))
    batches = [planned.indices for planned in iter(plan.draw, None)]
    assert len(batches) == len(sampler) and not listed.intersection(flat(batches))
    assert max(lengths[batch].max() * len(batch) for batch in batches) <= 100


@pytest.mark.parametrize("lengths", [[], torch.tensor([3, 1, 2]), np.array([3, 1, 2], dtype=np.uint8), (3, 1, 2), range(1, 4)])
def test_lengths_of_any_kind(lengths: Any) -> None:
    sampler = BatchesByLength(lengths, 2)
    assert sorted(flat(list(sampler))) == list(range(len(lengths))) and len(sampler) == (len(lengths) + 1) // 2 and repr(sampler)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([1],), {}, "give batch_size=, max_tokens=, or both"),
        (([1], 0), {}, "batch_size is a whole number from 1 on, not 0"),
        (([1],), {"max_tokens": 1.5}, "max_tokens is a whole number"),
        (([1], 1), {"too_long": "cut"}, "too_long is one of error, alone, skip"),
        (([1], 1), {"num_replicas": 2, "rank": 2}, "rank 2 of num_replicas=2 cannot be"),
        ((3, 1), {}, "lengths is a list or array of whole numbers, not int"),
        (([0.5], 1), {}, "not float64[1]"),
        (([[1]], 1), {}, "not int64[1, 1]"),
        (([1, -3], 1), {}, "sample 1 has the length -3"),
        ((np.array([1, 2**63 + 5], dtype=np.uint64), 1), {}, "sample 1 has the length 9,223,372,036,854,775,813"),
        (([1, 2**63 - 1], 1), {}, "sample 1 has the length 9,223"),
        (([[1], [1, 2]], 1), {}, "one for each sample"),
        (([1], True), {}, "batch_size is a whole number"),
        (([1], 1), {"seed": None}, "seed is a whole number, not None"),
        (([1], 1), {"num_replicas": 2.0}, "num_replicas is a whole number"),
    ],
)
def test_what_cannot_be_asked_for(arguments: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        BatchesByLength(*arguments, **options)
    assert words in str(caught.value)


def test_a_data_set_in_the_place_of_its_lengths_is_refused_and_not_read() -> None:
    class Endless(Dataset[int]):  # as numpy sees it: no IndexError ever comes
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            raise AssertionError("it was read")

    with pytest.raises(OptionError, match=r"not the data set itself \(Endless\); lengths_of\(dataset\) gives them"):
        BatchesByLength(Endless(), 100)


def test_a_sampler_is_pickled_and_its_copy_goes_on_by_itself() -> None:
    sampler = BatchesByLength(LENGTHS, 100, shuffle=True)
    first = list(sampler)
    copied = pickle.loads(pickle.dumps(sampler))
    following = sampler.of_next_epoch()
    assert list(copied) == list(sampler) == list(following) != first


def test_nobody_takes_all_batches_but_the_last_for_full() -> None:
    sampler = BatchesByLength(LENGTHS[:103], 10, shuffle=True)
    assert getattr(sampler, "batch_size", None) is None  # what accelerate asks: else it drops every step with a short batch in it
    assert any(len(batch) == 3 for epoch in range(9) for batch in epoch_of(sampler, epoch)[:-1])


def test_a_million_samples_take_no_time_to_speak_of() -> None:
    sampler = BatchesByLength(np.random.default_rng(1).integers(1, 2048, 1_000_000), max_tokens=32_768, shuffle=True)
    assert sum(map(len, sampler)) == 1_000_000 and sampler.padding < 0.03


# --- streams ---


@given(
    st.lists(st.integers(1, 60), max_size=100),
    st.integers(1, 9) | st.none(),
    st.integers(60, 200),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_of_a_stream_too_every_sample_once(
    lengths: list[int], batch_size: int | None, max_tokens: int, window: int, padded: bool, shuffle: bool
) -> None:
    stream = [[number] * length for number, length in enumerate(lengths)]
    batches = list(StreamByLength(stream, batch_size, max_tokens=max_tokens, window=window, padded=padded, shuffle=shuffle))
    assert sorted(sample[0] for batch in batches for sample in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = list(map(len, batch))
        assert sizes and (max(sizes) * len(sizes) if padded else sum(sizes)) <= max_tokens and len(sizes) <= (batch_size or 1000)


def test_how_a_samples_length_is_told() -> None:
    stream = [{"a": [0] * 3, "ids": [0] * length} for length in (9, 1, 8, 2)]
    by_name = list(StreamByLength(stream, 2, length="ids", shuffle=False))
    assert [[len(sample["ids"]) for sample in batch] for batch in by_name] == [[8, 9], [1, 2]]
    by_function = list(StreamByLength(stream, 2, length=lambda sample: -len(sample["ids"]), shuffle=False))
    assert [[len(sample["ids"]) for sample in batch] for batch in by_function] == [[2, 1], [9, 8]]
    with pytest.raises(OptionError, match="no array 'id'"):
        list(StreamByLength(stream, 2, length="id"))
    with pytest.raises(OptionError, match="no array"):
        list(StreamByLength([1, 2], 2))


class Patchy:
    """An iterator that goes on after what it raises."""

    def __init__(self, raises: bool) -> None:
        self.left = [[1], [2, 2], ValueError("cut off") if raises else ["no", "numbers"], [3, 3, 3], [4]]

    def __iter__(self) -> Patchy:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        sample = self.left.pop(0)
        if isinstance(sample, ValueError):
            raise sample
        return sample


@pytest.mark.parametrize("raises", [True, False])
def test_a_sample_that_raises_or_has_no_length_is_lost_alone(raises: bool) -> None:
    batches = iter(StreamByLength(Patchy(raises), 2, shuffle=False))
    with pytest.raises(ValueError, match="cut off" if raises else "a length cannot be told"):
        next(batches)
    assert list(batches) == [[[2, 2], [3, 3, 3]], [[1], [4]]]


def test_a_generator_that_raised_is_over_and_what_it_gave_comes_first() -> None:
    def stream() -> Any:
        yield [1]
        yield [2]
        raise ValueError("cut off")

    batches = iter(StreamByLength(stream(), 2))
    assert next(batches) == [[1], [2]]
    with pytest.raises(ValueError, match="cut off"):
        next(batches)
    assert list(batches) == []


def test_a_length_is_a_whole_number() -> None:
    with pytest.raises(OptionError, match=r"length=: what it gives is a whole number, not 2.7"):
        list(StreamByLength([[1]], 2, length=lambda sample: 2.7))  # type: ignore[arg-type, return-value]


def test_what_else_a_sample_has_does_not_matter_for_its_length() -> None:
    stream = [{"text": None, "picture": object(), "ids": [1] * length} for length in (3, 1)]
    assert list(StreamByLength(stream, 2)) == list(StreamByLength(stream, 2, length="ids")) == [stream[::-1]]


def test_what_is_too_long_in_a_stream() -> None:
    stream = [[0] * 3, [0] * 30, [0] * 2]
    with pytest.raises(BadSample, match="a sample of length 30 is longer than max_tokens=10"):
        list(StreamByLength(stream, max_tokens=10))
    assert sorted(map(len, flat(list(StreamByLength(stream, max_tokens=10, too_long="skip"))))) == [2, 3]  # type: ignore[arg-type]
    assert sorted(map(len, flat(list(StreamByLength(stream, max_tokens=10, too_long="alone"))))) == [2, 3, 30]  # type: ignore[arg-type]


def test_drop_last_of_a_stream() -> None:
    stream = [[0]] * 25
    assert [len(batch) for batch in StreamByLength(stream, 10, window=100, drop_last=True)] == [10, 10]
    assert sorted(len(batch) for batch in StreamByLength(stream, 10, window=100)) == [5, 10, 10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give batch_size="),
        ({"batch_size": 0}, "batch_size is a whole number"),
        ({"batch_size": 1, "window": 0}, "window is a whole number"),
        ({"batch_size": 1, "too_long": "cut"}, "too_long is one of"),
    ],
)
def test_what_cannot_be_asked_of_a_stream(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        StreamByLength([], **options)
    assert words in str(caught.value)
