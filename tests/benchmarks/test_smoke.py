"""The benchmark runs, measures both classes, and says so as a table and as JSON. No figure is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.limit(260)  # nine fresh processes that each import torch: 25 s on two idle cores
@pytest.mark.slow
def test_loader_benchmark_measures_and_prints(tmp_path: Path) -> None:
    target = tmp_path / "measured.json"
    command = [sys.executable, "benchmarks/loader.py", "--quick", "--rounds", "1", "--workloads", "four-leaves", "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "four-leaves" in done.stdout
    assert "FAILED" not in done.stdout
    assert "LEFT BEHIND" not in done.stdout
    assert "DIFFERENT BYTES" not in done.stdout
    measured = json.loads(target.read_text())["measurements"]
    assert {(row["loader"], row["workers"]) for row in measured} == {("torch", 0), ("torch", 2), ("ours", 0), ("ours", 2)}
    assert all(row["result"]["samples_per_s"] > 0 for row in measured)
    assert max(len(line) for line in done.stdout.splitlines()) <= 120


@pytest.mark.slow
def test_auto_is_measured_against_fixed_settings() -> None:
    command = [sys.executable, "benchmarks/auto.py", "--quick", "--workloads", "rows-batch", "--fixed", "0,1"]
    more = ["--warm", "0.3", "--seconds", "0.05", "--rounds", "1", "--duels", "2", "--markdown", "--why"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| workload | inline | 1 workers | auto | of the best | 95 % | itself | best | chosen |" in done.stdout
    assert "rows-batch: no workers since batch 0" in done.stdout


@pytest.mark.slow
def test_auto_is_measured_on_cores_that_are_pretended() -> None:
    command = [sys.executable, "benchmarks/pretended.py", "--workloads", "jpeg", "--loops", "validates", "--models", "handing"]
    more = ["--fixed", "0,3", "--warm", "1", "--seconds", "0.2", "--rounds", "1", "--duels", "2", "--markdown", "--why", "--windows"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| jpeg, handing, validates | " in done.stdout
    assert "16 cores -> " in done.stdout and "computing 100%" in done.stdout


@pytest.mark.slow
def test_caching_is_measured() -> None:
    command = [sys.executable, "benchmarks/caching.py", "--samples", "32", "--rounds", "1", "--markdown"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| pictures | ours, auto, cached |" in done.stdout


@pytest.mark.slow
def test_loading_without_workers_is_measured_in_turn() -> None:
    command = [sys.executable, "benchmarks/turns.py", "--workloads", "indices-1,pictures-numpy", "--seconds", "0.1", "--markdown"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| indices-1 | " in done.stdout and "| pictures-numpy | " in done.stdout


@pytest.mark.slow
def test_beginnings_of_epochs_are_measured() -> None:
    command = [sys.executable, "benchmarks/epochs.py", "--workloads", "four-leaves", "--batches", "4", "--epochs", "1", "--rounds", "1"]
    more = ["--step-ms", "1", "--markdown"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| four-leaves | ours, cold |" in done.stdout


@pytest.mark.slow
def test_allocator_settings_are_measured_against_none() -> None:
    command = [sys.executable, "benchmarks/faults.py", "--quick", "--workloads", "numpy", "--processes", "1", "--rounds", "2"]
    done = subprocess.run([*command, "--seconds", "0.1", "--markdown"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| workload | workers' memory | samples/s | CPU s/1000 | faults/sample | of as it is | 95 % |" in done.stdout
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| numpy |")]
    assert [cells[1] for cells in rows] == ["as it is", "again", "given back", "huge pages"]


@pytest.mark.slow
def test_samples_of_different_lengths_are_measured() -> None:
    command = [sys.executable, "benchmarks/lengths.py", "--sentences", "2000", "--warm", "0.1", "--seconds", "0.1", "--rounds", "1"]
    done = subprocess.run([*command, "--markdown"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "ours" in line or "the same" in line]
    padding = [float(cells[-1].rstrip("%")) for cells in rows]
    assert len(rows) == 4 and padding[0] > 50 and max(padding[1:]) < 10 and padding[3] == 0


def test_an_unknown_workload_is_refused() -> None:
    command = [sys.executable, "benchmarks/loader.py", "--workloads", "nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2
    assert "no workload 'nonsense'; there are images," in done.stderr
