"""`antifreeze replay FILE`: the samples that a bad_samples_file lists, once more, each from the random numbers it had."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pickle
import sys
import traceback
from typing import Any

from antifreeze.delivery.bad_samples import DATASET_SUFFIX
from antifreeze.errors import OptionError
from antifreeze.worker.seeding import global_generators


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="what bad_samples_file= wrote")
    parser.add_argument(
        "--dataset", metavar="MODULE:OBJECT", help="the data set (or a function that makes it); default: the copy beside FILE"
    )
    parser.add_argument("--line", type=int, help="only this line of the file, counted from 1")


def run(args: argparse.Namespace) -> int:
    """0 when every sample loads now, 1 when one of them still fails."""
    records = read_records(args.file)
    if args.line is not None:
        if not 1 <= args.line <= len(records):
            raise OptionError(f"--line {args.line}: {args.file} has {len(records)} lines")
        records = records[args.line - 1 : args.line]
    dataset = named_dataset(args.dataset) if args.dataset else saved_dataset(args.file)
    failed = sum(not replay_one(dataset, record) for record in records)
    print(f"{len(records) - failed} of {len(records)} samples load now, {failed} still fail")
    return 1 if failed else 0


def replay_one(dataset: Any, record: dict[str, Any]) -> bool:
    index = _index_of(record)
    for generator in global_generators():
        generator.seed(record["seed"])
    print(f"sample {index!r} (seed {record['seed']}), then {record['exception']}: {record['message'].partition(chr(10))[0]}")
    try:
        sample = _ask(dataset, index)
    except Exception:
        print("  now:", *traceback.format_exc().splitlines(), sep="\n    ")
        return False
    print(f"  now: it loads, {type(sample).__name__}")
    return sample is not None


def _ask(dataset: Any, index: Any) -> Any:
    many = getattr(dataset, "__getitems__", None)
    return many([index])[0] if callable(many) else dataset[index]


def read_records(path: str) -> list[dict[str, Any]]:
    try:
        with open(path) as lines:
            return [json.loads(line) for line in lines]
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise OptionError(f"{path} is no list of bad samples: a line is no JSON") from None


def saved_dataset(path: str) -> Any:
    try:
        with open(path + DATASET_SUFFIX, "rb") as file:
            return pickle.load(file)
    except OSError:
        raise OptionError(
            f"{path}{DATASET_SUFFIX} is not there (the data set did not pickle); name it with --dataset MODULE:OBJECT"
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
    if record.get("index") is None:
        raise OptionError(f"batch {record['batch']} failed as a whole (in {record['stage']}): no single sample to replay")
    if " of stream " in record["index"]:
        raise OptionError(f"sample {record['index']}: an iterable data set gives its samples in order only; iterate it that far by hand")
    try:
        return ast.literal_eval(record["index"])
    except (ValueError, SyntaxError):
        raise OptionError(f"the index {record['index']} cannot be read back; replay it by hand") from None
