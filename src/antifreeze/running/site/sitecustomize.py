"""Python imports this at its start because `antifreeze run` put its folder first on PYTHONPATH: it waits for torch to be imported.

It then steps aside: its folder leaves sys.path, and the sitecustomize that would have been imported without us is imported.
"""

import importlib
import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    if os.environ.get("ANTIFREEZE_RUN") == sys.prefix:
        try:
            from antifreeze.running.hook import after_import
        except ImportError:  # antifreeze was found through the folder it was started in
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))
            from antifreeze.running.hook import after_import
        after_import("torch", _torch_is_here)


def _torch_is_here() -> None:
    from antifreeze.running.start import start

    start()


def _step_aside() -> None:
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_begin()
_step_aside()
