"""The folder of a cache: whose samples it holds, in one small file; and what was said about it already."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

from torch.utils.data import Dataset, Subset

from antifreeze.errors import OptionError, StaleCache

META = "antifreeze-cache.json"
FORMAT = 1
_SAID, _SAID_FOR_S = ".said", 3600.0


def facts_of(dataset: Any, version: str) -> dict[str, Any]:
    return {"format": FORMAT, "class": _class_of(dataset), "len": len(dataset), "version": version}


def _class_of(dataset: Any) -> str:
    """And of which one it is a part; but what a data set opens when it is first asked (a file's, say) is nothing of its class."""
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return type(dataset).__qualname__ + (f" of {_class_of(inner)}" if isinstance(dataset, Subset) or isinstance(inner, Dataset) else "")


def claim(folder: str, facts: dict[str, Any]) -> str:
    """It is there, and for this data set alone. Why nothing can be written there; empty where that seems possible."""
    try:
        os.makedirs(folder, exist_ok=True)
        _forget_what_was_said(folder)
        written = _read(folder) or _write(folder, facts)
    except (FileExistsError, NotADirectoryError) as error:
        raise OptionError(f"cached: folder={folder!r} is a file, or below one: {error}") from error
    except OSError as error:
        return str(error)
    if written != facts:
        names = [name for name in sorted(facts | written) if facts.get(name) != written.get(name)]
        raise StaleCache(
            f"{folder} holds samples of another data set than this one\n"
            f"  there: {_shown(written, names)}\n  here:  {_shown(facts, names)}\n"
            "  what to do: give another folder, or delete this one (it is a copy)"
        )
    return ""


def _shown(facts: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {facts.get(name)!r}" for name in names)


def _read(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, META), encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StaleCache(
            f"{os.path.join(folder, META)} cannot be read\n  what to do: give another folder, or delete this one (it is a copy)"
        )
    return found


def _write(folder: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Whole or not at all, and by one of those who try: what is there then."""
    path = os.path.join(folder, META)
    fresh = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(fresh, "x", encoding="utf-8") as file:
            json.dump(facts, file)
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        except (OSError, AttributeError):  # no such links here
            os.replace(fresh, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
    return _read(folder) or facts


def is_first_to_say(folder: str, job: str, topic: str) -> bool:
    """Among all processes that have a copy of one cache: of many workers one speaks."""
    try:
        os.close(os.open(os.path.join(folder, f"{job}-{topic}{_SAID}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def _forget_what_was_said(folder: str) -> None:
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(_SAID) and time.time() - os.stat(path).st_mtime > _SAID_FOR_S:
                os.unlink(path)
