"""Builds the optional C++ way from PyTorch's tensors to the library, for the PyTorch that is installed.

python -m normworklog.torch.build calls this. Without what it builds all works as well; a call then costs the host some
microseconds more.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

from .. import _library

SOURCE = Path(__file__).with_name("native.cpp")


CALLS = 2  # grows where what its functions are called with changes


def file_name() -> str:
    """Of one PyTorch and one Python: with another it would crash."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", f"{torch.__version__} {sysconfig.get_config_var('SOABI')}")
    return f"_native_{CALLS}_{words}.so"


def folders() -> list[Path]:
    """Where it is looked for: where the environment says, beside this file, and in the user's cache."""
    named = os.environ.get("NORMWORKLOG_NATIVE")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normworklog"
    return [Path(named)] if named else [SOURCE.parent, cache]


def header_folder() -> Path:
    """Of norm_worklog.h: in the installed package, or in the tree."""
    package = SOURCE.parents[1]
    for folder in (package / "lib", *package.parents[:3]):
        if (folder / "norm_worklog.h").is_file():
            return folder
    raise SystemExit("norm_worklog.h is missing: the package is not as it was installed")


def build(folder: Path) -> Path:
    from torch.utils import cpp_extension

    path = folder / file_name()
    includes = [header_folder(), *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = Path(torch.__file__).parent / "lib"
    part = path.with_suffix(".part")
    command = [
        os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-DTORCH_EXTENSION_NAME=_native",
        *[f"-isystem{include}" for include in includes], str(SOURCE), "-o", str(part), f"-L{libraries}", "-lc10",
        "-ltorch_cpu", "-ltorch_python",
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise SystemExit(f"there is no {command[0]}; CXX names the compiler to use") from None
    except subprocess.CalledProcessError:
        raise SystemExit(
            "the C++ compiler failed; what it said is above. The package works without this part."
        ) from None
    part.replace(path)
    return path


def load() -> ModuleType | None:
    """The built part, told where the library's functions are; None where it was not built for this PyTorch."""
    for folder in folders():
        path = folder / file_name()
        if not path.is_file():
            continue
        loader = importlib.machinery.ExtensionFileLoader("_native", str(path))
        spec = importlib.util.spec_from_file_location("_native", path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        library = _library.load()
        names = (
            "layernorm_forward", "rmsnorm_forward", "add_layernorm_forward", "add_rmsnorm_forward",
            "layernorm_backward", "rmsnorm_backward", "batchnorm_train", "batchnorm_inference", "batchnorm_backward",
            "workspace_size", "last_error",
        )
        functions = {f"nw_{name}": getattr(library.functions, f"nw_{name}") for name in names}
        if library.on_gpu:
            found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
            functions["current_stream"] = found.aoti_torch_get_current_cuda_stream
        addresses = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
        addresses["batch_invariant"] = ctypes.addressof(_library._batch_invariant)
        module.use(addresses)
        return module
    return None
