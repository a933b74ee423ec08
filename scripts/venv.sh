# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: `make_venv DIR [EXTRA]` makes or reuses a virtual environment with pontil installed from
# this checkout (editable, so that it always runs the checkout's code). Run it in the checkout's root.

fail() {
    echo "$1" >&2
    exit 1
}

# Print the Python to make virtual environments with: $PYTHON, else the system's if it can, as distributions compile it
# for speed (docs/decisions/168-environments-have-the-systems-python.md).
choose_python() {
    local system=${1:-/usr/bin/python3}
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
    elif "$system" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$system"
    else
        echo python3
    fi
}

make_venv() {
    local venv=$1 extra=${2:-} python
    if [ ! -x "$venv/bin/python" ]; then
        python=$(choose_python)
        command -v "$python" >/dev/null || fail "Python is missing: install it (Debian: apt install python3 python3-venv)."
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
            fail "$("$python" --version) is too old: pontil needs 3.10 or later (set PYTHON to a newer one)."
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "Python cannot make virtual environments here: install that part (Debian: apt install python3-venv)."
        echo "Making the virtual environment $venv"
        "$python" -m venv "$venv" || fail "The virtual environment $venv could not be made: see the message above."
        # The pip that comes with an older Python takes twice as long to choose among the files of an index.
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --upgrade pip || true
    fi
    # The stamp records the files that decided the installation, so that an unchanged checkout installs nothing again.
    local stamp="$venv/.pontil${extra:+-$extra}" wanted
    wanted=$(pwd; cat setup.cfg pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing pontil${extra:+ and what its ${extra}s need} (minutes the first time: torch alone is hundreds of MB)"
        # A module is compiled when it is first imported, and most never are; unless Python may not keep it then.
        local compile=--no-compile
        [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || compile=--compile
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$compile" --editable ".${extra:+[$extra]}" ||
            fail "pip could not install pontil: see its message above, then run this again."
        printf '%s\n' "$wanted" >"$stamp"
    fi
}
