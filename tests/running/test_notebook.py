"""`%load_ext antifreeze` in a real IPython."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import ended

CELLS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
class Before(DataLoader): pass
%load_ext antifreeze
print(DataLoader.__module__, torch.utils.data.DataLoader.__module__)
%antifreeze --on-bad-sample skip --workers=2
%antifreeze --no-such-option 3
%antifreeze --sample-timeout soon
loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=5)
print(len(list(loader)), loader.num_workers, loader._own_options.on_bad_sample.value)
%antifreeze report
%unload_ext antifreeze
print(DataLoader.__module__, DataLoader(TensorDataset(torch.arange(10.0))).num_workers)
%load_ext antifreeze
%antifreeze
print(DataLoader.__module__)
"""


def test_in_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    (tmp_path / "cells.ipy").write_text(CELLS)
    done = ended([sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "cells.ipy"], tmp_path, {"IPYTHONDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr + done.stdout
    lines = [line for line in done.stdout.splitlines() if line]
    before = (
        "antifreeze: __main__.Before was derived from torch's DataLoader before %load_ext and stays so; run its cell again to change that"
    )
    assert lines[:3] == [
        before,
        "antifreeze.loader antifreeze.loader",
        "antifreeze: loaders made from now on: on_bad_sample='skip', num_workers=2",
    ]
    assert lines[3].startswith("antifreeze: '--no-such-option' is no option of %antifreeze; there are report, --on-bad-sample")
    assert lines[4:6] == ["antifreeze: --sample-timeout soon: expected SECONDS|none", "2 2 skip"]
    assert lines[6].startswith("antifreeze: so far: the loader, made at Cell In[")
    assert lines[-4:] == [
        "torch.utils.data.dataloader 0",
        before,
        "antifreeze: loaders made from now on: as the code says",
        "antifreeze.loader",
    ]
