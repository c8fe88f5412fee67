"""A DAG as the plainest C program: stage after stage, no schedule, doubles for floats, and an error bound beside
each value.

The bound is a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3):
next to a value v stands e, how far a correct program in the declared dtypes may be from v.

    an operation      e = (first derivative times the arguments' e) + 2 u |v|, u the unit roundoff of its dtype
    a function        the same with 4 times the rounding, and an absolute 2 u where polynomials are not relative
    a sum of n terms  e = (sum of the terms' e) + 4 sqrt(n) u (sum of |terms|), any order of summation.
                      gamma_n = n u / (1 - n u) is the worst case (section 4.2); sqrt(n) u times a small constant holds
                      with high probability (Higham, Mary: A new approach to probabilistic rounding error analysis,
                      2019, theorem 2.4) and sees most single missing terms of 4,096.
    a step function   the jumps within e of the argument: round, floor, conversion to an integer
    a comparison      "doubtful" within e; a `select` that hangs on it may take either side

Values that no rounding reached have e = 0 and must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isinf, isnan, prod, sqrt

import numpy as np

from ir.affine import interval
from ir.compute import LEFT, RIGHT, SUM, Compute, Dag
from ir.expr import FLOATS, OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, dtype_of

ZERO = "0"  # an error that is zero whatever the inputs are

RUNTIME = r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int first_missed = -1, inexact = 0;
static void missed(int stage) { if (first_missed < 0) first_missed = stage; }
static void *room(int64_t count, size_t size) {
  void *p = malloc(count > 0 ? count * size : 1);
  if (!p) { fprintf(stderr, "out of memory\n"); exit(3); }
  return p;
}
static FILE *file(const char *folder, const char *name, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, mode);
  if (!f) { perror(path); exit(4); }
  return f;
}
static void *load(const char *folder, const char *name, int64_t count, size_t size) {
  void *p = room(count, size);
  FILE *f = file(folder, name, "rb");
  if (fread(p, size, count, f) != (size_t)count) { fprintf(stderr, "%s is short\n", name); exit(4); }
  fclose(f);
  return p;
}
static void save(const char *folder, const char *name, const void *p, int64_t count, size_t size) {
  FILE *f = file(folder, name, "wb");
  if (fwrite(p, size, count, f) != (size_t)count || fclose(f)) { perror(name); exit(4); }
}
static inline double fl_max(double a, double b) { return a > b || isnan(a) ? a : b; }
static inline double fl_min(double a, double b) { return a < b || isnan(a) ? a : b; }
static inline double fl_mod(double a, double b) { double m = fmod(a, b); return m != 0 && (m < 0) != (b < 0) ? m + b : m; }
#define INTEGERS(T, P) \
  static inline T P##_div(T a, T b) { return b == 0 ? a : b == (T)-1 && (T)-1 < 0 ? (T)(0 - (uint64_t)a) : a / b; } \
  static inline T P##_fmod(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : a % b; } \
  static inline T P##_mod(T a, T b) { T m = P##_fmod(a, b); return m != 0 && (m < 0) != (b < 0) ? m + b : m; } \
  static inline T P##_floordiv(T a, T b) { \
    return b == 0 ? 0 : (T)(P##_div(a, b) - (P##_fmod(a, b) != 0 && (a < 0) != (b < 0))); } \
  static inline T P##_max(T a, T b) { return a > b ? a : b; } \
  static inline T P##_min(T a, T b) { return a < b ? a : b; } \
  static inline T P##_pow(T a, T b) { T r = 1; for (; b > 0; b--) r *= a; return b < 0 ? 0 : r; }
INTEGERS(int64_t, i)
INTEGERS(uint64_t, u)
"""

# value, and its derivative; a: the argument, v: the value
FUNCTIONS = {
    "exp":     ("exp(a)",             "v"),
    "log":     ("log(a)",             "1 / a"),
    "rsqrt":   ("1 / sqrt(a)",        "v / (2 * a)"),
    "tanh":    ("tanh(a)",            "1 - v * v"),
    "erf":     ("erf(a)",             "1.1283791670955126 * exp(-a * a)"),
    "sigmoid": ("1 / (1 + exp(-a))",  "v * (1 - v)"),
    "sin":     ("sin(a)",             "cos(a)"),
    "cos":     ("cos(a)",             "sin(a)"),
    "tan":     ("tan(a)",             "1 + v * v"),
    "asin":    ("asin(a)",            "1 / sqrt(1 - a * a)"),
    "acos":    ("acos(a)",            "1 / sqrt(1 - a * a)"),
    "atan":    ("atan(a)",            "1 / (1 + a * a)"),
    "sinh":    ("sinh(a)",            "cosh(a)"),
    "cosh":    ("cosh(a)",            "sinh(a)"),
    "asinh":   ("asinh(a)",           "1 / sqrt(1 + a * a)"),
    "acosh":   ("acosh(a)",           "1 / sqrt(a * a - 1)"),
    "atanh":   ("atanh(a)",           "1 / (1 - a * a)"),
}  # fmt: skip
RELATIVE = ("exp", "rsqrt")  # computed to relative accuracy everywhere; the others may be off by u near their zeros
STEPS = {"floor": "floor", "ceil": "ceil", "round": "rint"}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
COMPARES = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
EXACT_OPERATIONS = {"add", "sub", "mul", "neg", "abs", "max", "min", *STEPS, *COMPARES, "and", "or", "not", "select",
                    "floordiv", "mod", "fmod", "isnan"}  # fmt: skip


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one rounding to nearest: 2^-24 for float32."""
    return float(np.finfo(dtype).eps) / 2


def ctype(dtype: str) -> str:
    """What a value of this dtype is held in."""
    return "double" if dtype in FLOATS else "uint8_t" if dtype == "bool" else f"{dtype}_t"


def stored(dtype: str) -> str:
    """The dtype in which inputs are handed over: C has no half precision everywhere."""
    return "float32" if dtype == "float16" else "uint8" if dtype == "bool" else dtype


@dataclass(frozen=True, slots=True)
class Value:
    """C expressions of a value and of its error."""

    code: str
    error: str
    dtype: str

    @property
    def real(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: an array, and an array of errors unless it is exact."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool


def program(dag: Dag, rounding: bool = True) -> str:
    """C text of a whole program: `program FOLDER` reads files i0, i1, ... and writes v0, e0, v1, e1, ...

    Standard output: the number of the first stage that read out of bounds (or -1) and whether some sum grew too
    large to be exact. Without `rounding` nothing is added for it: bounds for integer-valued data.
    """
    return _Writer(rounding).program(dag)


class _Writer:
    def __init__(self, rounding: bool) -> None:
        self.rounding = rounding
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.stage = 0
        self.speculative = False  # inside a side of a select that may be the wrong one: reads may miss
        self.places: dict[str, Place] = {}
        self.axes: dict[Axis, str] = {}
        self.params: dict[str, Value] = {}
        self.known: list[dict[Expr, Value]] = [{}]

    # ------------------------------------------------------------------------------------------ statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self) -> int:
        self.count += 1
        return self.count

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """head { ... }; what is computed inside is not known outside."""
        self.line(head + " {")
        self.depth += 1
        self.known.append({})
        yield
        self.known.pop()
        self.depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, axes: Sequence[Axis]) -> Iterator[None]:
        if not axes:
            yield
            return
        first, *rest = axes
        n = self.axes[first] = f"x{self.fresh()}"
        with self.block(f"for (int64_t {n} = 0; {n} < {first.extent}; {n}++)"), self.loops(rest):
            yield

    def keep(self, code: str, error: str, dtype: str) -> Value:
        """Name a value, so that its text appears once."""
        n = self.fresh()
        self.line(f"const {ctype(dtype)} v{n} = {code};")
        if error != ZERO:
            self.line(f"const double e{n} = {error.replace('(v)', f'v{n}')};")
        return Value(f"v{n}", error if error == ZERO else f"e{n}", dtype)

    # ------------------------------------------------------------------------------------------ the program

    def program(self, dag: Dag) -> str:
        for i, t in enumerate(dag.inputs):
            c = {"float32": "float", "float64": "double"}.get(stored(t.dtype), stored(t.dtype) + "_t")
            self.line(f'const {c} *t{i} = load(folder, "i{i}", {prod(t.shape)}, sizeof({c}));')
            self.places[t.name] = Place(f"t{i}", t.shape, t.dtype, True)
        for i, stage in enumerate(dag.computes, len(dag.inputs)):
            self.stage = i - len(dag.inputs)
            self.write_stage(stage, f"t{i}")
        for i, output in enumerate(dag.outputs):
            p = self.places[output]
            self.line(f'save(folder, "v{i}", {p.name}, {prod(p.shape)}, sizeof *{p.name});')
            if not p.exact:
                self.line(f'save(folder, "e{i}", {p.name}e, {prod(p.shape)}, sizeof(double));')
        body = "\n".join(self.lines)
        end = '  printf("%d %d\\n", first_missed, inexact);\n  return 0;\n'
        return f"{RUNTIME}\nint main(int count, char **words) {{\n  const char *folder = words[1];\n{body}\n{end}}}\n"

    def write_stage(self, stage: Compute, name: str) -> None:
        self.axes, self.known = {}, [{}]
        self.line(f"{ctype(stage.dtype)} *{name} = room({prod(stage.shape)}, sizeof *{name});")
        at = len(self.lines)
        exact = self.write_reduction(stage, name) if stage.reduce else self.write_elementwise(stage, name)
        if not exact:
            self.lines.insert(at, f"  double *{name}e = room({prod(stage.shape)}, sizeof(double));")
        self.places[stage.name] = Place(name, stage.shape, stage.dtype, exact)

    def write_elementwise(self, stage: Compute, name: str) -> bool:
        with self.loops(stage.space):
            v = self.value(self.body(stage))
            return self.store(stage, name, v, v.code)

    def body(self, stage: Compute) -> Expr:
        return stage.body if dtype_of(stage.body) == stage.dtype else Cast(stage.dtype, stage.body)

    def store(self, stage: Compute, name: str, v: Value, size: str) -> bool:
        """Write one element; `size` bounds every partial result on the way to it. True when the error is zero."""
        at = self.offset([Value(self.axes[a], ZERO, "int64") for a in stage.space], stage.shape)
        self.line(f"{name}[{at}] = {v.code};")
        if v.error != ZERO:
            self.line(f"{name}e[{at}] = {v.error};")
        if not self.rounding and v.real:
            self.line(f"inexact |= fabs({size}) >= {1 / unit_roundoff(stage.dtype):.1f} && fabs({size}) < INFINITY;")
        return v.error == ZERO

    def write_reduction(self, stage: Compute, name: str) -> bool:
        """Rows of accumulators over the last space axis, which is innermost so that the C compiler can vectorise."""
        row = stage.space[-1:]
        n = row[0].extent if row else 1
        summed = stage.combiner.body == SUM.body and stage.dtype in FLOATS
        arrays = [f"{p}{name}" for p in ("acc", "err", "mag")]
        types = [ctype(stage.dtype), "double", "double"]
        for array, c in zip(arrays, types, strict=True):
            self.line(f"{c} *restrict {array} = room({n}, sizeof({c}));")
        acc, err, mag = (f"{a}[{{}}]" for a in arrays)
        start = self.literal(stage.combiner.start(stage.dtype))
        with self.loops(stage.space[:-1]):
            with self.loops(row):
                j = self.axes[row[0]] if row else "0"
                self.line(f"{acc.format(j)} = {start}; {err.format(j)} = 0; {mag.format(j)} = 0;")
            carried = self.carries_error(stage, row, summed)
            with self.loops(stage.reduce), self.loops(row):
                j = self.axes[row[0]] if row else "0"
                term = self.value(self.body(stage))
                old = Value(acc.format(j), err.format(j) if carried else ZERO, stage.dtype)
                self.accumulate(stage, old, term, mag.format(j), summed)
            with self.loops(row):
                j = self.axes[row[0]] if row else "0"
                error = err.format(j) if carried else ZERO
                if summed and self.rounding:
                    growth = 4 * sqrt(prod(a.extent for a in stage.reduce)) * unit_roundoff(stage.dtype)
                    error = _plus(error, f"{growth.hex()} * {mag.format(j)}")
                v = Value(acc.format(j), error, stage.dtype)
                return self.store(stage, name, v, mag.format(j) if summed else v.code)

    def accumulate(self, stage: Compute, old: Value, term: Value, mag: str, summed: bool) -> None:
        if summed:
            self.line(f"{old.code} += {term.code}; {mag} += fabs({term.code});")
            if term.error != ZERO:
                self.line(f"{old.error} += {term.error};")
            return
        new = self.joined(stage, old, term)
        if old.error != ZERO:
            self.line(f"{old.error} = {new.error};")
        self.line(f"{old.code} = {new.code};")

    def joined(self, stage: Compute, old: Value, term: Value) -> Value:
        self.params = {LEFT: old, RIGHT: term}
        self.known.append({})
        new = self.value(stage.combiner.body)
        self.known.pop()
        return new

    def carries_error(self, stage: Compute, row: Sequence[Axis], summed: bool) -> bool:
        """Whether errors flow into the accumulator: tried on paper, the text is thrown away."""
        kept = self.lines
        self.lines = []
        with self.loops([*stage.reduce, *row]):
            term = self.value(self.body(stage))
            new = term if summed else self.joined(stage, Value("0", ZERO, stage.dtype), term)
        self.lines = kept
        return new.error != ZERO

    # ------------------------------------------------------------------------------------------ expressions

    def value(self, e: Expr) -> Value:
        for known in self.known:
            if e in known:
                return known[e]
        v = self.written(e)
        self.known[-1][e] = v
        return v

    def written(self, e: Expr) -> Value:
        match e:
            case Const(_, dtype):
                return Value(self.literal(e), ZERO, dtype)
            case Axis():
                return Value(self.axes[e], ZERO, "int64")
            case Param(name, _):
                return self.params[name]
            case Read():
                return self.read(e)
            case Cast(dtype, arg):
                return self.cast(dtype, self.value(arg), arg)
            case Op("select", (condition, then, otherwise)):
                return self.select(self.value(condition), then, otherwise)
            case Op(name, args):
                return self.operation(name, [self.value(a) for a in args], dtype_of(e))

    def literal(self, c: Const) -> str:
        if c.dtype in FLOATS:
            with np.errstate(over="ignore"):
                value = float(np.dtype(c.dtype).type(c.value))
            if isnan(value):
                return "NAN"
            return f"({value.hex()})" if not isinf(value) else "INFINITY" if value > 0 else "(-INFINITY)"
        if c.dtype == "uint64":
            return f"UINT64_C({int(c.value)})"
        low = int(c.value) == -(2**63)  # -9223372036854775808 is not a C literal
        return "INT64_MIN" if low else f"(({ctype(c.dtype)})INT64_C({int(c.value)}))"

    def offset(self, index: Sequence[Value], shape: tuple[int, ...]) -> str:
        at = "0"
        for i, n in zip(index, shape, strict=True):
            at = f"({at}) * {n} + (int64_t){i.code}" if at != "0" else f"(int64_t){i.code}"
        return at

    def read(self, e: Read) -> Value:
        place = self.places[e.tensor]
        index = [self.value(i) for i in e.index]
        checks = [
            f"{v.code} >= 0 && {v.code} < {n}"
            for v, i, n in zip(index, e.index, place.shape, strict=True)
            if not _inside(i, n)
        ]
        at, error = self.offset(index, place.shape), ZERO
        code = f"{place.name}[{at}]"
        if not place.exact:
            error = f"{place.name}e[{at}]"
        if checks:
            inside = f"c{self.fresh()}"
            self.line(f"const int {inside} = {' && '.join(checks)};")
            if not self.speculative:
                self.line(f"if (!{inside}) missed({self.stage});")
            code = f"{inside} ? {code} : 0"
            error = error if error == ZERO else f"({inside} ? {error} : 0)"
        shaky = _plus(*(i.error for i in index))
        if shaky != ZERO:  # an index in doubt: nothing is known about the element
            error = f"{shaky} > 0 ? INFINITY : {error}"
        return self.keep(code, error, place.dtype)

    def cast(self, dtype: str, v: Value, arg: Expr) -> Value:
        if dtype in FLOATS:
            return self.keep(f"(double){v.code}", _plus(v.error, self.conversion(dtype, v, arg)), dtype)
        if dtype == "bool":
            doubt = ZERO if v.error == ZERO else f"{v.error} > 0 && fabs((double){v.code}) <= {v.error}"
            return self.keep(f"{v.code} != 0", doubt, dtype)
        if v.real:
            wide = "uint64_t" if dtype == "uint64" else "int64_t"
            return self.keep(f"({ctype(dtype)})({wide}){v.code}", _jump("trunc", v), dtype)
        return self.keep(f"({ctype(dtype)}){v.code}", v.error, dtype)

    def conversion(self, dtype: str, v: Value, arg: Expr) -> str:
        """The rounding of a conversion to a float type, none where the type holds every value."""
        bits = np.finfo(dtype).nmant + 1
        if v.real:
            return self.rounded(dtype) if unit_roundoff(dtype) > unit_roundoff(v.dtype) else ZERO
        known = interval(arg) if v.dtype == "int64" else None
        small = known is not None and max(abs(known[0]), abs(known[1])) <= 2**bits
        if small or 8 * np.dtype(v.dtype).itemsize <= bits or not self.rounding:
            return ZERO
        return f"(fabs((v)) > {2.0**bits} ? {self.rounded(dtype)} : 0)"

    def rounded(self, dtype: str, times: int = 1) -> str:
        """`(v)` stands for the value that is being named."""
        return f"{(2 * times * unit_roundoff(dtype)).hex()} * fabs((v))" if self.rounding else ZERO

    def select(self, condition: Value, then: Expr, otherwise: Expr) -> Value:
        n, doubt = self.fresh(), condition.error
        dtype = dtype_of(then)
        self.line(f"{ctype(dtype)} a{n} = 0, b{n} = 0; double ea{n} = 0, eb{n} = 0;")
        outer = self.speculative
        self.speculative = outer or doubt != ZERO
        errors = []
        for name, e, test in (("a", then, condition.code), ("b", otherwise, f"!{condition.code}")):
            with self.block(f"if ({test})" if doubt == ZERO else f"if ({test} || {doubt})"):
                side = self.value(e)
                self.line(f"{name}{n} = {side.code}; e{name}{n} = {side.error};")
                errors.append(side.error)
        self.speculative = outer
        error = ZERO if errors == [ZERO, ZERO] else f"({condition.code} ? ea{n} : eb{n})"
        if doubt != ZERO:
            error = f"{doubt} ? fabs((double)a{n} - (double)b{n}) + fmax(ea{n}, eb{n}) : {error}"
        return self.keep(f"{condition.code} ? a{n} : b{n}", error, dtype)

    def operation(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        if OPERATIONS[name].result == "bool":
            return self.truth(name, args)
        if dtype not in FLOATS:
            return self.keep(f"({ctype(dtype)})({_integer(name, args, dtype)})", _integer_error(name, args), dtype)
        if name in FUNCTIONS:
            code, slope = FUNCTIONS[name]
            code, slope = (_with(t, args[0].code) for t in (code, slope))
            near_zero = ZERO if name in RELATIVE or not self.rounding else (2 * unit_roundoff(dtype)).hex()
            error = _plus(_times(f"fabs({slope})", args[0].error), self.rounded(dtype, 4), near_zero)
            return self.keep(code, error, dtype)
        code, error = _real(name, args)
        exact = name in ("neg", "abs", "max", "min", *STEPS)
        return self.keep(code, error if exact else _plus(error, self.rounded(dtype, 8 if name == "pow" else 1)), dtype)

    def truth(self, name: str, args: Sequence[Value]) -> Value:
        codes = [a.code for a in args]
        doubt = _plus(*(a.error for a in args))
        if name in COMPARES:
            a, b = codes
            if doubt != ZERO:
                doubt = f"{doubt} > 0 && fabs((double){a} - (double){b}) <= {doubt}"
            return self.keep(f"{a} {COMPARES[name]} {b}", doubt, "bool")
        if doubt != ZERO:
            doubt = f"{doubt} > 0" if name != "isnan" else ZERO
        code = {"and": "{0} && {1}", "or": "{0} || {1}", "not": "!{0}", "isnan": "isnan((double){0})"}[name]
        return self.keep(code.format(*codes), doubt, "bool")


# ---------------------------------------------------------------------------------------------- text of operations


def _plus(*terms: str) -> str:
    kept = [t for t in terms if t != ZERO]
    return ZERO if not kept else kept[0] if len(kept) == 1 else f"({' + '.join(kept)})"


def _times(factor: str, error: str) -> str:
    return ZERO if error == ZERO else f"{factor} * {error}"


def _with(template: str, argument: str) -> str:
    """exp(a) -> exp(x7); the value itself stays `(v)` until it has a name."""
    return re.sub(r"\b[av]\b", lambda word: argument if word[0] == "a" else "(v)", template)


def _jump(step: str, v: Value) -> str:
    """How far a step function may jump within the argument's error."""
    x, e = v.code, v.error
    if e == ZERO:
        return ZERO
    return f"fmax(fabs({step}({x} + {e}) - {step}({x})), fabs({step}({x} - {e}) - {step}({x})))"


def _inside(e: Expr, extent: int) -> bool:
    known = interval(e)
    return known is not None and known[0] >= 0 and known[1] < extent


def _real(name: str, args: Sequence[Value]) -> tuple[str, str]:
    """Value and propagated error of an operation on floats."""
    a, ea = args[0].code, args[0].error
    if len(args) == 1:
        return _real_unary(name, args[0])
    b, eb = args[1].code, args[1].error
    shared = _plus(_times(f"1 / fabs({b})", ea), _times(f"fabs({a} / {b} / {b})", eb))
    quotient = Value(f"({a} / {b})", shared, "float64")
    match name:
        case "add" | "sub":
            return f"{a} {ARITHMETIC[name]} {b}", _plus(ea, eb)
        case "mul":
            return f"{a} * {b}", _plus(_times(f"fabs({a})", eb), _times(f"fabs({b})", ea))
        case "div":
            return quotient.code, quotient.error
        case "floordiv":
            return f"floor({quotient.code})", _jump("floor", quotient)
        case "mod" | "fmod":
            step = "floor" if name == "mod" else "trunc"
            whole, jump = f"fabs({step}({quotient.code}))", _jump(step, quotient)
            error = _plus(ea, _times(whole, eb), _times(f"fabs({b})", jump))
            return f"{'fl_mod' if name == 'mod' else 'fmod'}({a}, {b})", error
        case "max" | "min":
            return f"fl_{name}({a}, {b})", ZERO if ea == eb == ZERO else f"fmax({ea}, {eb})"
        case "pow":
            parts = (_times(f"fabs((v) * {b} / {a})", ea), _times(f"fabs((v) * log(fabs({a})))", eb))
            return f"pow({a}, {b})", _plus(*parts)
        case _:
            raise NotImplementedError(f"operation {name} on floats")


def _real_unary(name: str, v: Value) -> tuple[str, str]:
    match name:
        case "neg":
            return f"-{v.code}", v.error
        case "abs":
            return f"fabs({v.code})", v.error
        case "sqrt":  # |sqrt(a + e) - sqrt(a)| <= sqrt(e), also where the derivative is infinite
            slope = f"fmin({v.error} / (2 * sqrt({v.code})), sqrt({v.error}))"
            return f"sqrt({v.code})", ZERO if v.error == ZERO else slope
        case _:
            return f"{STEPS[name]}({v.code})", _jump(STEPS[name], v)


def _integer(name: str, args: Sequence[Value], dtype: str) -> str:
    """Integers wrap and divide as in C."""
    a, b, *_ = [v.code for v in args] * 2
    match name:
        case "add" | "sub" | "mul":
            return f"{a} {ARITHMETIC[name]} {b}"
        case "neg":
            return f"-{a}"
        case "abs":
            return f"{a} < 0 ? -{a} : {a}"
        case "floor" | "ceil" | "round":
            return a
        case "div" | "fmod" | "floordiv" | "mod" | "max" | "min" | "pow":
            return f"{'u' if dtype == 'uint64' else 'i'}_{name}({a}, {b})"
        case "sqrt":
            return f"sqrt((double){a})"
        case _:
            return _with(FUNCTIONS[name][0], f"(double){a}")


def _integer_error(name: str, args: Sequence[Value]) -> str:
    errors = [a.error for a in args]
    if all(e == ZERO for e in errors):
        return ZERO
    match name:
        case "add" | "sub" | "neg" | "abs" | "floor" | "ceil" | "round":
            return _plus(*errors)
        case "max" | "min":
            return f"fmax({errors[0]}, {errors[1]})"
        case "mul":
            a, b = (f"fabs((double){v.code})" for v in args)
            return _plus(_times(a, errors[1]), _times(f"({b} + {errors[1]})", errors[0]))
        case _:
            return f"{_plus(*errors)} > 0 ? INFINITY : 0"


def may_be_exact(dag: Dag) -> bool:
    """Whether integer-valued inputs give integer-valued results everywhere, if no sum grows too large."""
    bodies = [e for c in dag.computes for e in (c.body, *([c.combiner.body] if c.reduce else []))]
    return all(_is_whole(e) for e in bodies) and all(abs(c.combiner.identity) in (0, 1, inf) for c in dag.computes)


def _is_whole(e: Expr) -> bool:
    match e:
        case Const(value, _):
            return isinf(value) or value == int(value)
        case Op(name, args):
            return name in EXACT_OPERATIONS and all(map(_is_whole, args))
        case Read(_, index, _):
            return all(map(_is_whole, index))
        case Cast(_, arg):
            return _is_whole(arg)
        case Axis() | Param():
            return True
