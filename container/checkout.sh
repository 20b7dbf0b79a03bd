#!/bin/sh
# Puts the git checkout DIR at the commit REV of URL, or fails: checkout.sh URL REV DIR
set -eu

url=${1:?URL is empty} rev=${2:?REV is empty} dir=${3:?DIR is empty}

fail() {
  printf 'error: %s\n  expected %s\n  found    %s\n  where    %s\n' "$1" "$rev of $url" "$2" "$dir" >&2
  exit 1
}

# A fetch by commit needs no branch that still has it; one commit deep, the history is not downloaded.
git -C "$dir" fetch --quiet --no-tags --depth 1 -- "$url" "$rev" || fail "the commit could not be fetched" "nothing"
git -C "$dir" checkout --quiet --detach FETCH_HEAD || fail "the commit could not be checked out" "local changes"

# A branch, a tag or a shortened hash is fetched as well, and would name another commit tomorrow.
head=$(git -C "$dir" rev-parse HEAD)
[ "$head" = "$rev" ] || fail "the checkout is not at the commit" "$head"
