"""`antifreeze replay FILE`: the samples that a bad_samples_file lists, once more, each from the random numbers it had.

1. Each sample is loaded in a forked copy of this process: one that kills it, exits or hangs is told about, and the next one follows.
   With `--here` it is loaded in this very process, for a debugger.
2. What cannot be replayed (a batch that failed as a whole, an item of a stream) is said, and counts as a sample that does not load.
3. A last line that was cut off, by a full disk or a kill, is passed over; any other line that is no record is an error with its number.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

from antifreeze.checks.live.child import ask_child
from antifreeze.delivery.bad_samples import DATASET_SUFFIX
from antifreeze.errors import OptionError
from antifreeze.torch_private import load
from antifreeze.worker.generators import global_generators
from antifreeze.worker.hands import seed_for_sample


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="what bad_samples_file= wrote")
    parser.add_argument(
        "--dataset", metavar="MODULE:OBJECT", help="the data set (or a function that makes it); default: the copy beside FILE"
    )
    parser.add_argument("--line", type=int, help="only this line of the file, counted from 1")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="seconds that a sample may take (default 60)")
    parser.add_argument("--here", action="store_true", help="load in this process, for a debugger: one that crashes ends the command")


def run(args: argparse.Namespace) -> int:
    """0 when every sample loads now, 1 when one of them still fails."""
    records = read_records(args.file)
    if args.line is not None:
        if args.line not in records:
            raise OptionError(f"--line {args.line}: {args.file} has {max(records, default=0)} lines")
        records = {args.line: records[args.line]}
    dataset = named_dataset(args.dataset) if args.dataset else saved_dataset(args.file)
    failed = sum(not replay_one(dataset, record, None if args.here else args.limit) for record in records.values())
    print(f"{len(records) - failed} of {len(records)} samples load now, {failed} still fail")
    return 1 if failed else 0


def replay_one(dataset: Any, record: dict[str, Any], limit_s: float | None) -> bool:
    """Whether it loads; `limit_s` None: in this process, for as long as it takes."""
    first_line = str(record.get("message", "")).partition("\n")[0]
    path = f", {record['path']}" if record.get("path") else ""
    print(f"sample {record['index']} (seed {record['seed']}{path}), then {record.get('exception')}: {first_line}", flush=True)
    try:
        index = _index_of(record)
    except OptionError as why:
        print(f"  now: {why}")
        return False
    question = partial(_load, dataset, index, record["seed"])
    if limit_s is None:
        loads, told = question()
    else:
        asked = ask_child(question, limit_s)
        loads, told = asked.answer if asked.answer is not None else (False, f"it does not load: {asked.trouble}")
    print("  now:", *told.splitlines(), sep="\n    " if "\n" in told else " ")
    return bool(loads)


def _load(dataset: Any, index: Any, seed: int) -> tuple[bool, str]:
    """Whether it loads, and what is to be said about it."""
    for generator in global_generators():
        seed_for_sample(generator, seed)
    many = getattr(dataset, "__getitems__", None)
    try:
        sample = many([index])[0] if callable(many) else dataset[index]
    except BaseException:
        return False, traceback.format_exc().rstrip()
    return sample is not None, "it is None" if sample is None else f"it loads, {type(sample).__name__}"


def read_records(path: str) -> dict[int, dict[str, Any]]:
    """By the numbers of their lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    return dict(_records_of(path, lines))


def _records_of(path: str, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines) and not line.endswith("\n"):
                print(f"line {number} of {path} is cut off, and passed over", file=sys.stderr)
                return
            raise OptionError(f"{path}: line {number} is no JSON; expected what bad_samples_file wrote") from None
        if not isinstance(record, dict) or "index" not in record or not isinstance(record.get("seed"), int):
            raise OptionError(f'{path}: line {number} has no "index" and "seed"; expected what bad_samples_file wrote')
        yield number, record


def saved_dataset(path: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        with open(path + DATASET_SUFFIX, "rb") as file:
            return load(file)
    except OSError:
        raise OptionError(
            f"{path}{DATASET_SUFFIX} is not there (the data set did not pickle); name it with --dataset MODULE:OBJECT"
        ) from None
    except Exception as error:
        raise OptionError(
            f"{path}{DATASET_SUFFIX} cannot be read ({type(error).__name__}: {error}); where a module is missing, run this in the folder "
            "of the script; or name the data set with --dataset MODULE:OBJECT"
        ) from None


def named_dataset(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"--dataset {name}: {error}") from None
    return found if hasattr(found, "__getitem__") and not isinstance(found, type) else found()


def _index_of(record: dict[str, Any]) -> Any:
    if record["index"] is None:
        raise OptionError(f"batch {record.get('batch')} failed as a whole (in {record.get('stage')}): there is no single sample to replay")
    text = str(record["index"])
    if " of stream " in text:
        raise OptionError("an iterable data set gives its samples in order only; iterate it that far by hand")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise OptionError(f"the index {text} cannot be read back; replay it by hand") from None
