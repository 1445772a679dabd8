"""Every module under src/antifreeze keeps the rules; and each rule is shown to fail on a small bad source."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_rules import RULES, layer_breaches, process_breaches, purity_breaches, select_breaches, torch_private_breaches, waiting_breaches

SRC = Path(__file__).parents[2] / "src" / "antifreeze"
MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_the_rules(module: str) -> None:
    source = (SRC / module).read_text(encoding="utf-8")
    breaches = [breach for rule in RULES for breach in rule(module, source)]
    assert not breaches, "\n" + "\n".join(breaches)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors.py", "from antifreeze.events import Stall"),
        ("slots/ring.py", "import antifreeze.supervisor.pool"),
        ("slots/ring.py", "from antifreeze import supervisor"),
        ("slots/ring.py", "from antifreeze.channel.socket import Channel"),  # the same row, another package
        ("slots/ring.py", "from ..worker import main"),
        ("slots/ring.py", "def late():\n    from antifreeze.loader import DataLoader"),
        ("worker/main.py", "from antifreeze import DataLoader"),  # a public name: the package itself stands above
        ("worker/main.py", "import antifreeze"),
        ("cli.py", "from antifreeze.loader import DataLoader"),
        ("loader.py", "import antifreeze.cli"),
        ("options.py", "from . import events"),
        ("utils.py", "import os"),  # in no layer
    ],
)
def test_layers_can_fail(module: str, source: str) -> None:
    assert len(layer_breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors.py", "import os"),
        (
            "slots/ring.py",
            "from antifreeze.slots.layout import Layout\nfrom .layout import Leaf\nfrom antifreeze.errors import LoaderClosed",
        ),
        ("slots/ring.py", "from antifreeze import options, torch_private\nimport torch"),
        ("loader.py", "from antifreeze.report import Report\nfrom antifreeze.supervisor.pool import Pool"),
        ("__init__.py", "from antifreeze.loader import DataLoader\nfrom .errors import AntifreezeError"),
        ("__main__.py", "from antifreeze.cli import main"),
    ],
)
def test_layers_let_through_what_is_right(module: str, source: str) -> None:
    assert layer_breaches(module, source) == []


@pytest.mark.parametrize("module", ["supervisor/state.py", "supervisor/policy.py", "doctor/findings.py", "doctor/findings/memory.py"])
@pytest.mark.parametrize(
    "line", ["import os", "import os.path", "from time import monotonic", "import multiprocessing as mp", "from torch import nn"]
)
def test_purity_can_fail(module: str, line: str) -> None:
    assert len(purity_breaches(module, f"def decide():\n    {line}")) == 1
    assert purity_breaches("supervisor/pool.py", line) == []


@pytest.mark.parametrize(
    "call",
    [
        "os.fork()",
        "fork()",
        "os.kill(pid, 9)",
        "os.killpg(pid, 9)",
        "signal.pidfd_send_signal(fd, 9)",
        "context.Process(target=main)",
        "multiprocessing.get_context('fork').Process(target=main)",
        "subprocess.run(['true'])",
        "subprocess.Popen(['true'])",
    ],
)
def test_only_one_file_starts_or_kills_can_fail(call: str) -> None:
    assert len(process_breaches("supervisor/pool.py", call)) == 1
    assert process_breaches("supervisor/process.py", call) == []


def test_asking_the_one_file_to_kill_is_free() -> None:
    assert process_breaches("supervisor/pool.py", "worker.kill()\nself.worker.terminate()") == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch.utils.data._utils.collate",
        "from torch.utils.data import _utils",
        "from torch.utils.data._utils import worker",
        "from torch.utils.data.dataloader import _BaseDataLoaderIter",
        "import torch\ntorch._C._get_privateuse1_backend_name()",
        "import torch.utils.data as tud\ntud._utils.worker",
        "from torch.utils import data\ngetattr(data, '_utils')",
        "isinstance(it, dataloader._BaseDataLoaderIter)",
    ],
)
def test_only_one_file_touches_torch_private_can_fail(source: str) -> None:
    assert torch_private_breaches("loader.py", source)
    assert torch_private_breaches("torch_private.py", source) == []


def test_public_torch_and_our_own_private_names_are_free() -> None:
    source = "import torch\nfrom torch.utils.data import DataLoader\ntorch.from_numpy(x).numpy()\nself._plan\ntorch.__version__\nring._free"
    assert torch_private_breaches("loader.py", source) == []


@pytest.mark.parametrize(
    "source", ["import threading\ndone = threading.Event()", "from threading import Condition", "import threading as t\nt.Semaphore(2)"]
)
def test_waiting_at_gates_can_fail(source: str) -> None:
    assert waiting_breaches("supervisor/threads.py", source)
    assert not waiting_breaches("doctor/command.py", source)
    assert not waiting_breaches("supervisor/threads.py", "import threading\nlock = threading.Lock()")


def test_waiting_whatever_the_file_number_can_fail() -> None:
    source = "import select\nselect.select([line], [], [], 1.0)"
    assert select_breaches("supervisor/pool.py", source)
    assert not select_breaches("worker/held_loop.py", source)
    assert not select_breaches("supervisor/pool.py", "import select\nselect.poll()")
