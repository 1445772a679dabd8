"""What the machine means for a loader: tables of facts and findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antifreeze.checks.machine import Needs, Surroundings, machine_findings, read_surroundings
from antifreeze.doctor.findings.model import Severity

ROOMY = Surroundings(16, 16, None, 2**34, 2**34, 20, 65536, 65536, 2**36, "/tmp", "ext4")
MB = 2**20


@pytest.mark.parametrize(
    ("here", "needs", "expected"),
    [
        ({}, Needs(8, bytes_in_flight=MB, tensors_in_flight=32), []),
        ({}, Needs(0), []),
        ({}, Needs(17), ["more-workers-than-cores"]),
        ({"quota_cores": 2.0}, Needs(8), ["more-workers-than-cores"]),
        ({"quota_cores": 2.0}, Needs(2), []),
        ({"allowed_cores": 1}, Needs(4), ["one-core-affinity"]),
        ({"allowed_cores": 1}, Needs(1), []),
        ({"shm_total": 64 * MB, "shm_free": 64 * MB}, Needs(2), ["shared-memory-small"]),
        ({"shm_total": 64 * MB, "shm_free": 64 * MB}, Needs(2, bytes_in_flight=MB), []),
        ({"shm_total": 64 * MB, "shm_free": 64 * MB}, Needs(2, bytes_in_flight=90 * MB), ["shared-memory-small"]),
        ({"shm_total": 64 * MB, "shm_free": 64 * MB}, Needs(2, is_ours=True, bytes_in_flight=90 * MB), []),
        ({"shm_total": 64 * MB, "shm_free": 64 * MB}, Needs(0), []),
        ({"shm_total": None, "shm_free": None}, Needs(2), []),
        ({"descriptor_limit": 256}, Needs(2), ["descriptor-limit-low"]),
        ({"descriptor_limit": 1024}, Needs(2, tensors_in_flight=1000), ["descriptor-limit-low"]),
        ({"temporary_filesystem": "nfs4"}, Needs(2), ["temporary-folder-remote"]),
        ({"temporary_filesystem": "nfs4"}, Needs(2, is_ours=True), []),
    ],
)
def test_findings(here: dict[str, Any], needs: Needs, expected: list[str]) -> None:
    assert [each.code for each in machine_findings(replace(ROOMY, **here), needs)] == expected


def test_running_out_is_worse_than_a_low_limit() -> None:
    (low,) = machine_findings(replace(ROOMY, descriptor_limit=512), Needs(2, tensors_in_flight=8))
    (out,) = machine_findings(replace(ROOMY, descriptor_limit=512), Needs(2, tensors_in_flight=800))
    assert (low.severity, out.severity) == (Severity.NOTE, Severity.DISEASE)


def test_this_machine_can_be_read() -> None:
    here = read_surroundings()
    assert 1 <= here.allowed_cores <= here.cores
    assert here.open_descriptors < here.descriptor_limit
    assert here.memory_available > 0 and here.temporary.startswith("/")
