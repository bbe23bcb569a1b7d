"""The kernels compiled for Hopper without a GPU: they type-check, fit, and use the tensor cores."""

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from sql_compact.kernels import attention_triton  # noqa: E402
from sql_compact.kernels.attention_config import backward_config, forward_config  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
POINTERS = {"lse_ptr": "*fp32", "p_ptr": "*fp64"}
POINTERS |= {"seed_ptr": "*i64", "step_ptr": "*i64", "bits_ptr": "*i32", "terms_ptr": "*fp32"}


def compile_kernel(
    kernel: Any, constants: dict[str, Any], warps: int, stages: int, dtype: str
) -> Any:
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            values[(position,)] = constants[name]
        elif name.endswith("_ptr"):
            signature[name] = POINTERS.get(name, f"*{dtype}")
        else:
            signature[name] = "fp32" if name == "scale" else "i32"
        if (
            name.endswith("_ptr")
            or "pitch" in name
            or (name[0] == "s" and name not in ("scale", "site"))
        ):
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, values, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=HOPPER, options=options)


def forward(dtype: str, keep: str) -> Any:
    config = forward_config(2 if dtype == "bf16" else 4, 64, 256)
    constants = {
        "D": 64, "BLOCK_D": 64, "BM": config.block_m, "BN": config.block_n, "CAUSAL": True,
        "KEEP": keep, "NEGATIVE": False, "SPLIT": False, "CHECK": False, "PRECISION": "tf32",
    }  # fmt: skip
    kernel = attention_triton.forward_kernel
    return compile_kernel(kernel, constants, config.num_warps, config.num_stages, dtype)


def backward(dtype: str, keep: str) -> Any:
    config = backward_config(2 if dtype == "bf16" else 4, 64, 256)
    constants = {
        "D": 64, "BLOCK_D": 64, "OUTER": config.outer, "INNER": config.inner, "CAUSAL": True,
        "KEEP": keep, "WORDS": config.words, "SPLIT": False,
        "CHECK": False, "PRECISION": "tf32", "KINDS": "both",
    }  # fmt: skip
    kernel = attention_triton.backward_kernel
    return compile_kernel(kernel, constants, config.num_warps, config.num_stages, dtype)


@pytest.mark.parametrize("build", [forward, backward])
def test_dropout_bits_move_between_no_threads(build: Any) -> None:
    builds = [build("bf16", keep) for keep in ("drawn", "stored", "all")]
    for compiled in builds:
        assert compiled.metadata.shared <= SHARED_MEMORY
        assert "mma" in compiled.asm["ptx"]
    # The permuted key order exists so that bits are made where they are used: the conversions
    # between layouts are those that attention without dropout needs as well.
    conversions = [c.asm["ttgir"].count("ttg.convert_layout") for c in builds]
    assert len(set(conversions)) == 1


@pytest.mark.slow
def test_float32_kernels_fit_and_use_tensor_cores() -> None:
    for compiled in (forward("fp32", "stored"), backward("fp32", "stored")):
        assert compiled.metadata.shared <= SHARED_MEMORY
        assert ".tf32" in compiled.asm["ptx"]
