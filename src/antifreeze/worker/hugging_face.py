"""Hugging Face data sets: the rows of a batch straight from their table, where what the data set would give is known.

1. Exactly datasets.Dataset, in the formats torch, numpy and none, with columns that are numbers or lists of one length: no code but the
   library's own takes part. All else (a transform, a decoder, strings, nulls, ragged lists, output_all_columns) is asked for.
2. The types are those of a sample that the data set itself gave; and before anything is gathered from a table, some rows are compared
   with what the data set and default_collate make of them: a version that converts otherwise is not gathered from.
3. Table, indices mapping and format are looked at anew for every batch: set_format() changes them in place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from antifreeze.slots.layout import Branch, Leaf, RowLayout, learn
from antifreeze.torch_private import default_collate
from antifreeze.worker.arrow_column import ArrowColumn, NoFixedRows, holds_numbers, makes_rows_of

_FORMATTERS = {
    "torch": ("datasets.formatting.torch_formatter", "TorchFormatter"),
    "numpy": ("datasets.formatting.np_formatter", "NumpyFormatter"),
    None: ("datasets.formatting.formatting", "PythonFormatter"),
}


def is_hugging_face(dataset: Any) -> bool:
    """Without importing a library that nobody uses."""
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and type(dataset) is getattr(module, "Dataset", None)


class TableRows:
    """The rows of one data set, as its table and its format are now."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._known: tuple[Any, ...] = ()
        self._layout: RowLayout | None = None
        self._columns: list[ArrowColumn] = []
        self._mapping: ArrowColumn | None = None
        self._rows = 0

    def layout(self) -> RowLayout | None:
        """None where the data set must be asked."""
        now = _state(self._dataset)
        if len(now) != len(self._known) or any(one is not other for one, other in zip(now, self._known, strict=True)):
            self._known, self._layout = now, None
            try:
                self._layout = self._learn()
            except Exception:  # whatever it is: the data set itself has the say, and its own error is the one to raise
                self._layout = None
        return self._layout

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        """Into the columns, in place; False where a row is not there, or is not like the others."""
        rows = chosen.numpy()
        if rows.min() < 0 or rows.max() >= self._rows:
            return False
        try:
            self._write(rows, columns)
        except NoFixedRows:
            self._layout = None
            return False
        return True

    def _write(self, rows: np.ndarray[Any, Any], columns: Sequence[torch.Tensor]) -> None:
        if self._mapping is not None:
            mapped = torch.empty(len(rows), dtype=torch.int64)
            self._mapping.write(rows, self._mapping.chunks_of(rows), mapped)
            rows = mapped.numpy()
        ends, chunks = None, rows
        for column, out in zip(self._columns, columns, strict=True):
            if ends is not column.ends:
                ends, chunks = column.ends, column.chunks_of(rows)
            column.write(rows, chunks, out)

    def _learn(self) -> RowLayout | None:
        dataset = self._dataset
        if not _is_understood(dataset) or not len(dataset):
            return None
        table, mapping = dataset.data.table, dataset._indices
        layout = learn(dataset.__getitems__([0])[0])
        if layout is None or not isinstance(layout.tree, Branch) or layout.tree.keys is None:
            return None
        named = list(zip(layout.tree.keys, layout.tree.children, strict=True))
        for name, leaf in named:
            if not isinstance(leaf, Leaf) or not makes_rows_of(table.schema.field(name).type, leaf.shape):
                return None
        self._columns = [ArrowColumn(table.column(name), leaf.shape) for name, leaf in named if isinstance(leaf, Leaf)]
        for column in self._columns[1:]:
            if np.array_equal(column.ends, self._columns[0].ends):
                column.ends = self._columns[0].ends  # one search serves all columns
        self._mapping = None if mapping is None else ArrowColumn(mapping.table.column(0), ())
        self._rows = len(dataset)
        return layout if self._agrees(layout) else None

    def _agrees(self, layout: RowLayout) -> bool:
        rows = sorted({0, self._rows // 2, self._rows - 1})
        theirs = default_collate(self._dataset.__getitems__(rows))
        ours = [torch.empty((len(rows), *leaf.shape), dtype=leaf.dtype) for leaf in layout.leaves]
        self._write(np.array(rows), ours)
        assert isinstance(layout.tree, Branch) and layout.tree.keys is not None
        return all(same_bytes(theirs[name], made) for name, made in zip(layout.tree.keys, ours, strict=True))


def may_gather(dataset: Any) -> bool:
    """Whether it looks as if rows could be gathered; decided without reading any."""
    try:
        schema = dataset.data.table.schema
        return _is_understood(dataset) and all(holds_numbers(schema.field(name).type) for name in dataset.format["columns"])
    except Exception:
        return False


def _state(dataset: Any) -> tuple[Any, ...]:
    """All that says what a sample is, by identity."""
    fields = ("_data", "_indices", "_format_type", "_format_columns", "_format_kwargs", "_output_all_columns", "_info")
    return tuple(getattr(dataset, field, None) for field in fields)


def _is_understood(dataset: Any) -> bool:
    way, features = dataset.format, dataset.features
    if way["type"] not in _FORMATTERS or way["format_kwargs"] or way["output_all_columns"] or not way["columns"]:
        return False
    module, name = _FORMATTERS[way["type"]]
    formatter = sys.modules["datasets.formatting"].get_formatter(way["type"])
    decodes = features._column_requires_decoding
    return type(formatter) is getattr(sys.modules.get(module), name, None) and not any(decodes[column] for column in way["columns"])


def same_bytes(theirs: Any, ours: torch.Tensor) -> bool:
    if type(theirs) is not torch.Tensor or theirs.dtype is not ours.dtype or theirs.shape != ours.shape:
        return False
    return theirs.contiguous().numpy().tobytes() == ours.numpy().tobytes()
