# What is made of the pinned repositories: their trees, and Harbor's environment of each recipe.
# Each is fetched when it is asked for: nix build .#sources-camel, nix build .#harbor-camel
{
  pkgs,
  pins,
  inputs,
}:
let
  tools = builtins.fromJSON (builtins.readFile ./tools.json);
  recipes = builtins.attrNames pins.pins.recipes;
  named =
    prefix: value:
    builtins.listToAttrs (
      map (recipe: {
        name = "${prefix}-${recipe}";
        value = value recipe;
      }) recipes
    );

  # A folder of links: miles, sglang, harbor ...
  sources =
    recipe:
    pkgs.linkFarm "sources-${recipe}" (
      builtins.mapAttrs (source: _: pins.sourceOf recipe source) pins.pins.recipes.${recipe}
    );

  # The commit fixes Harbor's own uv.lock, and that the hash of each wheel.
  harbor =
    recipe:
    let
      workspace = inputs.uv2nix.lib.workspace.loadWorkspace {
        workspaceRoot = pins.sourceOf recipe "harbor";
      };
      base = pkgs.callPackage inputs.pyproject-nix.build.packages { python = pkgs.python312; };
      packages = base.overrideScope (
        pkgs.lib.composeManyExtensions [
          inputs.pyproject-build-systems.overlays.wheel
          (workspace.mkPyprojectOverlay { sourcePreference = "wheel"; })
        ]
      );
    in
    packages.mkVirtualEnv "harbor-${recipe}" { harbor = tools.harborExtras.${recipe}; };
in
named "sources" sources // named "harbor" harbor
