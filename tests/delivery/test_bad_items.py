"""Bad items of a stream: left out and reported, nothing else missing; a stream that cannot be led past one comes to its end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from antifreeze import DataLoader
from antifreeze.errors import AntifreezeWarning, BadSample, SampleLost, SampleTimeout

ITEMS, BATCH, BAD = 24, 4, 13
REST = [number for number in range(ITEMS) if number != BAD]


def commit(crime: str) -> Any:
    if crime == "raise":
        raise ValueError("torn")
    if crime == "leave":
        raise SystemExit(0)
    if crime == "hang":
        time.sleep(1000)
    if crime == "exit":
        os._exit(3)
    if crime == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(2) if crime == "another shape" else None


class Items:
    """An iterator that goes on after what it raised. (Asked for an iterator again, it begins again: nobody may ask.)"""

    def __init__(self, crimes: dict[int, str]) -> None:
        self.crimes = crimes
        self.at = -1

    def __iter__(self) -> Items:
        self.at = -1
        return self

    def __next__(self) -> Any:
        self.at += 1
        if self.at >= ITEMS:
            raise StopIteration
        return commit(self.crimes[self.at]) if self.at in self.crimes else torch.tensor([float(self.at)])


class Stream(IterableDataset[Any]):
    """Only the first worker commits crimes."""

    def __init__(self, crimes: dict[int, str], generator: bool = False) -> None:
        self.crimes = crimes
        self.generator = generator

    def __iter__(self) -> Any:
        info = get_worker_info()
        items = Items(self.crimes if info is None or info.id == 0 else {})
        return self.generate(items) if self.generator else items

    @staticmethod
    def generate(items: Items) -> Iterator[Any]:
        for _ in range(ITEMS):
            yield next(items)


def carrying_on(loader: Any, most_errors: int = 4) -> tuple[list[list[float]], list[Exception]]:
    """A loop that catches every error and calls next again."""
    iterator, batches, errors = iter(loader), [], []
    while len(errors) < most_errors:
        try:
            batches.append(next(iterator).flatten().tolist())
        except StopIteration:
            break
        except Exception as error:
            errors.append(error)
    return batches, errors


def indices(loader: Any) -> list[Any]:
    return [record.failure.index for record in loader.report().bad_samples]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("crime", ["None", "raise", "another shape"])
@pytest.mark.parametrize("collate", [None, torch.stack])
def test_only_the_bad_item_is_missing_and_batches_stay_full(crime: str, num_workers: int, collate: Any) -> None:
    with DataLoader(Stream({BAD: crime}), BATCH, num_workers=num_workers, collate_fn=collate, on_bad_sample="skip") as loader:
        batches, errors = carrying_on(loader)
        assert not errors
        assert indices(loader) == [f"{BAD} of stream 0"]
    assert [number for batch in batches for number in batch] == REST
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_come_short_by_choice(num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "on_bad_sample": "skip", "keep_batches_full": False}
    with DataLoader(Stream({BAD: "None", 16: "raise", 17: "None", 18: "None", 19: "None"}), BATCH, **options) as loader:
        batches, _ = carrying_on(loader)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 14, 15], [20, 21, 22, 23]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_batching_an_item_is_a_batch(num_workers: int) -> None:
    with DataLoader(Stream({BAD: "None"}), None, num_workers=num_workers, on_bad_sample="skip") as loader:
        assert [int(sample) for sample in loader] == REST
        assert indices(loader) == [f"{BAD} of stream 0"]
    with DataLoader(Stream({BAD: "None"}), None, num_workers=num_workers) as loader:  # as torch does
        assert [sample is None for sample in loader] == [number == BAD for number in range(ITEMS)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_generator_is_over_when_it_raises_and_that_is_said(num_workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    with DataLoader(Stream({BAD: "raise"}, generator=True), BATCH, num_workers=num_workers, on_bad_sample="skip") as loader:
        batches, errors = carrying_on(loader)
        report = str(loader.report())
    assert [number for batch in batches for number in batch] == list(range(BAD))
    assert not errors
    for said in (" ".join(report.split()), capfd.readouterr().err):
        assert "the rest of stream 0 is lost because a generator cannot go on after an exception" in said
    assert "1 ended at a bad sample" in report


def test_an_end_right_after_an_exception_is_said() -> None:
    class Over(Items):
        def __next__(self) -> Any:
            if self.at == BAD:
                raise StopIteration
            return super().__next__()

    class Short(Stream):
        def __iter__(self) -> Any:
            return Over(self.crimes)

    with DataLoader(Short({BAD: "raise"}), BATCH, on_bad_sample="skip") as loader:
        batches, _ = carrying_on(loader)
        assert "ended right after it" in " ".join(str(loader.report()).split())
    assert [number for batch in batches for number in batch] == list(range(BAD))


def test_a_stream_of_nothing_but_bad_items_comes_to_its_end() -> None:
    class Never(Stream):
        def __iter__(self) -> Any:
            return iter(lambda: None, 1)

    with DataLoader(Never({}), BATCH, on_bad_sample="skip") as loader:
        with pytest.warns(AntifreezeWarning, match="no batch came in this epoch"):
            assert list(loader) == []
        assert len(loader.report().bad_samples) == 1000
        assert "in a row were bad, so stream 0 ends here" in loader.report().bad_samples[-1].failure.explanation


@pytest.mark.parametrize("crime", ["kill", "exit", "hang"])
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_stream_that_cannot_be_led_past_an_item_ends_before_it(crime: str, policy: str) -> None:
    limit_s = 0.6 if crime == "hang" else 100.0
    options: dict[str, Any] = {"num_workers": 2, "sample_timeout_s": limit_s, "multiprocessing_context": "fork"}
    with pytest.warns(UserWarning), DataLoader(Stream({BAD: crime}), BATCH, on_bad_sample=policy, **options) as loader:
        batches, errors = carrying_on(loader)
        report = loader.report()
    came = [number for batch in batches for number in batch]
    assert sorted(came) == sorted([*range(BAD), *range(ITEMS)])
    assert report.streams_ended == 1
    told = [record.failure for record in (report.bad_samples if policy == "skip" else report.raised)]
    assert told[-1].index == f"{BAD} of stream 0"
    assert f"stream 0 ends here, after {BAD} samples" in told[-1].message
    if policy == "skip":
        assert not errors
    else:
        assert {type(error) for error in errors} == {SampleTimeout if crime == "hang" else SampleLost}
        assert len(errors) == (2 if crime == "hang" else 1), "a stream that hung once may go on"


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("crime", "kind"), [("raise", ValueError), ("None", BadSample), ("another shape", RuntimeError)])
def test_the_error_names_stream_and_item_and_the_loop_may_go_on(crime: str, kind: type[Exception], num_workers: int) -> None:
    with DataLoader(Stream({BAD: crime}), BATCH, num_workers=num_workers) as loader:
        batches, (error,) = carrying_on(loader)
        assert loader.report().raised[0].failure.type_name.endswith(kind.__name__)
    assert isinstance(error, kind)
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    if num_workers or hasattr(error, "__notes__"):
        assert f"sample {BAD} of stream 0" in said
    assert set(REST) - {number for batch in batches for number in batch} <= {12, 14, 15}


def test_an_exception_that_would_end_a_process_is_an_item_like_any_other() -> None:
    with DataLoader(Stream({BAD: "leave"}), BATCH, num_workers=1, on_bad_sample="skip") as loader:
        batches, _ = carrying_on(loader)
        assert loader.report().restarts == 0
    assert [number for batch in batches for number in batch] == REST


def raises_for_bad(index: Any, error: BaseException) -> str:
    return "raise" if "torn" in str(error) else "skip"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_after_a_policy_that_raises_nothing_else_is_missing(num_workers: int) -> None:
    with DataLoader(Stream({3: "None", BAD: "raise"}), BATCH, num_workers=num_workers, on_bad_sample=raises_for_bad) as loader:
        batches, (error,) = carrying_on(loader)
        assert isinstance(error, ValueError)
        assert [number for batch in batches for number in batch] == [number for number in REST if number != 3]
        assert "1 skipped, 1 raised" in str(loader.report())


def fails(index: Any, error: BaseException) -> str:
    raise KeyError("no policy for it")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_after_a_policy_that_fails_the_item_is_named_and_nothing_else_is_missing(num_workers: int) -> None:
    with DataLoader(Stream({BAD: "raise"}), BATCH, num_workers=num_workers, on_bad_sample=fails) as loader:
        batches, (error,) = carrying_on(loader)
        assert [record.failure.index for record in loader.report().raised] == [f"{BAD} of stream 0"]
    assert isinstance(error, KeyError)
    assert [number for batch in batches for number in batch] == REST
    if hasattr(error, "__notes__"):
        assert f"sample {BAD} of stream 0" in "".join(error.__notes__)


class Shuffled(Stream):
    """What comes depends on every random number before: drawn again in another way, it would be seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__({2: "None", 3: "raise", 9: "another shape", 17: "raise"})
        self.folder = folder

    def __iter__(self) -> Any:
        return self.Noise(self.crimes, self.folder)

    class Noise(Items):
        def __init__(self, crimes: dict[int, str], folder: Path) -> None:
            super().__init__(crimes)
            self.folder = folder
            self.walk = 0.0

        def __next__(self) -> Any:
            sample = super().__next__()
            self.walk += random.random()
            if self.at == 19 and (self.folder / "dies").exists():
                (self.folder / "dies").unlink()
                os._exit(3)
            return sample if sample is None or sample.numel() > 1 else torch.tensor([self.at + self.walk])


def test_a_lost_worker_and_a_resume_change_nothing(tmp_path: Path) -> None:
    def loader(num_workers: int = 1) -> Any:
        torch.manual_seed(3)
        return DataLoader(Shuffled(tmp_path), 3, num_workers=num_workers, on_bad_sample="skip", multiprocessing_context="fork")

    with loader() as calm:
        expected, _ = carrying_on(calm)
    assert len(expected) == 7
    (tmp_path / "dies").touch()
    with loader() as shaken:
        assert carrying_on(shaken)[0] == expected
        assert shaken.report().restarts == 1
        assert indices(shaken) == [f"{item} of stream 0" for item in (2, 3, 9, 17)]
    for done in range(len(expected)):
        with loader() as begun:
            iterator = iter(begun)
            before = [next(iterator).flatten().tolist() for _ in range(done)]
            state = begun.state_dict()
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert before + carrying_on(resumed)[0] == expected, f"resumed after {done} batches"
