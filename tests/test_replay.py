"""antifreeze replay: bad samples once more, whatever they do to the process that loads them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from antifreeze import DataLoader, cli
from antifreeze.errors import OptionError


class Sick(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise ValueError(f"unlucky {random.random()}")
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 5:
            os._exit(0)
        if index == 7:
            time.sleep(1000)
        return None if index == 9 else torch.tensor(index)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """What a run over it wrote."""
    file = tmp_path / "bad.jsonl"
    given: dict[str, Any] = {"multiprocessing_context": "fork", "sample_timeout_s": 0.6, "on_bad_sample": "skip"}
    with DataLoader(Sick(), 4, num_workers=2, bad_samples_file=file, **given) as loader:
        assert sum(map(len, loader)) == 7
    return file


def replay(*words: object) -> int:
    return cli.main(["replay", *map(str, words)])


def test_every_sample_is_run_again_whatever_it_does(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    was_said = next(record["message"] for record in map(json.loads, listed.read_text().splitlines()) if record["index"] == "1")
    assert replay(listed, "--limit", 2) == 1
    said = capsys.readouterr().out
    assert said.count(f"ValueError: {was_said}") == 2, "the same random numbers"
    assert "it died (SIGKILL)" in said
    assert "it died (exit code 0)" in said
    assert "it did not answer within 2 s" in said
    assert "it is None" in said
    assert said.endswith("0 of 5 samples load now, 5 still fail\n")


def test_a_list_that_the_run_itself_adds_to_may_begin_with_it_and_is_left_out_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    came = []
    for known in (0, 2):
        with DataLoader(Sick(), 4, sampler=[0, 1, 9, 2], on_bad_sample="skip", bad_samples_file=file, quarantine=file) as loader:
            came.append([index for batch in loader for index in batch.tolist()])
            assert len(loader.report().bad_samples) == 2 - known
            assert ("2 listed samples of an earlier run" in str(loader.report())) is bool(known)
    assert came == [[0, 2], [0, 2]]
    assert len(file.read_text().splitlines()) == 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_list_is_no_use_for_an_iterable_data_set_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"index": "1"}\n')
    with pytest.warns(UserWarning, match="Stream is an iterable data set"), DataLoader(Stream(), quarantine=file) as loader:
        assert [int(batch) for batch in loader] == [0, 1, 2]


class Unlucky(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> float:
        drawn = random.random(), float(np.random.randn()), torch.rand(300).sum().item()
        if index == 33:
            raise ValueError(f"unlucky {drawn}")
        return drawn[0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_sample_sees_the_random_numbers_it_had_seen(
    batch_size: int | None, num_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    with DataLoader(Unlucky(), batch_size, num_workers=num_workers, on_bad_sample="skip", bad_samples_file=file) as loader:
        list(loader)
    (told,) = (json.loads(line)["message"] for line in file.read_text().splitlines() if "unlucky" in line)
    replay(file, "--here")
    shown = capsys.readouterr().out
    assert "unlucky" in told and shown.count(told) == 2, "then, and now"


def test_one_line_in_this_process(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(listed, "--line", 1, "--here") == 1
    assert "0 of 1 samples load now" in capsys.readouterr().out


def test_a_line_that_was_cut_off_is_passed_over_and_does_not_spoil_the_next(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = listed.read_text()
    listed.write_text(whole + whole[:50])
    assert replay(listed, "--line", 1) == 1
    assert "line 6 of" in capsys.readouterr().err
    with pytest.raises(OptionError, match="line 6 is no JSON"):
        DataLoader(Sick(), quarantine=listed)
    with DataLoader(Sick(), 4, on_bad_sample="skip", bad_samples_file=listed, sampler=[1, 2]) as loader:
        list(loader)
    assert json.loads(listed.read_text().splitlines()[-1])["index"] == "1"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1]\n", 'line 1 has no "index" and "seed"'),
        ('{"index": "3", "seed": 1}\n{"index": "3"}\n', 'line 2 has no "index" and "seed"'),
        ("\x00\x01\n\n", "line 1 is no JSON"),
    ],
)
def test_what_is_no_list_is_refused_with_its_line(content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    assert replay(file, "--dataset", "tests.test_replay:Sick") == 1
    assert words in capsys.readouterr().err


def test_a_data_set_that_cannot_be_read_is_asked_for(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{listed}.dataset").write_bytes(b"garbage")
    assert replay(listed) == 1
    assert "--dataset MODULE:OBJECT" in capsys.readouterr().err


@pytest.mark.parametrize(("index", "words"), [(None, "failed as a whole"), ("3 of stream 0", "in order only"), ("<Key>", "read back")])
def test_what_cannot_be_replayed_is_said_and_the_rest_follows(
    index: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(json.dumps({"index": each, "seed": 1}) + "\n" for each in (index, "2")))
    assert replay(file, "--dataset", "tests.test_replay:Sick") == 1
    said = capsys.readouterr().out
    assert words in said
    assert said.endswith("1 of 2 samples load now, 1 still fail\n")
