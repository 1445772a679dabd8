# Sourced by ./check and ./demo, from the root of the repository: makes .venv ready and sets $PY to its Python.
#
# What it promises:
#   1. needs only git and a Python from 3.10 to 3.14 with pip; says what to do when there is none
#   2. installs torch first and by itself, at the version we develop on, so that nothing drags in another one
#   3. costs a few milliseconds when nothing changed: the stamp, written last, says what the environment was made from
#   4. an environment that was interrupted, moved, or made for another Python is repaired, not trusted
#   5. PYTHON=python3.12 names the Python, and is taken or refused, never passed over; it has an environment of its own (.venv-3.12)

TORCH_VERSION=2.13.0

use_env() {
    VENV=$1
    STAMP=$VENV/antifreeze-stamp
    LOG=$VENV/antifreeze-setup.log
    PY=$VENV/bin/python
}
use_env .venv

# What a user's shell exports must not decide what we test.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '%s\n' "$*"; }

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

# torch $TORCH_VERSION has builds for exactly these versions; the two imports are what Debian splits off into python3-venv.
usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        say "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        if usable_python "$candidate"; then
            say "$candidate"
            return
        fi
    done
    die "setup: no usable Python found" \
        "  needed: Python 3.10 to 3.14 with its venv module (torch $TORCH_VERSION has builds for these)" \
        "  found:  $(command -v python3 >/dev/null && python3 --version 2>&1 || echo 'no python3 at all')" \
        "  what to do: install one (on Debian or Ubuntu: apt install python3 python3-venv), or name it: PYTHON=/path/to/python3 $0"
}

# What the environment depends on: our own metadata, this file (the pin), where the repository lies, and which Python it is.
wanted_stamp() {
    "$PY" -I -S -c '
import hashlib, os, sys
key = hashlib.sha256()
for name in ("pyproject.toml", "scripts/setup_env.sh"):
    key.update(open(name, "rb").read())
key.update(os.getcwdb() + sys.version.encode())
print(key.hexdigest())' 2>/dev/null
}

is_ready() {
    local wanted
    [ -f "$STAMP" ] && wanted=$(wanted_stamp) && [ "$wanted" = "$(cat "$STAMP")" ]
}

# setup_step NAME COMMAND...: one short line, the command's own words only when it fails
setup_step() {
    local name=$1 started=$SECONDS
    shift
    printf 'setup: %s ... ' "$name"
    if "$@" >"$LOG" 2>&1 </dev/null; then
        say "$((SECONDS - started)) s"
    else
        say "FAILED"
        tail -n 30 "$LOG" >&2
        die "setup: $name failed; the lines above are its last words, all of them are in $LOG"
    fi
}

use_named_python() {
    usable_python "$PYTHON" || die "setup: PYTHON=$PYTHON cannot be used" \
        "  needed: Python 3.10 to 3.14 with its venv module (torch $TORCH_VERSION has builds for these)" \
        "  found:  $(command -v "$PYTHON" >/dev/null && "$PYTHON" --version 2>&1 || echo 'no such command')" \
        "  what to do: name another one, or leave PYTHON out"
    use_env ".venv-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
}

setup_env() {
    [ -z "${PYTHON:-}" ] || use_named_python
    is_ready && return
    if ! usable_python "$PY" || ! "$PY" -m pip --version >/dev/null 2>&1; then
        local base
        base=$(find_python)
        rm -rf "$VENV"
        mkdir -p "$VENV"
        setup_step "virtual environment in $VENV, $("$base" --version)" "$base" -m venv "$VENV"
    fi
    rm -f "$STAMP"
    setup_step "torch $TORCH_VERSION (large: may take minutes)" "$PY" -m pip install "torch==$TORCH_VERSION"
    setup_step "antifreeze and its development tools" "$PY" -m pip install -e ".[dev]" "torch==$TORCH_VERSION"
    wanted_stamp >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
}
