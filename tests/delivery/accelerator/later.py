"""The accelerator of later.cpp: compiled, and made known to torch as "later", for the rest of this process's life."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("later.cpp")


def compiled(compiler: str, folder: Path) -> Path:
    library, installed = folder / "later.so", Path(torch.__file__).parent
    flags = ["-std=c++20", "-O0", "-w", "-fPIC", "-shared", f"-I{installed / 'include'}", f"-L{installed / 'lib'}"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command = [compiler, *flags, str(SOURCE), "-o", str(library), "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{installed / 'lib'}", "-pthread"]
    subprocess.run(command, check=True, timeout=180)
    return library


def registered(library: Path) -> ctypes.CDLL:
    """What tests set and ask (the last lines of later.cpp)."""
    later = ctypes.CDLL(str(library))
    module = types.ModuleType("torch.later")
    functions = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": later.device_now,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }
    vars(module).update(functions)
    torch.utils.rename_privateuse1_backend("later")
    torch._register_device_module("later", module)
    sys.modules["torch.later"] = module
    return later
