"""The story of a loader in a file, where asked: written when an error leaves it."""

from __future__ import annotations

import os
import time

from antifreeze.events import Story
from antifreeze.saying import say


def write_story(path: str, error: BaseException, story: Story) -> None:
    """Appended, so that several loaders and ranks may share a file; what cannot be written is said, and hides no error."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = str(story) or "  (nothing had happened before)"
    head = f"=== {when}, process {os.getpid()}: {type(error).__name__}: {error}"
    text = f"{head}\nwhat had happened before, from the start of the workers:\n{lines}\n\n"
    try:
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as why:
        say(f"story_file={path!r} cannot be written: {why.strerror}")
