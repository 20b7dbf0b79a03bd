# What `nix flake check` builds: both shells, and pins.env, which must have the commits that Python reads.
{ pkgs, pins }:
let
  packages = import ./packages.nix { inherit pkgs pins; };
  shells = import ./shells.nix { inherit pkgs; };
in
{
  shell-default = shells.default;
  shell-cluster = shells.cluster;
  pins = pkgs.runCommand "pins" { nativeBuildInputs = [ pkgs.python312 ]; } ''
    python3 - ${../pins/upstream.json} ${packages.pins-env} <<'PYTHON'
    import json, sys

    pins, texts = json.load(open(sys.argv[1])), open(sys.argv[2]).read().splitlines()
    wanted = [
        f"{recipe}_{source}_REV".upper() + "=" + pin["rev"]
        for recipe, sources in pins["recipes"].items()
        for source, pin in sources.items()
    ]
    missing = set(wanted) - set(texts)
    sys.exit(f"pins.env lacks {missing}" if missing else 0)
    PYTHON
    touch $out
  '';
}
