"""Why the patient's stacks could not be read, and exactly what to allow."""

from __future__ import annotations

import os

from antifreeze.doctor.facts.model import Blindness
from antifreeze.doctor.facts.proc import read_status, read_text

CAP_SYS_PTRACE = 19
WHAT = "the Python stacks"
INSTALL = "pip install 'antifreeze[doctor]'"


def explain_no_py_spy() -> Blindness:
    return Blindness(WHAT, "py-spy, which reads them, is not installed", INSTALL)


def explain_refusal(pid: int, problem: str) -> Blindness:
    """`problem` is what py-spy said."""
    if not is_refusal(problem):
        return Blindness(f"{WHAT} of process {pid}", f"py-spy said: {problem}", "run the doctor again; if it stays, please report it")
    patient = read_status(pid)
    return Blindness(
        WHAT,
        *reason_and_remedy(
            same_user=patient is not None and patient.user == os.geteuid(),
            may_trace=has_capability(read_text("/proc/self/status") or "", CAP_SYS_PTRACE),
            yama=_yama(),
            in_container=_in_container(),
        ),
    )


def is_refusal(problem: str) -> bool:
    return any(word in problem.lower() for word in ("permission denied", "operation not permitted", "os error 1)", "os error 13)"))


def reason_and_remedy(*, same_user: bool, may_trace: bool, yama: int | None, in_container: bool) -> tuple[str, str]:
    container = "start the container with `docker run --cap-add=SYS_PTRACE …` (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
    as_root = "run it as root: `sudo antifreeze doctor PID`"
    if yama == 3:
        return "the kernel forbids tracing altogether (kernel.yama.ptrace_scope=3)", "set kernel.yama.ptrace_scope to 1 and reboot"
    if yama == 2 and not may_trace:
        return "only root may trace (kernel.yama.ptrace_scope=2)", container if in_container else as_root
    if not same_user and not may_trace:
        return "the process belongs to another user", "run it as that user, or as root: `sudo antifreeze doctor PID`"
    if yama == 1 and not may_trace:
        remedy = f"`sudo sysctl kernel.yama.ptrace_scope=0` for now, or {as_root}"
        return "only a parent may trace its children (kernel.yama.ptrace_scope=1)", f"{remedy}; in a container: {container}"
    if in_container or may_trace:
        return "the sandbox of this shell or container does not let processes read each other (seccomp)", container
    return "the kernel refused it", f"{as_root}; in a container: {container}"


def has_capability(status: str, bit: int) -> bool:
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) >> bit & 1)


def _yama() -> int | None:
    text = (read_text("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
    return int(text) if text.isdigit() else None


def _in_container() -> bool:
    return os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or "KUBERNETES_SERVICE_HOST" in os.environ
