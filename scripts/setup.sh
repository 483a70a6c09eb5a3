#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what a build needs and this machine lacks, as Debian packages. Each tool is probed for, so a second run
# installs nothing and takes milliseconds. Usage: scripts/setup.sh [--peers]
#
#   C and C++ compiler   zeromq, aws-lc and nixl-sys build from C and C++ source
#   protoc               Dynamo's gRPC schemas
#   libclang             nixl-sys generates its bindings with bindgen
#   python3 -m venv      only with --peers: the tests against programs from PyPI
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }
any_file() { compgen -G "$1" >/dev/null; }
die() {
    echo "setup: $*" >&2
    exit 1
}

# bindgen needs the library and clang's own headers (stddef.h and friends).
have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    { any_file '/usr/lib/llvm-*/lib/libclang*.so*' || any_file '/usr/lib*/libclang*.so*'; } &&
        { any_file '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' || any_file '/usr/lib*/clang/*/include/stddef.h'; }
}

rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
have cargo || die "cargo is not on PATH: install Rust $rust or newer from https://rustup.rs and run again."
found=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$rust" "$found" | sort -V | head -n 1)" = "$rust" ] ||
    die "Rust $found is too old: $rust or newer is needed (rustup update stable)."

packages=()
{ have cc && have g++; } || packages+=(g++)
have make || packages+=(make)
{ [ -n "${PROTOC:-}" ] || have protoc; } || packages+=(protobuf-compiler)
have_libclang || packages+=(libclang-dev)
if [ "${1:-}" = --peers ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
fi

if [ ${#packages[@]} -gt 0 ]; then
    if have apt-get && [ "$(id -u)" -eq 0 ]; then
        as_root=(env)
    elif have apt-get && have sudo && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        die "missing packages: ${packages[*]}. Install them (Debian and Ubuntu: apt-get install ${packages[*]}) and run again."
    fi
    echo "setup: installing ${packages[*]}" >&2
    "${as_root[@]}" apt-get -qq update
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${packages[@]}" >/dev/null
fi
