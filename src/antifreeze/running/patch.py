"""The one place where torch is patched: its DataLoader's name is bound to ours wherever a module has it.

1. `torch.utils.data.DataLoader`, `torch.utils.data.dataloader.DataLoader` and every global of any module that is that very class.
2. A class derived from it later derives from ours. One that was derived before keeps torch's; so do loaders made before.
3. `isinstance(x, DataLoader)` holds for every loader made after it, also for those of `antifreeze.DataLoader` itself.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from antifreeze.loader import DataLoader
from antifreeze.torch_private import TorchDataLoader


def replace_torch() -> list[str]:
    """Returns where the name was bound anew, as module.name; nothing where it was done before."""
    return _rebind(TorchDataLoader, DataLoader)


def restore_torch() -> list[str]:
    """What replace_torch bound anew, and nothing else: a name that the user bound to ours stays."""
    back = []
    for module_name, name in _bound:
        module = sys.modules.get(module_name)
        if module is not None and vars(module).get(name) is DataLoader:
            vars(module)[name] = TorchDataLoader
            back.append(f"{module_name}.{name}")
    _bound.clear()
    return back


def derived_before() -> list[str]:
    """Classes that derive from torch's own class, and so keep its iterators."""
    return sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in TorchDataLoader.__subclasses__() if kind is not DataLoader)


_bound: list[tuple[str, str]] = []


def _rebind(old: Any, new: Any) -> list[str]:
    done = []
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module_name.split(".")[0] == "antifreeze":
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                vars(module)[name] = new
                _bound.append((module_name, name))
                done.append(f"{module_name}.{name}")
    return done
