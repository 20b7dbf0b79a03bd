# `nix develop` for work on one machine, `nix develop .#cluster` for work with a cluster too.
{ pkgs }:
let
  environment = import ./environment.nix { inherit pkgs; };
  # Nix gives a shell a private TMPDIR, into which sandboxes that root starts as another user can't see.
  shellHook = ''
    export TMPDIR="''${NIX_BUILD_TOP%/*}"
    unset TMP TEMP TEMPDIR
  '';
  shell = packages: pkgs.mkShell (environment.variables // { inherit packages shellHook; });
in
{
  default = shell environment.default;
  cluster = shell (environment.default ++ environment.cluster);
}
