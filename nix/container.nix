# container/Containerfile of one recipe with every argument given: its build needs no option.
{ pins }:
recipe:
let
  inherit (pins.pins.recipes.${recipe}) miles sglang;
  inherit (pins.pins.image) paths;

  # JSON with a space after comma and colon: the tag is a hash of the very text that Python writes.
  json =
    value:
    if builtins.isAttrs value then
      "{${
        builtins.concatStringsSep ", " (
          map (name: "${builtins.toJSON name}: ${json value.${name}}") (builtins.attrNames value)
        )
      }}"
    else
      builtins.toJSON value;
  source = path: { url, rev, ... }: { inherit path url rev; };
  record = json {
    schema = 1;
    inherit recipe;
    inherit (pins) image;
    sources = {
      miles = source paths.miles miles;
      sglang = source paths.sglang sglang;
    };
    imports.sglang = "${paths.sglang}/python/sglang";
  };

  arguments = {
    BASE = pins.image;
    RECIPE = recipe;
    MILES_URL = miles.url;
    MILES_REV = miles.rev;
    MILES_DIR = paths.miles;
    SGLANG_URL = sglang.url;
    SGLANG_REV = sglang.rev;
    SGLANG_DIR = paths.sglang;
    PINS = record;
    TAG = "pins-${builtins.substring 0 12 (builtins.hashString "sha256" record)}";
  };
  given =
    line:
    let
      argument = builtins.match "ARG ([A-Z_]+)" line;
      name = builtins.head argument;
    in
    if argument == null then
      line
    else
      "ARG ${name}='${arguments.${name} or (throw "nix/container.nix has no value for ARG ${name}")}'";
  lines = builtins.filter builtins.isString (
    builtins.split "\n" (builtins.readFile ../container/Containerfile)
  );
in
builtins.concatStringsSep "\n" (map given lines)
