"""What was seen of one run: plain data, from the warden to the judge, and out again as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Record:
    """Filled by the warden: from what the program wrote, and from what the warden saw of it."""

    fault: str
    loader: str
    variant: str
    plan: list[Any] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)
    excused: list[Any] = field(default_factory=list)
    """Samples of a batch whose error the program caught."""
    caught: list[dict[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    report: str = ""
    error: dict[str, str] | None = None
    not_here: str | None = None
    ended: bool = False
    """The program came to its end, the interpreter's exit still before it."""
    left: dict[str, list[str]] = field(default_factory=dict)
    """Inside the program, once the loader was gone."""
    loop_s: float = 0.0
    stop_s: float = 0.0
    seconds: float = 0.0
    exit_s: float = 0.0
    exit_code: int | None = None
    """None: it had to be killed at its limit."""
    orphans: list[str] = field(default_factory=list)
    """Processes alive one second after the program was gone."""
    files_left: list[str] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""

    def take(self, line: dict[str, Any]) -> None:
        """Read one line that the program wrote."""
        for name in ("plan", "got", "excused"):
            getattr(self, name).extend(line.get(name, ()))
        if "caught" in line:
            self.caught.append(line["caught"])
        if "wrong" in line:
            self.wrong.append(line["wrong"])
        self.report += line.get("report", "")
        self.error = line.get("error", self.error)
        self.not_here = line.get("not_here", self.not_here)
        if "end" in line:
            self.ended, self.left = True, line["left"]
            self.loop_s, self.stop_s = line["loop_s"], line["stop_s"]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
