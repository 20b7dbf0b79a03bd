# `nix develop` for work on one machine, `nix develop .#cluster` for work with a cluster too.
{ pkgs }:
let
  environment = import ./environment.nix { inherit pkgs; };
  # Nix sets a private TMPDIR, which the other user that root runs sandboxes as can't enter.
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
