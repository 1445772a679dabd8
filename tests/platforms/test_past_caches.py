"""The C library's setting that is offered where large copies are what takes the time: named right, and only where it is known to help."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antifreeze import linux
from antifreeze.delivery.ledger import Ledger, Timing
from antifreeze.linux import PAST_CACHES_BYTES, past_caches
from antifreeze.report import Report
from antifreeze.supervisor.work import Costs

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"


@pytest.fixture(autouse=True)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with this /proc/cpuinfo and this C library, and nothing in its environment."""
    cpuinfo, library = getattr(request, "param", (INTEL, "glibc 2.39"))
    there = tmp_path / "cpuinfo"
    if cpuinfo:
        there.write_text(cpuinfo)
    monkeypatch.setattr(linux, "open", lambda path: Path.open(there), raising=False)
    monkeypatch.setattr(os, "confstr", lambda name: library)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    linux._has_tunable.cache_clear()
    yield
    linux._has_tunable.cache_clear()


@pytest.mark.skipif(not LOADER.exists(), reason="another C library, or another processor")
def test_the_c_library_knows_it() -> None:
    name, _, value = past_caches().partition("=")
    told = subprocess.run([LOADER, "--list-tunables"], env={name: value}, capture_output=True, text=True, timeout=20, check=False)
    if told.returncode:
        pytest.skip("glibc before 2.33 does not list them")
    assert f"glibc.cpu.x86_non_temporal_threshold: {PAST_CACHES_BYTES:#x} " in told.stdout


def test_what_is_set_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    assert past_caches() == "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.cpu.x86_non_temporal_threshold=262144"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold=1000000")
    assert past_caches() == ""


@pytest.mark.parametrize(
    "on", [(AMD, "glibc 2.39"), (INTEL, "glibc 2.28"), (INTEL, ""), (INTEL, "musl"), ("", "glibc 2.39")], indirect=True
)
def test_where_nothing_is_known_to_be_gained_nothing_is_said() -> None:
    assert past_caches() == ""


@pytest.mark.parametrize(("sample_bytes", "offered"), [(PAST_CACHES_BYTES, True), (PAST_CACHES_BYTES - 1, False)])
def test_it_is_offered_for_large_samples(sample_bytes: int, offered: bool) -> None:
    timing = Timing(waited_ns=10**10, loop_ns=10**9, epochs=1, batches=10, samples=640, delivered_bytes=640 * sample_bytes)
    ledger = Ledger(timing=timing, costs=Costs(fetch_ns=10**9, write_ns=2 * 10**10, cpu_ns=2 * 10**10, blocked_s=10.0, samples=640))
    report = Report.of(ledger, cores=2, workers=2)
    assert "copying batches into shared memory" in report.verdict
    assert ("GLIBC_TUNABLES=" in report.verdict) is offered
