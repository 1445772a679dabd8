"""Numbers and lists as people say them."""

from __future__ import annotations

from collections.abc import Iterable

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def bytes_text(count: float | None) -> str:
    if count is None:
        return "?"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit in ("B", "KB") or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def listed(parts: Iterable[object], most: int = 6) -> str:
    """ "1, 2 and 3"; what is too much is counted."""
    texts = [str(part) for part in parts]
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return " and ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part) if texts else "none"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def exit_text(status: int | None) -> str:
    """A wait status, in words."""
    if status is None:
        return "it is gone"
    if status & 0x7F:
        return f"killed by {SIGNALS.get(status & 0x7F, f'signal {status & 0x7F}')}"
    return f"exit code {status >> 8 & 0xFF}"


def command_text(command: tuple[str, ...], most: int = 80) -> str:
    """The program by its last name; where that is still too long, all files by theirs."""
    text = " ".join((*(word.rsplit("/", 1)[-1] for word in command[:1]), *command[1:]))
    if len(text) > most:
        text = " ".join(word.rsplit("/", 1)[-1] for word in command)
    return text if len(text) <= most else text[: most - 1] + "…"
