"""Optional packages: which a format, a data set or a logger needs, and what to do without them."""

from __future__ import annotations

import importlib.util

_NEEDED = {
    "minari": ("minari",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript"),
    "parquet": ("pyarrow",),
    "wandb": ("wandb",),
}
_EXTRAS = ("minari", "onnx", "parquet")


def missing(kind: str) -> str:
    """Returns what to do about missing packages that something needs; empty: none is missing."""
    needed = _NEEDED.get(kind, ())
    if all(importlib.util.find_spec(name) is not None for name in needed):
        return ""
    wanted = f"'hpcdi[{kind}]'" if kind in _EXTRAS else kind
    names = f"package{'s' * (len(needed) > 1)} {' and '.join(needed)}"
    return f"needs the {names}: pip install {wanted}"
