"""`%load_ext antifreeze` in a notebook: torch's DataLoader is ours from then on, and `%antifreeze` sets options and shows reports.

%load_ext antifreeze
%antifreeze --on-bad-sample skip --sample-timeout 60     for loaders made from now on
%antifreeze report                                       every loader so far
%unload_ext antifreeze                                   torch's own again
"""

from __future__ import annotations

import os
import shlex
from typing import Any

from antifreeze import choices
from antifreeze.errors import AntifreezeError, OptionError
from antifreeze.running.hook import after_import, forget
from antifreeze.running.settings import OPTIONS, WORKERS, Settings, read_settings

_SETTINGS = (*OPTIONS, WORKERS)


class Notebook:
    """One per kernel: what was chosen so far."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._roll: Any = None

    def begin(self) -> None:
        self._settings()  # what is wrong in the environment is said now, not when torch is imported
        after_import("torch", self._replace)

    def end(self) -> None:
        forget("torch")
        if self._roll is not None:
            from antifreeze.running.patch import restore_torch

            restore_torch()
            choices.choose(choices.Choices())

    def _replace(self) -> None:
        from antifreeze.running.patch import derived_before, replace_torch
        from antifreeze.running.reports import Roll

        replace_torch()
        self._roll = self._roll or Roll("none")
        self._choose()
        for name in derived_before():
            print(
                f"antifreeze: {name} was derived from torch's DataLoader before %load_ext and stays so; run its cell again to change that"
            )

    def _choose(self) -> None:
        if self._roll is not None:
            choices.choose(self._settings().choices(self._roll.note))

    def _settings(self) -> Settings:
        return read_settings(self._words, os.environ)

    def magic(self, line: str) -> None:
        """What `%antifreeze …` does."""
        words = shlex.split(line)
        try:
            if words == ["report"]:
                print(self._roll.text("so far") if self._roll is not None else "antifreeze: torch is not imported yet", end="")
                return
            if words:
                self._set(words)
        except AntifreezeError as error:
            print(f"antifreeze: {error}")
            return
        settings = self._settings()
        said = [f"{name}={value!r}" for name, value in settings.options.items()]
        said += [f"num_workers={settings.workers!r}"] if settings.workers is not None else []
        print(f"antifreeze: loaders made from now on: {', '.join(said) or 'as the code says'}")

    def _set(self, words: list[str]) -> None:
        before = self._words
        self._words = {**before, **_parsed(words)}
        try:
            self._choose()
            self._settings()
        except OptionError:
            self._words = before
            raise


def _parsed(words: list[str]) -> dict[str, str]:
    """Options and their values; in a notebook there is nothing else on the line."""
    by_flag = {setting.flag: setting.name for setting in _SETTINGS}
    parsed = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in by_flag:
            raise OptionError(f"{word!r} is no option of %antifreeze; there are report, {', '.join(by_flag)}")
        text = value if equals else next(rest, None)
        if text is None:
            raise OptionError(f"{flag} needs a value after it")
        parsed[by_flag[flag]] = text
    return parsed


_notebook: Notebook | None = None


def load(shell: Any) -> None:
    global _notebook
    _notebook = _notebook or Notebook()
    _notebook.begin()
    shell.register_magic_function(_notebook.magic, magic_kind="line", magic_name="antifreeze")


def unload(shell: Any) -> None:
    global _notebook
    if _notebook is not None:
        _notebook.end()
        _notebook = None
    shell.magics_manager.magics["line"].pop("antifreeze", None)
