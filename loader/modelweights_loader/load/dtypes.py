"""The dtypes of the format, and which of them the libraries at hand can load.

Called by `load.worker`. Imports torch only inside functions, and runs only in the load process.
"""

from __future__ import annotations

from typing import Any

# By safetensors' names; torch's attribute of it. A name that is missing here, or that torch lacks, has its own reason.
TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}


def name_dtypes() -> dict[Any, str]:
    """Names torch's dtypes as headers do.

    Returns:
        Those that this torch has.
    """
    import torch  # noqa: PLC0415 - see the module's docstring

    return {getattr(torch, attribute): name for name, attribute in TORCH_NAMES.items() if hasattr(torch, attribute)}


def find_lacking_in_torch(dtypes: list[str]) -> str | None:
    """Finds the first dtype that no library can load here, because torch lacks it.

    Args:
        dtypes: Names as in headers.

    Returns:
        A sentence that names it, or None.
    """
    import torch  # noqa: PLC0415 - see the module's docstring

    for name in dtypes:
        if not hasattr(torch, TORCH_NAMES.get(name, "")):
            return f"torch {torch.__version__} has no type for {name}"
    return None


def find_lacking_in_fastsafetensors(dtypes: list[str]) -> str | None:
    """Finds the first dtype that fastsafetensors at hand can't load.

    Args:
        dtypes: Names as in headers.

    Returns:
        A sentence that names it, or None.
    """
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring
    from fastsafetensors.st_types import DType  # noqa: PLC0415 - see the module's docstring

    known = {member.value for member in DType}
    for name in dtypes:
        if name not in known:
            return f"fastsafetensors {fastsafetensors.__version__} cannot load {name}"
    return None
