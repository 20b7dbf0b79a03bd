# pins/upstream.json, refused when malformed, and the sources that it pins. Uses no flake input.
let
  file = "pins/upstream.json";
  read = builtins.fromJSON (builtins.readFile ../pins/upstream.json);

  # A form is a leaf, { expected, holds }, or an attribute set of forms. Python reads the same texts' forms.
  texts = builtins.mapAttrs (
    _:
    { expected, pattern }:
    {
      inherit expected;
      holds = value: builtins.isString value && builtins.match pattern value != null;
    }
  ) (builtins.fromJSON (builtins.readFile ../pins/forms.json));
  inherit (texts)
    commit
    folder
    repository
    reason
    ;
  source = {
    inherit (texts) url;
    rev = commit;
    narHash = texts.narHash // {
      holds = value: value == null || texts.narHash.holds value;
    };
    inherit reason;
  };
  sources = {
    miles = source;
    sglang = source;
    harbor = source;
  };
  form = {
    schema = {
      expected = "1";
      holds = value: builtins.isInt value && value == 1;
    };
    image = {
      inherit (texts) registry digest;
      inherit repository reason;
      paths = {
        miles = folder;
        sglang = folder;
        megatron = folder;
      };
    };
    model = {
      inherit repository reason;
      revision = commit;
    };
    recipes = {
      # Only the recipe whose agent is CAMEL pins it.
      camel = sources // {
        camel = source;
      };
      terminus2 = sources;
    };
  };

  # [ "KEY: expected ..., found ..." ] of everything in `value` that does not have its form.
  complaints =
    key: form: value:
    let
      wrong = expected: [ "${key}: expected ${expected}, found ${builtins.toJSON value}" ];
      inner = name: if key == "" then name else "${key}.${name}";
      one =
        name:
        if !(form ? ${name}) then
          [ "${inner name}: unknown key" ]
        else if !(value ? ${name}) then
          [ "${inner name}: missing" ]
        else
          complaints (inner name) form.${name} value.${name};
    in
    if form ? holds then
      (if form.holds value then [ ] else wrong form.expected)
    else if !(builtins.isAttrs value) then
      wrong "an object"
    else
      builtins.concatMap one (builtins.attrNames (form // value));

  found = complaints "" form read;
  pins =
    if found == [ ] then
      read
    else
      throw (builtins.concatStringsSep "\n" (map (complaint: "${file}: ${complaint}") found));

  # Since Nix 2.20 the server is asked for the commit; before, it is looked for on all refs.
  fetchOptions =
    if builtins.compareVersions builtins.nixVersion "2.20" >= 0 then
      { shallow = true; }
    else
      { allRefs = true; };

  # The commit names the tree; the hash, where known, also lets a binary cache serve it.
  fetch =
    {
      url,
      rev,
      narHash,
      ...
    }:
    builtins.fetchGit (
      { inherit url rev; } // fetchOptions // (if narHash == null then { } else { inherit narHash; })
    );

  names = set: builtins.concatStringsSep ", " (builtins.attrNames set);
  get =
    what: set: name:
    set.${name} or (throw "${file}: ${what} has no ${name}; it has ${names set}");
in
{
  inherit pins;
  image = "${pins.image.registry}/${pins.image.repository}@${pins.image.digest}";

  # sourceOf "camel" "miles" is that source's tree; it is fetched when it is used.
  sourceOf =
    recipe: source: fetch (get "recipes.${recipe}" (get "recipes" pins.recipes recipe) source);
}
