"""What others call dtypes: PyTorch's recorders, by C++ type names, and Triton."""

from __future__ import annotations

from collections.abc import Mapping

RECORDED_DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "half": "float16",
    "c10::BFloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "unsigned char": "uint8",
    "signed char": "int8",
    "char": "int8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
}

# Bytes of an element by Triton's names of types.
TRITON_ITEM_BYTES: Mapping[str, int] = {
    "fp64": 8, "i64": 8, "u64": 8, "fp32": 4, "i32": 4, "u32": 4, "fp16": 2, "bf16": 2, "i16": 2,
    "u16": 2, "fp8e4nv": 1, "fp8e5": 1, "i8": 1, "u8": 1, "i1": 1,
}  # fmt: skip
