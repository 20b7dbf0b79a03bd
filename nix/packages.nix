# Texts that are written from the pins: nix build .#containerfile-camel, nix build .#pins-env
{ pkgs, pins }:
let
  inherit (pins.pins) model recipes;
  containerfile = import ./container.nix { inherit pins; };
  line = name: value: "${pkgs.lib.toUpper name}=${value}\n";
  # NAME=value, for shells and --env-file; no value needs quotes, by the forms of nix/pins.nix.
  environment =
    line "image" pins.image
    + line "model_repository" model.repository
    + line "model_revision" model.revision
    + builtins.concatStringsSep "" (
      builtins.concatMap (
        recipe:
        builtins.concatMap (
          source: with recipes.${recipe}.${source}; [
            (line "${recipe}_${source}_url" url)
            (line "${recipe}_${source}_rev" rev)
          ]
        ) (builtins.attrNames recipes.${recipe})
      ) (builtins.attrNames recipes)
    );
in
{
  pins-env = pkgs.writeText "pins.env" environment;
}
// builtins.listToAttrs (
  map (recipe: {
    name = "containerfile-${recipe}";
    value = pkgs.writeText "Containerfile" (containerfile recipe);
  }) (builtins.attrNames recipes)
)
