"""PURE but for reading the file: an earlier profile beside this one, number by number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.profiling.model import SCHEMA, Kind


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
    """Only what both have; the best too is the best of the counts and kinds that both tried."""
    both = _tried(before) & _tried(after)
    old, new = _numbers(before, both), _numbers(after, both)
    return [Change(name, unit, old[name, unit], value, unit != "samples/s") for (name, unit), value in new.items() if (name, unit) in old]


def left_out(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What only one of them has, in a sentence; empty where they tried the same."""
    old, new = _tried(before), _tried(after)
    parts = [
        f"only in {which}: {', '.join(who for trial in profile['trials'] if (who := _who(trial)) in alone)}"
        for which, profile, alone in (("the earlier one", before, old - new), ("this one", after, new - old))
        if alone
    ]
    return f"not compared, since both must have it: {'; '.join(parts)}" if parts else ""


def _tried(profile: dict[str, Any]) -> set[str]:
    return {_who(trial) for trial in profile["trials"]}


def _who(trial: dict[str, Any]) -> str:
    word, count = "thread" if trial["kind"] in ("thread", Kind.THREAD) else "worker", trial["workers"]
    return f"no {word}s" if count == 0 else f"{count} {word}{'' if count == 1 else 's'}"


def _numbers(profile: dict[str, Any], both: set[str]) -> dict[tuple[str, str], float]:
    samples = profile["samples"]
    times = sorted(samples["times"])
    found: dict[tuple[str, str], float | None] = {
        ("a sample, half take less than", "ms"): 1000 * times[len(times) // 2] if times else None,
        ("a sample, mean", "ms"): 1000 * sum(times) / len(times) if times else None,
        ("collate, per sample", "µs"): 1e6 * samples["collate_s"],
        ("sample size", "bytes"): samples["sample_bytes"],
    }
    shared = [trial for trial in profile["trials"] if _who(trial) in both]
    for trial in shared:
        who = _who(trial)
        found[who, "samples/s"] = trial["rate"]
        found[f"memory of {'the' if trial['workers'] == 1 else 'one of'} {who}", "bytes"] = trial["worker_pss"]
    if shared:
        best = max(shared, key=lambda trial: trial["rate"])
        found["the best", "samples/s"] = best["rate"]
        found["first batch of the best", "ms"] = 1000 * best["first_batch_s"]
    if profile["present"]:
        found["torch's loader as it is used now", "samples/s"] = profile["present"]["rate"]
    return {key: float(value) for key, value in found.items() if value is not None}
