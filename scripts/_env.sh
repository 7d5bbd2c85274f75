# shellcheck shell=bash
# The environment of this checkout: .venv with the locked packages and the project itself, editable.
# Sourced by the scripts beside it. `environment dev` or `environment runtime` makes it, or sees at a glance that it
# stands; `$root` is the checkout and `$python` the interpreter to use. TENUTO_PYTHON names the Python to build it with.

unset PYTHONHOME PYTHONPATH
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.stamp

heading() {
    printf '\n--- %s\n' "$*"
}

fail() {
    printf '\n%s: %s\n' "$(basename -- "$0")" "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# The files that decide what an environment of this kind holds.
locks_of() {
    case $1 in
        dev) echo "$root/requirements/dev.lock" ;;
        runtime) printf '%s\n' "$root/requirements/runtime.lock" "$root/requirements/build.lock" ;;
    esac
}

# What the stamp says of a finished environment: its kind, where it was made, and the sum of the files it follows.
stamp_of() {
    local files=()
    while IFS= read -r file; do files+=("$file"); done < <(locks_of "$1")
    printf '%s %s\n%s\n' "$1" "$(cat -- "$root/pyproject.toml" "${files[@]}" | cksum)" "$root"
}

# True if .venv is already what was asked for; the one for development serves for running too.
stands() {
    local kind found
    [ -x "$python" ] && [ -r "$stamp" ] || return 1
    found=$(<"$stamp")
    for kind in "$1" dev; do
        [ "$found" != "$(stamp_of "$kind")" ] || return 0
    done
    return 1
}

# Prints a Python that can make the environment. A name on the path proves nothing (a version manager's stand-ins):
# each one is asked.
find_python() {
    local names=("${TENUTO_PYTHON:-}") name bare=
    [ -n "${TENUTO_PYTHON:-}" ] || names=(python3.14 python3.13 python3.12 python3.11 python3)
    for name in "${names[@]}"; do
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
        bare=${bare:-$name}
    done
    [ -z "$bare" ] || fail "$bare comes without the venv module." \
        "On Debian and Ubuntu it is a package of its own: apt install python3-venv" \
        "Or name another Python: TENUTO_PYTHON=/path/to/python3 $0"
    fail "no usable Python 3.11 or newer (looked for: ${names[*]})." \
        "Install one, or name it: TENUTO_PYTHON=/path/to/python3 $0"
}

# Waits until no other process is making this environment. The lock is on open file 9: it ends with this process.
take_turn() {
    exec 9>>"$root/.venv.lock"
    "$1" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another process is making the environment; waiting for it.", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
'
}

install() {
    local log=$venv/install.log
    PIP_USER=0 "$python" -m pip --disable-pip-version-check --no-input install --progress-bar off "$@" \
        >"$log" 2>&1 && return
    tail -n 15 -- "$log" >&2
    if grep -qE 'Max retries|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|from versions: none' "$log"; then
        fail "the package index could not be reached, or does not have a package of the lock." \
            "The first set-up needs it; afterwards nothing does. Without network, point pip at a folder or mirror of yours" \
            "(PIP_INDEX_URL, PIP_FIND_LINKS). The whole output of pip: $log"
    fi
    if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
        fail "a downloaded package is not the one that was locked. Nothing of it was installed." "The whole output of pip: $log"
    fi
    fail "pip failed." "The whole output of pip: $log"
}

make_environment() {
    local kind=$1 maker options=()
    if [ ! -w "$root" ] || { [ -e "$venv" ] && [ ! -w "$venv" ]; }; then
        fail "the environment in $venv must be made or renewed, and $(id -un) may not write there." \
            "Run this as the owner of the checkout, or remove .venv as its owner, or use a clone of your own."
    fi
    maker=$(find_python)
    take_turn "$maker"
    ! stands "$kind" || return 0

    # Once for development, always for development: the demo does not throw the test tools out.
    [ ! -r "$stamp" ] || [ "$(head -c 4 -- "$stamp")" != "dev " ] || kind=dev
    if [ -r "$stamp" ] && [ "$(tail -n 1 -- "$stamp")" != "$root" ] \
        || ! "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        heading "new environment in .venv, with $("$maker" --version) from $maker" >&2
        "$maker" -m venv --clear "$venv" >&2 || fail "could not make $venv."
    fi
    rm -f -- "$stamp"
    heading "installing the locked packages ($kind): under a minute the first time" >&2
    while IFS= read -r file; do options+=(-r "$file"); done < <(locks_of "$kind")
    install --require-hashes "${options[@]}"
    install --no-deps --no-build-isolation --editable "$root"
    stamp_of "$kind" >"$stamp.new" && mv -f -- "$stamp.new" "$stamp"
}

# Tools keep their caches in the checkout; where one of these cannot be written, all go to a folder of this user's own.
place_caches() {
    local folder own
    own=${TMPDIR:-/tmp}/tenuto-caches-$(id -u)
    import_cache=$root/.import_linter_cache
    for folder in "$root" "$import_cache" "$root"/.{hypothesis,mypy_cache,pytest_cache,ruff_cache}; do
        if [ ! -e "$folder" ] || [ -w "$folder" ]; then continue; fi
        [ -d "$own" ] || mkdir -m 700 -- "$own"
        [ -O "$own" ] || fail "$own does not belong to $(id -un); set TMPDIR to a folder that does."
        import_cache=$own/imports
        export HYPOTHESIS_STORAGE_DIRECTORY=$own/hypothesis MYPY_CACHE_DIR=$own/mypy RUFF_CACHE_DIR=$own/ruff
        export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} -o 'cache_dir=$own/pytest'"
        return
    done
}

environment() {
    if ! stands "$1"; then
        make_environment "$1"
        exec 9>&-
    fi
    place_caches
}
