# pins/upstream.json, refused when malformed, and the sources that it pins. Uses no flake input.
let
  file = "pins/upstream.json";
  read = builtins.fromJSON (builtins.readFile ../pins/upstream.json);

  # A form is a leaf, { expected, holds }, or an attribute set of forms.
  text = expected: pattern: {
    inherit expected;
    holds = value: builtins.isString value && builtins.match pattern value != null;
  };
  commit = text "a commit of 40 hex digits" "[0-9a-f]{40}";
  repository = text "owner/name" "[A-Za-z0-9._-]+/[A-Za-z0-9._-]+";
  folder = text "an absolute path" "/[A-Za-z0-9./_-]+";
  reason = text "a sentence" ".+";
  source = {
    url = text "an https address" "https://[A-Za-z0-9./_-]+";
    rev = commit;
    narHash = {
      expected = "null or sha256- and 44 base64 characters";
      holds = value: value == null || (text "" "sha256-[A-Za-z0-9+/]{43}=").holds value;
    };
    inherit reason;
  };
  # Only the recipe whose agent is CAMEL pins it.
  recipe =
    value:
    {
      miles = source;
      sglang = source;
      harbor = source;
    }
    // (if builtins.isAttrs value && value ? camel then { camel = source; } else { });
  form = {
    schema = {
      expected = "1";
      holds = value: value == 1;
    };
    image = {
      registry = text "a host name" "[a-z0-9.-]+(:[0-9]+)?";
      inherit repository reason;
      digest = text "sha256: and 64 hex digits" "sha256:[0-9a-f]{64}";
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
    recipes =
      if builtins.isAttrs (read.recipes or null) then builtins.mapAttrs (_: recipe) read.recipes else { };
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
