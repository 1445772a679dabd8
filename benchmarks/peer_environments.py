"""A virtual environment per peer: made once under benchmarks/.peers, from packages, with the same torch in each.

.peers/NAME/             the environment         .peers/data/NAME/    what the peer wrote in its own format
.peers/NAME/installed    what it was made from; written last, so an environment that was interrupted is made again
.peers/NAME.refused      what pip said where it could not be installed
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from peers.contract import Peer

TORCH = "torch==2.13.0"
EVERYWHERE = (TORCH, "numpy", "simplejpeg", "cloudpickle")
INSTALL_LIMIT_S = 1800


class Environments:
    def __init__(self, home: Path) -> None:
        self.home = home

    def python(self, peer: Peer) -> Path:
        return self.home / peer.name / "bin" / "python"

    def missing(self, peer: Peer) -> str | None:
        """A sentence that says what is not there and what to do, or None."""
        refused = self._refusal(peer)
        if refused.exists():
            return f"could not be installed; pip said: {refused.read_text().strip()}"
        if not self._stamp(peer).exists() or self._stamp(peer).read_text() != stamp(peer):
            return f"not installed here: python benchmarks/peers.py --install --peers {peer.name}"
        return None

    def install(self, peer: Peer, say: Callable[[str], None]) -> None:
        """From nothing; torch first and named again with the rest, so that nothing brings another one."""
        if self._stamp(peer).exists() and self._stamp(peer).read_text() == stamp(peer):
            say(f"{peer.name}: is installed")
            return
        self._refusal(peer).unlink(missing_ok=True)
        python = str(self.python(peer))
        steps: list[Sequence[str]] = [
            [sys.executable, "-m", "venv", str(self.home / peer.name)],
            [python, "-m", "pip", "install", *EVERYWHERE],
        ]
        if peer.requirements:
            steps.append([python, "-m", "pip", "install", TORCH, *peer.pip_options, *peer.requirements])
        for step in steps:
            say(f"{peer.name}: {' '.join(step[1:])}")
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
            if done.returncode != 0:
                self._refusal(peer).write_text(last_words(done.stderr or done.stdout))
                say(f"{peer.name}: {self.missing(peer)}")
                return
        self._stamp(peer).write_text(stamp(peer))

    def _stamp(self, peer: Peer) -> Path:
        return self.home / peer.name / "installed"

    def _refusal(self, peer: Peer) -> Path:
        return self.home / f"{peer.name}.refused"

    def versions(self, peer: Peer) -> str:
        """`grain 0.2.18`: what was asked for by name, as pip reports it."""
        names = [requirement.partition("==")[0].partition("[")[0] for requirement in peer.requirements] or ["torch"]
        code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
        done = subprocess.run([str(self.python(peer)), "-c", code, *names], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() or last_words(done.stderr)


def stamp(peer: Peer) -> str:
    return "\n".join((*EVERYWHERE, *peer.pip_options, *peer.requirements))


def last_words(text: str) -> str:
    """pip's errors, or the last line where it calls none so."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return " ".join(errors[:2]) or (lines[-1] if lines else "nothing")
