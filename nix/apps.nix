# Each make target of the Makefile as `nix run .#TARGET`, with the tools of the dev shell.
{ pkgs }:
let
  environment = import ./environment.nix { inherit pkgs; };
  lines = builtins.filter builtins.isString (builtins.split "\n" (builtins.readFile ../Makefile));
  # [ target, help ] of the lines that `make help` shows.
  documented = builtins.filter (found: found != null) (
    map (builtins.match "([a-z][a-z0-9-]*):.*## (.*)") lines
  );
  exports = builtins.concatStringsSep "\n" (
    builtins.attrValues (
      builtins.mapAttrs (name: value: "export ${name}='${value}'") environment.variables
    )
  );
  app = found: rec {
    name = builtins.elemAt found 0;
    value = {
      type = "app";
      program = toString (
        pkgs.writeShellScript "make-${name}" ''
          if ! grep -qs '^name = "inkling-grpo"$' pyproject.toml; then
            echo "error: run this in the project's folder, a git clone of it" >&2
            exit 2
          fi
          export PATH=${pkgs.lib.makeBinPath environment.default}:$PATH
          ${exports}
          exec make ${name} "$@"
        ''
      );
      meta.description = builtins.elemAt found 1;
    };
  };
in
builtins.listToAttrs (map app documented)
