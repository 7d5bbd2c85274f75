# shellcheck shell=bash
# The environment of this checkout: .venv with the locked packages and the project itself (editable). Sourced by the other
# scripts. `environment dev` or `environment runtime` creates it, or finds that it is up to date; `$root` is the checkout,
# `$python` the interpreter. TENUTO_PYTHON names the Python to create it with.

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

# Print the lock files of an environment of this kind.
locks_of() {
    case $1 in
        dev) echo "$root/requirements/dev.lock" ;;
        runtime) printf '%s\n' "$root/requirements/runtime.lock" "$root/requirements/build.lock" ;;
    esac
}

# Print the stamp of a complete environment: kind, checksum of its lock files, location.
stamp_of() {
    local files=()
    while IFS= read -r file; do files+=("$file"); done < <(locks_of "$1")
    printf '%s %s\n%s\n' "$1" "$(cat -- "$root/pyproject.toml" "${files[@]}" | cksum)" "$root"
}

# True if .venv is up to date; an environment for development serves for running too.
is_up_to_date() {
    local kind found
    [ -x "$python" ] && [ -r "$stamp" ] || return 1
    found=$(<"$stamp")
    for kind in "$1" dev; do
        [ "$found" != "$(stamp_of "$kind")" ] || return 0
    done
    return 1
}

# Print a Python that can create the environment. Each candidate is run: a name on the path may be a shim without Python.
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
    [ -z "$bare" ] || fail "$bare has no venv module." \
        "On Debian and Ubuntu it is a package of its own: apt install python3-venv" \
        "Or name another Python: TENUTO_PYTHON=/path/to/python3 $0"
    fail "no usable Python 3.11 or newer (looked for: ${names[*]})." \
        "Install one, or name it: TENUTO_PYTHON=/path/to/python3 $0"
}

# Wait until no other process creates this environment. The lock is on file descriptor 9 and ends with this process.
acquire_lock() {
    exec 9>>"$root/.venv.lock"
    "$1" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another process is creating the environment; waiting for it.", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
'
}

install() {
    local log=$venv/install.log dots= code=0
    if [ -t 2 ]; then  # a dot every two seconds shows that pip is still working
        (while sleep 2; do printf . >&2; done) &
        dots=$!
    fi
    PIP_USER=0 "$python" -m pip --disable-pip-version-check --no-input install --progress-bar off "$@" \
        >"$log" 2>&1 || code=$?
    if [ -n "$dots" ]; then
        kill "$dots" 2>/dev/null || true
        wait "$dots" 2>/dev/null || true
        printf '\n' >&2
    fi
    [ "$code" -ne 0 ] || return 0
    tail -n 15 -- "$log" >&2
    if grep -qE 'Max retries|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|from versions: none' "$log"; then
        fail "the package index could not be reached, or lacks a package of the lock file." \
            "Only the first set-up needs it. Without network, point pip at a local folder or mirror" \
            "(PIP_INDEX_URL, PIP_FIND_LINKS). The whole output of pip: $log"
    fi
    if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
        fail "a downloaded package does not match its hash in the lock file. It was not installed." "The whole output of pip: $log"
    fi
    fail "pip failed." "The whole output of pip: $log"
}

make_environment() {
    local kind=$1 maker options=()
    if [ ! -w "$root" ] || { [ -e "$venv" ] && [ ! -w "$venv" ]; }; then
        fail "the environment in $venv must be created or updated, and $(id -un) may not write there." \
            "Run this as the owner of the checkout, or remove .venv as its owner, or use your own clone."
    fi
    maker=$(find_python)
    acquire_lock "$maker"
    ! is_up_to_date "$kind" || return 0

    # Keep an environment for development: the demo must not remove the test tools.
    [ ! -r "$stamp" ] || [ "$(head -c 4 -- "$stamp")" != "dev " ] || kind=dev
    if [ -r "$stamp" ] && [ "$(tail -n 1 -- "$stamp")" != "$root" ] \
        || ! "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        heading "new environment in .venv, with $("$maker" --version) from $maker" >&2
        "$maker" -m venv --clear "$venv" >&2 || fail "could not create $venv."
    fi
    rm -f -- "$stamp"
    heading "installing the locked packages ($kind): one to two minutes the first time" >&2
    while IFS= read -r file; do options+=(-r "$file"); done < <(locks_of "$kind")
    install --require-hashes "${options[@]}"
    install --no-deps --no-build-isolation --editable "$root"
    stamp_of "$kind" >"$stamp.new" && mv -f -- "$stamp.new" "$stamp"
}

# Tools keep their caches in the checkout. Where one of these is not writable, all go to a folder of this user.
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
    if ! is_up_to_date "$1"; then
        make_environment "$1"
        exec 9>&-
    fi
    place_caches
}
