#!/usr/bin/env bash
# Checks the flake without a network: its syntax, lock file, pins, outputs and dev shell, with the tools of this machine
# in nixpkgs' place (nix/stub-nixpkgs). Proves the structure, and nothing about what nixpkgs builds.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v nix >/dev/null; then
  printf '%s\n' 'error: Nix is missing' '  expected nix 2.8 or newer on PATH' \
    '  run      apt-get install nix-bin (Debian, Ubuntu), or see https://nixos.org/download' >&2
  exit 1
fi

scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch" && rm -rf "$scratch"' EXIT
# shellcheck source=nix/offline.sh
source nix/offline.sh "$scratch"
stand_in=(--override-input nixpkgs path:./nix/stub-nixpkgs)

check() { # NAME COMMAND...: one line when it works, all that it said when not
  if "${@:2}" >"$scratch/output" 2>&1; then
    printf 'ok    %s\n' "$1"
  else
    cat "$scratch/output" >&2
    printf 'error: the flake check failed\n  expected %s\n  where    %s\n' "$1" "${*:2}" >&2
    exit 1
  fi
}

nix --version
mapfile -t files < <(find flake.nix nix -name '*.nix')
check 'every .nix file can be parsed' nix-instantiate --parse "${files[@]}"
check 'flake.lock has the inputs of flake.nix' nix flake lock --no-update-lock-file --offline
check 'the pins have their form' nix eval --json .#lib.pins
check 'every output can be evaluated, and the checks pass' nix flake check "${stand_in[@]}"
check 'make pins-check passes in the dev shell' nix develop "${stand_in[@]}" -c make pins-check
