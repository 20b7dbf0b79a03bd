# What a make target needs of the machine: the tools of nix/tools.json, and variables.
{ pkgs }:
let
  tools = builtins.fromJSON (builtins.readFile ./tools.json);
  get = name: pkgs.${name} or (throw "nix/tools.json: nixpkgs has no ${name}");
  cloud = pkgs.google-cloud-sdk;
in
{
  default = map get tools.default;
  cluster = map get tools.cluster ++ [
    (cloud.withExtraComponents [ cloud.components.gke-gcloud-auth-plugin ])
  ];
  variables = {
    UV_PYTHON = pkgs.python312.interpreter;
    # uv's own Pythons look for a loader that NixOS does not have.
    UV_PYTHON_DOWNLOADS = "never";
    # Wheels of the package index expect these of the system; a Python of Nix does not look there.
    LD_LIBRARY_PATH = pkgs.lib.makeLibraryPath ([ pkgs.stdenv.cc.cc.lib ] ++ map get tools.libraries);
  };
}
