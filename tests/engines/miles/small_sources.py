"""Sources as small as can be that register flags, read variables and call plugins in every way of upstream's."""

from __future__ import annotations

from pathlib import Path

from recipe.engines.miles.contract.source import Source
from recipe.engines.miles.contract.sources import Sources

MEGATRON = {
    "megatron/training/arguments.py": """
        from megatron.core.configs import ModelConfig

        def add_megatron_arguments(parser):
            parser = _add_size(parser)
            parser = _add_rest(parser)
            return parser

        def _add_size(parser):
            from ..core.configs import RunConfig
            exclude = ["hidden"]
            factory = ArgumentGroupFactory(ModelConfig, exclude=exclude)
            factory.build_group(parser, "model")
            ArgumentGroupFactory(RunConfig).build_group(parser, "run")
            return parser

        def _add_rest(parser):
            group = parser.add_argument_group("rest")
            group.add_argument("--lr", type=float, default=None)
            group.add_argument("--betas", type=float, nargs=2)
            group.add_argument("--logging", action=argparse.BooleanOptionalAction)
            return parser

        def _nobody_calls_it(parser):
            parser.add_argument("--never-registered")
    """,
    "megatron/core/configs.py": """
        class Backend(enum.Enum):
            flash = 1
            local = 2

        Method = Literal["uniform", "block"]

        @dataclass
        class Base:
            layers: int = 0

        @dataclass
        class ModelConfig(Base):
            hidden: int = 0
            spare: Optional[Callable] = None
            heads: int | None = None
            ratio: "float" = 0.0
            parallel: bool = False
            bias: bool = True
            method: Optional[Method] = None
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
    "miles/utils/arguments.py": """
        from sglang_router.launch import RouterArgs
        from miles.utils.kinds import Kind
        from miles.backends.serving import add_serving_arguments

        def reset_arg(parser, name, **kwargs):
            parser.add_argument(name, **kwargs)

        def provider():
            def add_miles_arguments(parser):
                def add_rollout_arguments(parser):
                    parser.add_argument("--num-rollout", type=int)
                    parser.add_argument("--ports", type=int, nargs="+")
                    parser.add_argument("--kind", choices=[one.value for one in Kind])
                    parser.add_argument("--mode", type=str, choices=["a"] + ["b"])
                    parser.add_argument("--server", nargs="?", const=True)
                    parser.add_argument("--options", type=json.loads)
                    reset_arg(parser, "--lr", type=str)
                    reset_arg(parser, "--seed", type=int)
                    parser.add_argument("--custom-generate-function-path", type=str)
                    parser.add_argument("--custom-rm-path", type=str)
                    parser.add_argument("--rollout-function-path", type=str)
                    parser.add_argument("--dynamic-sampling-filter-path", type=str)
                    RouterArgs.add_cli_args(parser, use_router_prefix=True)
                    return parser

                parser = add_rollout_arguments(parser)
                parser = add_serving_arguments(parser)
                return parser

            return add_miles_arguments
    """,
    "miles/utils/kinds.py": """
        class Kind(str, Enum):
            FIRST = "first"
            SECOND = "second"
    """,
    "miles/backends/serving.py": """
        from sglang.srt.server_args import ServerArgs

        LEFT_OUT = ["port"]

        def add_serving_arguments(parser):
            _add_prefixed(parser, flag_prefix="sglang", skipped=LEFT_OUT)
            return parser

        def _add_prefixed(parser, *, flag_prefix, skipped):
            old = parser.add_argument

            def wrapper(*names, **kwargs):
                name = names[0].lstrip("-")
                if name.replace("-", "_") in skipped:
                    return
                old(*[f"--{flag_prefix}-{one}" for one in names], **kwargs)

            parser.add_argument = wrapper
            ServerArgs.add_cli_args(parser)
            parser.add_argument = old
    """,
    "miles/rollout/generate.py": """
        async def generate(input):
            agent = load_function(input.args.custom_agent_function_path)
            return await agent(base_url="", prompt="", request_kwargs={}, metadata={})

        def _add(parser):
            parser.add_argument("--custom-agent-function-path", type=str)
            parser.add_argument("--max-seq-len", type=int)

        generate.add_arguments = _add
    """,
    "miles/rollout/loop.py": """
        from miles.rollout.helpers import call_filter, call_rollout, load_rollout_function

        class Manager:
            def __init__(self, args):
                self.rollout = load_rollout_function(args, args.rollout_function_path)
                self.filter = load_function(args.dynamic_sampling_filter_path)

            async def run(self, args, sample, group, **kwargs):
                if self.use_experimental_refactor:
                    await asyncio.to_thread(call_rollout, self.rollout, RolloutInput())
                else:
                    await asyncio.to_thread(call_rollout, self.rollout, 1, 2, 3)
                call_filter(self.filter, args, group)
                if rm := load_function(args.custom_rm_path):
                    await rm(args, sample, **kwargs)

        async def stop(args, module):
            hook = load_function(f"{module}.abort")
            await hook(args)
    """,
    "miles/rollout/helpers.py": """
        def load_rollout_function(input, path):
            found = load_function(path)
            return found(input)

        def call_rollout(rollout, input):
            output = rollout(input)
            return run(output) if inspect.iscoroutine(output) else output

        def call_filter(filter, *args):
            return filter(*args)
    """,
    "miles/rollout/inference_rollout/inference_rollout_common.py": """
        class InferenceRolloutFn:
            def __init__(self, input): ...
            async def __call__(self, input): ...
    """,
    "miles/utils/environ.py": """
        import os
        HOST = "HOST_ADDRESS"
        refactor = os.environ.get("MILES_EXPERIMENTAL_ROLLOUT_REFACTOR", "0")
        host = os.getenv(HOST)
        os.environ["ONLY_SET"] = "1"
        os.environ.setdefault("ONLY_SET", "1")
    """,
    "miles/tests/test_it.py": 'import os\nos.environ.get("ONLY_IN_A_TEST")\n',
    "scripts/models/inkling-small.sh": """
        LAYERS="${ANY_LAYERS:-42}"

        MODEL_ARGS=(
            --layers $LAYERS
            # a comment, and a switch
            --disable-bias --heads 8
        )
    """,
}
SGLANG = {
    "sglang/srt/server_args.py": """
        from sglang.srt.parsers import Parser

        BACKENDS = ["fa3"]
        BACKENDS += ["fa4"]

        class Deprecated(argparse.Action):
            def __init__(self, option_strings, dest, nargs=0, **kwargs): ...

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
                choices = list(Parser.KNOWN.keys())
                parser.add_argument("--parser", type=str, choices=["auto"] + choices)
                parser.add_argument("--old-switch", action=Deprecated)
    """,
    "sglang/srt/parsers.py": 'class Parser:\n    KNOWN = {"inkling": InklingDetector, "other": Other}\n',
    "sglang/srt/use.py": "if envs.SGLANG_SWITCH.get(): pass\nenvs.SGLANG_ONLY_SET.set(True)\n",
}
ROUTER = {
    "sglang_router/launch.py": "from sglang_router.router_args import RouterArgs\n",
    "sglang_router/router_args.py": """
        class RouterArgs:
            @staticmethod
            def add_cli_args(parser, use_router_prefix: bool = False, exclude_host: bool = True):
                prefix = "router-" if use_router_prefix else ""
                if not exclude_host:
                    parser.add_argument(f"--{prefix}host")
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
            lines = text.lstrip("\n").split("\n")
            indent = len(lines[0]) - len(lines[0].lstrip())
            file.write_text("\n".join(line[indent:] for line in lines))
    return Sources({name: Source(f"{name}/", folder / name) for name in ALL})
