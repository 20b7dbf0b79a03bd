# What Nix offers here: pins, dev shells, the make targets with their tools, Harbor of each recipe.
{
  description = "GRPO of Inkling-Small on terminal tasks";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    pyproject-nix = {
      url = "github:pyproject-nix/pyproject.nix";
      inputs.nixpkgs.follows = "nixpkgs";
    };
    uv2nix = {
      url = "github:pyproject-nix/uv2nix";
      inputs.pyproject-nix.follows = "pyproject-nix";
      inputs.nixpkgs.follows = "nixpkgs";
    };
    pyproject-build-systems = {
      url = "github:pyproject-nix/build-system-pkgs";
      inputs.pyproject-nix.follows = "pyproject-nix";
      inputs.uv2nix.follows = "uv2nix";
      inputs.nixpkgs.follows = "nixpkgs";
    };
  };

  outputs =
    { nixpkgs, ... }@inputs:
    let
      pins = import ./nix/pins.nix;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEachSystem =
        output:
        builtins.listToAttrs (
          map (system: {
            name = system;
            value = output nixpkgs.legacyPackages.${system};
          }) systems
        );
    in
    {
      # Needs no input, so it evaluates without a network.
      lib = pins;

      packages = forEachSystem (pkgs: import ./nix/packages.nix { inherit pkgs pins; });
      # `nix build` finds these like packages; `nix flake check` and `nix flake show` would fetch
      # every pinned repository for them, and leave this output alone.
      legacyPackages = forEachSystem (pkgs: import ./nix/upstream.nix { inherit pkgs pins inputs; });
      devShells = forEachSystem (pkgs: import ./nix/shells.nix { inherit pkgs; });
      apps = forEachSystem (pkgs: import ./nix/apps.nix { inherit pkgs; });
      checks = forEachSystem (pkgs: import ./nix/checks.nix { inherit pkgs pins; });
      formatter = forEachSystem (pkgs: pkgs.nixfmt);
    };
}
