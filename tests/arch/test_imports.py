"""Who may import what: the layers, the back-ends, torch.distributed, and what `import thinwire` costs."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


# --------------------------------------------------------------------------------- layers and back-ends (import-linter)


def lint_imports(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    program = [sys.executable, "-c", command, "--no-cache", *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True)


def test_the_import_contracts_of_pyproject_are_kept() -> None:
    result = lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "text", "contract", "complaint"),
    [
        ("layout.py", "import thinwire.engines.simulate", "layers", "thinwire.layout -> thinwire.engines.simulate"),
        ("layout.py", "from thinwire import simulate", "layers", "thinwire.layout -> thinwire "),
        ("brand_new.py", "", "layers", "not listed as layers:\n\n- thinwire.brand_new"),
        ("payload.py", "import triton", "triton", "thinwire.payload -> triton"),
        ("ops/reference.py", "from triton import language", "triton", "thinwire.ops.reference -> triton"),
        ("compressors/topk.py", "def f():\n    import numba", "numba", "thinwire.compressors.topk -> numba"),
        ("engines/ddp.py", "from llvmlite import ir", "numba", "thinwire.engines.ddp -> llvmlite"),
    ],
)
def test_a_breach_of_a_contract_is_found(tmp_path: Path, path: str, text: str, contract: str, complaint: str) -> None:
    make_package(tmp_path, {path: text})
    result = lint_imports("--contract", contract, folder=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert complaint in result.stdout


@pytest.mark.parametrize("contract", ["layers", "triton", "numba"])
def test_a_package_that_keeps_the_contracts_passes(tmp_path: Path, contract: str) -> None:
    allowed = {
        "ops/cuda.py": "import triton.language",
        "ops/cpu.py": "import numba",
        "linear.py": "import numba\nimport thinwire.ops.cpu\nimport thinwire.ops.cuda",
        "cli/main.py": "import thinwire.linear",
    }
    make_package(tmp_path, allowed)
    result = lint_imports("--contract", contract, folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def make_package(folder: Path, modules: dict[str, str]) -> None:
    """A toy `thinwire` beside the real pyproject.toml: a few modules, the given ones, and a public name at the top."""
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    empty = dict.fromkeys(["errors.py", "layout.py", "ops/reference.py", "engines/simulate.py", "cli/main.py"], "")
    for name, text in (empty | modules).items():
        file = folder / "thinwire" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for directory in [folder / "thinwire", *(folder / "thinwire").rglob("*/")]:
        (directory / "__init__.py").touch()
    (folder / "thinwire" / "__init__.py").write_text("from thinwire.engines import simulate as simulate")


# ---------------------------------------------------------------------------------------------------- torch.distributed

MAY_DISTRIBUTE = (
    "thinwire.exchange",
    "thinwire.engines.ddp",
    "thinwire.engines.fsdp",
    "thinwire.engines.sites",
    "thinwire.bench.ddp_step",
    "thinwire.lab",
    "thinwire.training",
    "thinwire.advice",  # measures collectives, and trains copies of a model on groups of one rank
)


def uses_torch_distributed(source: str) -> list[int]:
    """The lines on which a module names torch.distributed: by import, through `torch`, or as a text to import."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if names_torch_distributed(node)})  # type: ignore[attr-defined]


def names_torch_distributed(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(is_within(alias.name, "torch.distributed") for alias in names)
        case ast.ImportFrom(module=str(module), level=0, names=names):
            return any(is_within(f"{module}.{alias.name}", "torch.distributed") for alias in names)
        case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(target)), *_]):
            return name in ("import_module", "__import__") and is_within(target, "torch.distributed")
    return False


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SOURCE / "thinwire").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_only_the_exchange_ddp_and_the_launcher_use_torch_distributed() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for name, path in modules()
        if not any(is_within(name, allowed) for allowed in MAY_DISTRIBUTE)
        for line in uses_torch_distributed(path.read_text())
    }
    assert not found, f"torch.distributed belongs to {', '.join(MAY_DISTRIBUTE)}"


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed",
        "import torch.distributed as dist",
        "import torch.distributed.checkpoint",
        "from torch import distributed",
        "from torch import nn, distributed as dist",
        "from torch.distributed import all_gather",
        "from torch.distributed.elastic import multiprocessing",
        "def f():\n    import torch.distributed",
        "import torch\ntorch.distributed.barrier()",
        "import importlib\nimportlib.import_module('torch.distributed')",
        "__import__('torch.distributed.rpc')",
    ],
)
def test_a_use_of_torch_distributed_is_found(source: str) -> None:
    assert uses_torch_distributed(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "from torch import nn, Tensor",
        "from torch.distributions import Normal",
        "import torch.distributions",
        "from .distributed import x",
        "torch.nn.parallel.DistributedDataParallel",
        "'torch.distributed'",
    ],
)
def test_what_only_looks_like_torch_distributed_is_not_found(source: str) -> None:
    assert not uses_torch_distributed(source)


# ---------------------------------------------------------------------------------------------------- `import thinwire`

FRAMEWORKS = {"pytorch_lightning", "lightning", "accelerate", "transformers", "ray", "tensorboard", "torchft"}
HEAVY = {"triton", "numba", "sklearn", "matplotlib", "typer", *FRAMEWORKS}

# A finder that is asked first about every module that is not loaded yet, notes its name and finds nothing itself.
# It sees an import even of a package that is not installed here, and so one inside `try: … except ImportError`.
# torch and numpy come first: what they import by themselves is not ours.
WATCH = """
import sys, torch, numpy
class Watch:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
sys.meta_path.insert(0, Watch())
{statements}
print(*Watch.asked)
"""


def heavy_imports(statements: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter tries to import while it runs the statements."""
    program = WATCH.format(statements=statements)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return HEAVY & set(result.stdout.split())


def test_importing_thinwire_imports_nothing_heavy() -> None:
    assert heavy_imports("import thinwire") == set()


@pytest.mark.parametrize(
    ("door", "own"),
    [("lightning", {"pytorch_lightning"}), ("accelerate", {"accelerate"}), ("transformers", {"transformers"})],
)
def test_the_door_to_a_framework_asks_for_that_one_and_says_how_to_get_it(door: str, own: set[str]) -> None:
    """As if no framework were installed: the first that is asked for is its own."""
    absent = "sys.modules |= dict.fromkeys(" + repr(sorted(FRAMEWORKS)) + ")"
    program = f"import sys\n{absent}\nimport thinwire.{door}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"thinwire.{door} needs the package '{own.pop()}'" in done.stderr
    assert f"pip install 'thinwire[{door}]'" in done.stderr


def test_the_command_line_needs_nothing_heavy_but_its_own_package() -> None:
    assert heavy_imports("import thinwire.cli.main") == {"typer"}


def test_every_heavy_import_is_seen_even_a_guarded_one() -> None:
    guarded = "try:\n    import {0}\nexcept ImportError:\n    pass"
    light = HEAVY - FRAMEWORKS  # to import all of them takes half a minute, and shows nothing else
    assert heavy_imports("\n".join(guarded.format(name) for name in light)) == light


# ------------------------------------------------------------------------------------------------ nothing is unpickled


def test_nothing_that_travels_between_ranks_is_pickled() -> None:
    """torch's collectives of objects unpickle what other ranks send, and can abort a process that is just ending."""
    objects = re.compile(r"\b(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?\b")
    pickling = {path.name for _, path in modules() if re.search(r"^(import|from) pickle", path.read_text(), re.M)}
    assert not [path for _, path in modules() if objects.search(path.read_text())]
    # CIFAR-10's own files are pickles, read by an unpickler that knows numpy alone; the other names pickle's error
    assert pickling == {"cifar_files.py", "part_set.py"}
