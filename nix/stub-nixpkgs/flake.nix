# A stand-in for nixpkgs: the names that our flake uses, served by the tools of this machine. With it the
# flake's structure is checked and its shells run without a network; what nixpkgs builds, it can't tell.
{
  description = "Stand-in for nixpkgs: host tools under the names of nixpkgs";

  outputs =
    { ... }:
    let
      # Name in nixpkgs, and the programs of the host that stand for it.
      tools = {
        actionlint = [ "actionlint" ];
        bashInteractive = [ "bash" ];
        bubblewrap = [ "bwrap" ];
        crane = [ "crane" ];
        git = [ "git" ];
        gnumake = [ "make" ];
        jq = [ "jq" ];
        kubectl = [ "kubectl" ];
        nixfmt = [ "nixfmt" ];
        python312 = [ "python3.12" ];
        shellcheck = [ "shellcheck" ];
        skopeo = [ "skopeo" ];
        tmux = [ "tmux" ];
        uv = [ "uv" ];
        zlib = [ ];
      };
      stand-in =
        system:
        let
          hostPath = "/usr/local/bin:/usr/bin:/bin";
          # `exit 0`: a core utility closes its output before it ends; were it the builder's last
          # process, Nix would take the builder for ended, and kill it.
          run =
            name: attributes: script:
            derivation (
              {
                PATH = hostPath;
              }
              // attributes
              // {
                inherit name system;
                builder = "/bin/bash";
                args = [
                  "-euc"
                  "${script}\nexit 0"
                ];
              }
            );
          write =
            name: prefix: text:
            run name {
              text = prefix + text;
              passAsFile = [ "text" ];
            };
          folders =
            folder: packages: builtins.concatStringsSep ":" (map (package: "${package}/${folder}") packages);
          makeBinPath = folders "bin";
          makeLibraryPath = folders "lib";
          letters = alphabet: builtins.genList (at: builtins.substring at 1 alphabet) 26;
          toUpper = builtins.replaceStrings (letters "abcdefghijklmnopqrstuvwxyz") (
            letters "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
          );
          host =
            name: programs:
            run name { inherit programs; } ''
              mkdir -p $out/bin
              for program in $programs; do
                if path=$(command -v $program); then ln -s $path $out/bin/; fi
              done
            '';
          hosted = builtins.mapAttrs host tools;
        in
        hosted
        // {
          python312 = hosted.python312 // {
            # A request to uv, which finds the host's.
            interpreter = "3.12";
          };
          google-cloud-sdk = {
            components.gke-gcloud-auth-plugin = "gke-gcloud-auth-plugin";
            withExtraComponents = programs: host "google-cloud-sdk" ([ "gcloud" ] ++ programs);
          };
          stdenv.cc.cc.lib = host "gcc-lib" [ ];
          lib = { inherit makeBinPath makeLibraryPath toUpper; };
          writeText = name: text: write name "" text "cp $textPath $out";
          writeShellScript = name: text: write name "#!/bin/bash\n" text "cp $textPath $out; chmod +x $out";
          runCommand = name: attributes: run name { };
          linkFarm =
            name: targets:
            run name { } (
              builtins.concatStringsSep "\n" (
                [ "mkdir $out" ] ++ map (link: "ln -s ${targets.${link}} $out/${link}") (builtins.attrNames targets)
              )
            );
          mkShell =
            { packages, ... }@attributes:
            run "nix-shell" (
              removeAttrs attributes [ "packages" ]
              // {
                # `nix develop` puts this PATH before the caller's, and wants outputs to be named.
                PATH = "${makeBinPath packages}:${hostPath}";
                outputs = [ "out" ];
              }
            ) "export > $out";
        };
    in
    {
      legacyPackages = {
        x86_64-linux = stand-in "x86_64-linux";
        aarch64-linux = stand-in "aarch64-linux";
      };
    };
}
