"""Sources as small as can be that register flags, read variables and call plugins in every way of upstream's."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from recipe.engines.miles.contract.sources import Source, Sources

MEGATRON = {
    "megatron/training/arguments.py": """\
        from megatron.core.configs import ModelConfig

        def add_megatron_arguments(parser):
            from ..core.configs import RunConfig
            exclude = ["hidden"]
            factory = ArgumentGroupFactory(ModelConfig, exclude=exclude)
            factory.build_group(parser, "model")
            ArgumentGroupFactory(RunConfig).build_group(parser, "run")
            group = parser.add_argument_group("rest")
            group.add_argument("--lr", type=float, default=None)
            group.add_argument("--betas", type=float, nargs=2)
            group.add_argument("--logging", action=argparse.BooleanOptionalAction)
            return parser
        """,
    "megatron/core/configs.py": """\
        @dataclass
        class Base:
            layers: int = 0

        @dataclass
        class ModelConfig(Base):
            hidden: int = 0
            heads: int | None = None
            parallel: bool = False
            bias: bool = True
            method: Optional[Literal["uniform", "block"]] = None
            backend: Backend = Backend.flash
            sizes: list[int] = field(default_factory=list)
            later: int = field(init=False, default=0)
            renamed: Union[int, str, None] = field(
                default=None, metadata={"argparse_meta": {"arg_names": ["--other-name"], "type": int}}
            )

        @dataclass
        class RunConfig:
            save: str | None = None
        """,
    "megatron/core/parallel.py": 'import os\nif "SEEN" in os.environ: pass\nlimit = os.environ["LIMIT"]\n',
}
MILES = {
    "miles/utils/arguments.py": """\
        from sglang_router.router_args import RouterArgs
        from miles.backends.sglang_utils.arguments import add_sglang_arguments
        from miles.utils.health import Checker, Tokenizer

        def reset_arg(parser, name, **kwargs):
            parser.add_argument(name, **kwargs)

        KINDS = ("first", "second")

        def add_miles_arguments(parser):
            def add_rollout_arguments(parser):
                parser.add_argument("--num-rollout", type=int)
                parser.add_argument("--ports", type=int, nargs="+")
                parser.add_argument("--kind", choices=KINDS)
                parser.add_argument("--tokenizer", type=str, choices=[one.value for one in Tokenizer])
                parser.add_argument("--store", type=str, choices=tuple(STORES.keys()))
                parser.add_argument("--server", nargs="?", const=True)
                parser.add_argument("--options", type=json.loads)
                reset_arg(parser, "--lr", type=str)
                reset_arg(parser, "--seed", type=int)
                return parser

            parser = add_rollout_arguments(parser)
            parser = add_sglang_arguments(parser)
            RouterArgs.add_cli_args(parser, use_router_prefix=True)
            Checker.add_arguments(parser, prefix="heartbeat")
        """,
    "miles/utils/health/__init__.py": """\
        class Tokenizer(StrEnum):
            DEFAULT = "default"
            OTHER = "other"

        class Checker:
            def add_arguments(parser, *, prefix):
                parser.add_argument(f"--{prefix}-interval", type=float)
        """,
    "miles/backends/sglang_utils/arguments.py": """\
        _SKIPPED_SERVER_ARGS = ["port"]

        def add_sglang_arguments(parser):
            parser.add_argument("--sglang-router-policy", type=str)
        """,
    "miles/rollout/generate.py": """\
        async def generate(input):
            custom_agent_function = load_function(input.args.custom_agent_function_path)
            return await custom_agent_function(base_url="", prompt="", request_kwargs={}, metadata={})

        def _add(parser):
            parser.add_argument("--max-seq-len", type=int)

        generate.add_arguments = _add
        """,
    "miles/rollout/loop.py": """\
        class Manager:
            async def run(self, args, sample, group, **kwargs):
                call_dynamic_filter(self.filter, args, group)
                rm_function = load_function(args.custom_rm_path)
                await rm_function(args, sample, **kwargs)

        async def stop(args, module):
            abort_hook = load_function(f"{module}.abort")
            await abort_hook(args)

        def load_rollout_function(input, path):
            fn = load_function(path)
            return fn(input)

        def call_rollout_function(fn, input):
            output = fn(input)
            return run(output) if inspect.iscoroutine(output) else output

        def elsewhere(fn):
            return fn(1, 2, 3)
        """,
    "miles/rollout/inference_rollout/inference_rollout_common.py": """\
        class InferenceRolloutFn:
            def __init__(self, input): ...
            async def __call__(self, input): ...
        """,
    "miles/utils/environ.py": """\
        import os
        HOST = "HOST_ADDRESS"
        refactor = os.environ.get("MILES_EXPERIMENTAL_ROLLOUT_REFACTOR", "0")
        host = os.getenv(HOST)
        os.environ["ONLY_SET"] = "1"
        os.environ.setdefault("ONLY_SET", "1")
        monkeypatch.setenv("ONLY_SET", "1")
        """,
    "miles/tests/test_it.py": 'import os\nos.environ.get("ONLY_IN_A_TEST")\n',
    "scripts/models/inkling-small.sh": """\
        LAYERS="${ANY_LAYERS:-42}"

        MODEL_ARGS=(
            --layers $LAYERS
            --no-bias --heads 8  # --never 1
        )
        """,
}
SGLANG = {
    "sglang/srt/server_args.py": """\
        BACKENDS = ["fa3", "fa4"]

        class ServerArgs:
            port: A[int, "The port."] = 1
            attention_backend: A[Optional[str], Arg(help="x", choices=BACKENDS)] = None
            fp32_head: A[bool, "Whether."] = False
            ep_size: A[int, Arg(cli_name="--expert-parallel-size", aliases=["--ep-size"])] = 1
            tokens: A[Optional[int], Arg(type_parser=readable)] = None
            names: A[Optional[List[str]], "Names."] = None
            level: A[Literal["low", "high"], "Level."] = "low"
            hidden: A[int, Arg(no_cli=True)] = 0
            plain: int = 0

            @staticmethod
            def add_cli_args(parser):
                add_cli_args_from_dataclass(parser, ServerArgs)
                parser.add_argument("--old-switch", action=Deprecated)
        """,
    "sglang/srt/use.py": "if envs.SGLANG_SWITCH.get(): pass\nenvs.SGLANG_ONLY_SET.set(True)\n",
}
ROUTER = {
    "sglang_router/router_args.py": """\
        class RouterArgs:
            @staticmethod
            def add_cli_args(parser, use_router_prefix: bool = False, exclude_host_port: bool = True):
                prefix = "router-" if use_router_prefix else ""
                if not exclude_host_port:
                    parser.add_argument("--port")
                parser.add_argument(f"--{prefix}assignment", choices=["random", "min_load"])
        """,
}
ALL = {"miles": MILES, "megatron": MEGATRON, "sglang": SGLANG, "router": ROUTER}


def write(folder: Path) -> Sources:
    """The sources, each in its own folder below `folder`."""
    for name, files in ALL.items():
        for path, text in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
    return Sources({name: Source(f"{name}/", folder / name) for name in ALL})
