"""C text of one scalar: literals, conversions, operations. Pure functions of strings."""

from __future__ import annotations

from math import isinf, isnan

from ir.expr import FLOATS, OPERATIONS

CTYPE = {
    "float16": "_Float16", "float32": "float", "float64": "double", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||"}
LIBM = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "floor": "floor", "ceil": "ceil", "round": "rint", "pow": "pow", "fmod": "fmod",
}  # fmt: skip


def literal(value: float, dtype: str) -> str:
    if dtype == "bool":
        return "1" if value else "0"
    if dtype not in FLOATS:
        return _integer(int(value), dtype)
    if isnan(value) or isinf(value):
        special = '__builtin_nan("")' if isnan(value) else "__builtin_inf()"
        return f"(({CTYPE[dtype]}){'-' if value < 0 else ''}{special})"
    text = float(value).hex() if dtype == "float64" else repr(float(value))
    text = {"float32": f"{text}f", "float64": text}.get(dtype, f"({CTYPE[dtype]}){text}")
    return f"({text})" if text.startswith(("-", "(")) else text


def _integer(value: int, dtype: str) -> str:
    if dtype == "int64":
        if value == -(2**63):
            return "INT64_MIN"
        text = str(value) if abs(value) < 2**31 else f"{value}LL"
        return text if value >= 0 else f"({text})"
    if dtype == "uint64":
        return f"{value}ULL"
    return f"(({CTYPE[dtype]}){value})"


def cast(dtype: str, source: str, text: str) -> str:
    if dtype == source:
        return text
    if dtype == "bool":
        return f"(({text}) != 0)"
    return f"(({CTYPE[dtype]})({text}))"


def combine(name: str, dtype: str, a: str, b: str) -> str:
    return operation(name, dtype, [a, b])


def operation(name: str, dtype: str, args: list[str]) -> str:
    """One operation in C, result in the type that `ir.expr` gives it."""
    floating = dtype in FLOATS
    text = _text(name, dtype, args, floating)
    narrow = dtype in ("float16", "int8", "uint8", "int16", "uint16", "uint32", "int32")
    if narrow and OPERATIONS[name].result == "same":
        return f"(({CTYPE[dtype]}){text})"
    return text


def _text(name: str, dtype: str, args: list[str], floating: bool) -> str:
    suffix = "f" if dtype == "float32" else ""
    if name in INFIX:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    match name:
        case "div":
            return f"({args[0]} / {args[1]})" if floating else f"({args[1]} ? {args[0]} / {args[1]} : 0)"
        case "floordiv":
            return f"floor{suffix}({args[0]} / {args[1]})" if floating else _floordiv(args)
        case "mod":
            return f"tw_fmod_floor({args[0]}, {args[1]})" if floating else _mod(args)
        case "fmod" if not floating:
            return f"({args[0]} % {args[1]})"
        case "max" | "min":
            if floating:
                return f"tw_{name}{suffix}({args[0]}, {args[1]})"
            return f"({args[0]} {'>' if name == 'max' else '<'} {args[1]} ? {args[0]} : {args[1]})"
        case "neg":
            return f"(-{args[0]})"
        case "not":
            return f"(!{args[0]})"
        case "abs":
            return f"fabs{suffix}({args[0]})" if floating else f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        case "isnan":
            return f"({args[0]} != {args[0]})"
        case "rsqrt":
            return f"(1 / sqrt{suffix}({args[0]}))"
        case "sigmoid":
            return f"(1 / (1 + exp{suffix}(-{args[0]})))"
        case _:
            return f"{LIBM[name]}{suffix}({', '.join(args)})"


def _floordiv(args: list[str]) -> str:
    """Index arithmetic is never negative, but a user's integer tensor may be."""
    return f"tw_floordiv({args[0]}, {args[1]})"


def _mod(args: list[str]) -> str:
    return f"tw_mod({args[0]}, {args[1]})"
