# shellcheck shell=bash
# Sourced with a folder: Nix then works without a network, a daemon and root, in a store of its own in that folder.
folder=${1:?offline.sh needs a folder}
export NIX_REMOTE='' NIX_STORE_DIR=$folder/store NIX_STATE_DIR=$folder/state NIX_LOG_DIR=$folder/log
export NIX_CONF_DIR=$folder/conf NIX_USER_CONF_FILES=''
# Nix 2.8 has flakes only with the first line. In a sandbox, a build would not see the machine's tools. What was
# evaluated for another store would name paths of that store.
export NIX_CONFIG='experimental-features = nix-command flakes
substituters =
flake-registry =
sandbox = false
build-users-group =
eval-cache = false
warn-dirty = false'
