#!/usr/bin/env bash
# Makes .venv with the pinned development environment. Called by the Makefile; safe to run again.
#
# uv keeps one copy of every package (torch alone takes 5 GB) in the cache outside the clone and links it from there, so
# that a second clone or a changed lock costs seconds. Its own version is pinned here, since it comes before the lock.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9
cache="${MODELWEIGHTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/modelweights}"
uv_home="$cache/uv-$UV_VERSION"
export UV_CACHE_DIR="$cache/uv-cache"

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

python="${PYTHON:-python3}"
command -v "$python" >/dev/null || fail "python3 isn't there: install Python 3.11 or newer (Debian: apt-get install python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: install Python 3.11 or newer, or name one with PYTHON="

if [ ! -x "$uv_home/bin/uv" ]; then
    mkdir -p "$cache"
    staging="$(mktemp -d "$cache/uv.XXXXXX")"
    trap 'rm -rf "$staging"' EXIT
    "$python" -m venv "$staging" >/dev/null 2>&1 || {
        # Debian splits venv off; without root the user has to install it.
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            fail "$python has no venv: install it (Debian: apt-get install python3-venv)"
        fi
        apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3-venv >/dev/null
        "$python" -m venv --clear "$staging"
    }
    "$staging/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" ||
        fail "uv $UV_VERSION can't be had from the package index"
    # Two set-ups at once: whoever is second finds the first one's.
    mv -T "$staging" "$uv_home" 2>/dev/null || rm -rf "$staging"
    [ -x "$uv_home/bin/uv" ] || fail "$uv_home can't be made"
    trap - EXIT
fi
# A venv's scripts name the folder in which it was made; uv is a program of its own and doesn't care.
uv="$uv_home/bin/uv"

started=$SECONDS
[ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
sha256sum requirements/dev.txt pyproject.toml tests/setup.sh >.venv/.stamp
printf 'setup: .venv is ready after %d s\n' "$((SECONDS - started))"
