"""PURE but for reading the file: an earlier profile beside this one, number by number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.profiling.model import SCHEMA


@dataclass(frozen=True)
class Change:
    name: str
    unit: str
    before: float
    after: float
    less_is_better: bool

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None

    @property
    def word(self) -> str:
        """What a change of more than 5 % means."""
        ratio = self.ratio
        if ratio is None or 0.95 <= ratio <= 1.05:
            return "same"
        return "better" if (ratio < 1) == self.less_is_better else "worse"


def read_profile(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise NotCheckable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise NotCheckable(f"{path} is no profile: it is no JSON; expected what `antifreeze profile --save` wrote") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise NotCheckable(f"{path} is no profile of this version: its schema is {schema!r}, expected {SCHEMA!r}")
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    old, new = _numbers(before), _numbers(after)
    return [Change(name, unit, old[name, unit], value, unit != "samples/s") for (name, unit), value in new.items() if (name, unit) in old]


def _numbers(profile: dict[str, Any]) -> dict[tuple[str, str], float]:
    samples = profile["samples"]
    times = sorted(samples["times"])
    found: dict[tuple[str, str], float | None] = {
        ("a sample, half take less than", "ms"): 1000 * times[len(times) // 2] if times else None,
        ("a sample, mean", "ms"): 1000 * sum(times) / len(times) if times else None,
        ("collate, per sample", "µs"): 1e6 * samples["collate_s"],
        ("sample size", "bytes"): samples["sample_bytes"],
    }
    for trial in profile["trials"]:
        word, count = "thread" if trial["kind"] == "thread" else "worker", trial["workers"]
        who = f"no {word}s" if count == 0 else f"{count} {word}{'' if count == 1 else 's'}"
        found[who, "samples/s"] = trial["rate"]
        found[f"memory of {'the' if count == 1 else 'one of'} {who}", "bytes"] = trial["worker_pss"]
    best = max(profile["trials"], key=lambda trial: trial["rate"])
    found["the best", "samples/s"] = best["rate"]
    found["first batch of the best", "ms"] = 1000 * best["first_batch_s"]
    if profile["present"]:
        found["torch's loader as it is used now", "samples/s"] = profile["present"]["rate"]
    return {key: float(value) for key, value in found.items() if value is not None}
