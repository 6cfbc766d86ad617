"""The tensors of one snapshot, whatever wrote it: numpy, safetensors, torch, or a Hugging Face folder.

No pickle is ever executed: numpy arrays of objects and torch files that hold more than tensors are refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from theory.errors import UserError, nearest

SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth", ".bin")
# What a Hugging Face folder keeps its weights in, the safer format first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# What numpy's files begin with: one array, or an archive of them (full or empty).
_NUMPY = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
# Of safetensors, by the names that numpy and torch use.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a snapshot: its shape and dtype, and `read()`, which gives float64."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a snapshot, by name.

    **Arguments:** `path`: a file with one of the `SUFFIXES`, or a folder with `model.safetensors` or `pytorch_model.bin`,
    whole or in the parts that its `.index.json` lists.

    **Raises:** `UserError`, one sentence naming the file, for anything that cannot be read without executing it.
    """
    if path.is_dir():
        return _folder(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{str(path)!r} is no snapshot: its name must end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"there is no snapshot {str(path)!r}")
    try:
        if not path.stat().st_size:
            raise UserError(f"the snapshot {str(path)!r} is empty (0 bytes)")
        return {".npz": _npz, ".npy": _npy, ".safetensors": _safetensors}.get(path.suffix, _torch)(path)
    except OSError as error:
        raise UserError(f"the snapshot {str(path)!r} cannot be read: {error.strerror or error}") from error


def is_snapshot(path: Path) -> bool:
    """Whether `path` looks like one snapshot: a file of a known kind, or a folder with weights."""
    if path.is_dir():
        return any((path / name).exists() or (path / f"{name}.index.json").exists() for name in WEIGHTS)
    return path.suffix in SUFFIXES


def rounding(dtype: str) -> float | None:
    """The relative rounding of a dtype coarser than single precision, None for the others."""
    import torch

    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        return None
    half = torch.finfo(found).eps / 2
    return half if half > torch.finfo(torch.float32).eps else None


def listing(tensors: Mapping[str, Tensor]) -> str:
    """What a snapshot holds, in words."""
    shown = [f"{name} {_shape(tensor.shape)}" for name, tensor in list(tensors.items())[:20]]
    return ", ".join(shown) + (f" and {len(tensors) - 20} more" if len(tensors) > 20 else "") or "nothing"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _npz(path: Path) -> dict[str, Tensor]:
    found = {}
    name = "array"
    try:
        # numpy leaves a file open that it opened itself and could not read.
        with open(path, "rb") as stream:
            begin = stream.read(8)
            # What numpy says of any other file is how to execute it as a pickle.
            if not begin.startswith(_NUMPY):
                what = "a pickle, which is never executed" if begin.startswith(b"\x80") else f"it begins with {begin!r}"
                raise UserError(
                    f"the snapshot {str(path)!r} is damaged or no numpy file ({what}): write one with numpy.savez"
                )
            stream.seek(0)
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {name: _of_array(loaded)}
            for name in loaded.files:
                found[name] = _of_array(loaded[name])
    except (UserError, OSError):
        raise
    except Exception as error:  # a damaged file makes the readers fail in any way
        if "Object arrays" in str(error):
            raise UserError(
                f"{str(path)!r} holds {name!r} as Python objects, a pickle, which is never executed: "
                "save it as an array of numbers"
            ) from error
        raise UserError(f"the snapshot {str(path)!r} is damaged or no numpy file: {_reason(error)}") from error
    return found


_npy = _npz


def _of_array(array: np.ndarray) -> Tensor:
    return Tensor(array.shape, array.dtype.name, lambda: array.astype(np.float64))


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    def reader(name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name).double().numpy()

        return read

    try:
        with safe_open(path, framework="pt") as file:
            found = {}
            for name in file.keys():
                part = file.get_slice(name)
                dtype = str(part.get_dtype())
                found[name] = Tensor(tuple(part.get_shape()), _DTYPES.get(dtype, dtype), reader(name))
            return found
    except SafetensorError as error:
        raise UserError(f"the snapshot {str(path)!r} is damaged or no safetensors file: {_reason(error)}") from error


def _torch(path: Path) -> dict[str, Tensor]:
    import pickle

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the format; what does not load is told below
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{str(path)!r} holds a pickle of more than tensors, or is damaged, and was not executed: "
            "save the weights alone, torch.save(model.state_dict(), …)"
        ) from error
    except Exception as error:  # a damaged file makes the readers fail in any way
        raise UserError(f"the snapshot {str(path)!r} is damaged or no torch file: {_reason(error)}") from error
    found: dict[str, Tensor] = {}

    def collect(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            found[name or "tensor"] = Tensor(tuple(value.shape), dtype, lambda: _numbers(value, name or "tensor", path))
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                collect(inner, f"{name}.{key}" if name else str(key))

    # Training scripts wrap the weights; their optimiser states are not weights.
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    collect(loaded, "")
    return found


def _numbers(value: Any, name: str, path: Path) -> np.ndarray:
    """A torch tensor as float64. **Raises:** `UserError` for one without numbers, or with numbers in another layout."""
    import torch

    if value.is_meta:
        raise UserError(f"{name!r} in {str(path)!r} is a meta tensor: a shape without numbers")
    if value.layout != torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        raise UserError(f"{name!r} in {str(path)!r} is stored as {layout}: save it dense, with .to_dense()")
    try:
        return value.detach().double().numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UserError(f"{name!r} in {str(path)!r} cannot be read as numbers: {_reason(error)}") from error


def _folder(path: Path) -> dict[str, Tensor]:
    for name in WEIGHTS:
        if (path / name).exists():
            return read_tensors(path / name)
        index = path / f"{name}.index.json"
        if index.exists():
            return _parts(index)
    held = sorted(entry.name for entry in path.iterdir())
    raise UserError(
        f"the folder {str(path)!r} is no snapshot: it has neither {WEIGHTS[0]} nor {WEIGHTS[1]}; {nearest(WEIGHTS[0], held)}"
    )


def _parts(index: Path) -> dict[str, Tensor]:
    try:
        weight_map = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"the index {str(index)!r} is damaged: it needs a weight_map") from error
    found: dict[str, Tensor] = {}
    for part in sorted(set(map(str, weight_map.values()))):
        # "" and ".." are names of folders, the second one outside.
        if Path(part).name != part or part in ("", ".", ".."):
            raise UserError(f"the index {str(index)!r} points outside its folder, at {part!r}")
        wanted = [name for name, place in weight_map.items() if place == part]
        if not (index.parent / part).is_file():
            raise UserError(
                f"{str(index.parent)!r} lacks the file {part!r} that {index.name} promises, with {wanted[0]!r}"
            )
        tensors = read_tensors(index.parent / part)
        for name in wanted:
            if name not in tensors:
                raise UserError(f"{str(index.parent / part)!r} lacks the tensor {name!r} that its index promises")
            found[name] = tensors[name]
    return found


def _reason(error: Exception) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else f"{words[:157]}…"
