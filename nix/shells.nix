# `nix develop` for work on one machine, `nix develop .#cluster` for work with a cluster too.
{ pkgs }:
let
  environment = import ./environment.nix { inherit pkgs; };
  shell = packages: pkgs.mkShell (environment.variables // { inherit packages; });
in
{
  default = shell environment.default;
  cluster = shell (environment.default ++ environment.cluster);
}
