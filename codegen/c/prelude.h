/* Vector types and functions for generated kernels. GNU C; no other header than these two, whose cost is small. */
#include <math.h>
#include <stdint.h>

/* A nest of a kernel as a function: the same code in whatever kernel calls it, so never inlined. */
#ifndef TW_PART
#define TW_PART static __attribute__((noinline))
#endif

static inline float tw_maxf(float a, float b) { return a > b || a != a ? a : b; }   /* a NaN on either side stays */
static inline float tw_minf(float a, float b) { return a < b || a != a ? a : b; }
static inline double tw_max(double a, double b) { return a > b || a != a ? a : b; }
static inline double tw_min(double a, double b) { return a < b || a != a ? a : b; }
static inline int64_t tw_floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static inline int64_t tw_mod(int64_t a, int64_t b) { int64_t r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
static inline double tw_fmod_floor(double a, double b) { double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

static inline int64_t tw_larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t tw_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* One family of functions for L lanes of float.
 * vLf: in registers. uLf: in memory, any alignment, may alias. Masks are vLi, all ones or all zeros a lane. */
#define TW_FLOATS(L, BYTES)                                                                                            \
  typedef float v##L##f __attribute__((vector_size(BYTES)));                                                           \
  typedef float u##L##f __attribute__((vector_size(BYTES), aligned(4), may_alias));                                    \
  typedef int32_t v##L##i __attribute__((vector_size(BYTES)));                                                         \
  static inline v##L##f tw_splat##L(float x) { return (v##L##f){} + x; }                                               \
  static inline v##L##f tw_select##L(v##L##i m, v##L##f a, v##L##f b) {                                                \
    return (v##L##f)(((v##L##i)a & m) | ((v##L##i)b & ~m));                                                            \
  }                                                                                                                    \
  static inline v##L##i tw_iota##L(void) {                                                                             \
    v##L##i r = {};                                                                                                    \
    for (int l = 0; l < L; l++) r[l] = l;                                                                              \
    return r;                                                                                                          \
  }                                                                                                                    \
  static inline v##L##f tw_blend##L(v##L##f a, v##L##f b, int n) { /* the first n lanes of a, the rest of b */         \
    return tw_select##L(tw_iota##L() < n, a, b);                                                                       \
  }                                                                                                                    \
  static inline float tw_hadd##L(v##L##f v) {                                                                          \
    float s[L];                                                                                                        \
    __builtin_memcpy(s, &v, BYTES);                                                                                    \
    for (int w = L / 2; w > 0; w /= 2)                                                                                 \
      for (int l = 0; l < w; l++) s[l] += s[l + w];                                                                    \
    return s[0];                                                                                                       \
  }                                                                                                                    \
  static inline float tw_hmul##L(v##L##f v) {                                                                          \
    float s = v[0];                                                                                                    \
    for (int l = 1; l < L; l++) s *= v[l];                                                                             \
    return s;                                                                                                          \
  }                                                                                                                    \
  static inline float tw_hmax##L(v##L##f v) {                                                                          \
    float s = v[0];                                                                                                    \
    for (int l = 1; l < L; l++) s = tw_maxf(s, v[l]);                                                                  \
    return s;                                                                                                          \
  }                                                                                                                    \
  static inline float tw_hmin##L(v##L##f v) {                                                                          \
    float s = v[0];                                                                                                    \
    for (int l = 1; l < L; l++) s = tw_minf(s, v[l]);                                                                  \
    return s;                                                                                                          \
  }                                                                                                                    \
  /* exp: x = n ln 2 + r, polynomial of degree 6 in r (coefficients as in Cephes expf), exponent by integer addition.  \
   * Below -87.3 the result is 0 to float precision, above 88.7 infinity; NaN stays NaN. */                            \
  static inline v##L##f tw_exp##L(v##L##f x0) {                                                                        \
    v##L##f low = tw_splat##L(-87.3365447504f), high = tw_splat##L(88.3762626647f);                                    \
    v##L##f x = tw_select##L(x0 < low, low, x0);                                                                       \
    x = tw_select##L(x > high, high, x);                                                                               \
    v##L##f n = x * 1.44269504088896341f + 12582912.f;                                                                 \
    v##L##i e = (v##L##i)n - 0x4B400000;                                                                               \
    n = n - 12582912.f;                                                                                                \
    v##L##f r = x - n * 0.693359375f;                                                                                  \
    r = r - n * -2.12194440e-4f;                                                                                       \
    v##L##f p = tw_splat##L(1.9875691500e-4f);                                                                         \
    p = p * r + 1.3981999507e-3f;                                                                                      \
    p = p * r + 8.3334519073e-3f;                                                                                      \
    p = p * r + 4.1665795894e-2f;                                                                                      \
    p = p * r + 1.6666665459e-1f;                                                                                      \
    p = p * r + 5.0000001201e-1f;                                                                                      \
    p = p * (r * r) + r + 1.f;                                                                                         \
    p = p * (v##L##f)((e + 127) << 23);                                                                                \
    p = tw_select##L(x0 > 88.7228393f, tw_splat##L(__builtin_inff()), p);                                              \
    p = tw_select##L(x0 < -103.9720764f, tw_splat##L(0.f), p);                                                         \
    return tw_select##L(x0 == x0, p, x0);                                                                              \
  }                                                                                                                    \
  static inline v##L##f tw_abs##L(v##L##f x) { return (v##L##f)((v##L##i)x & 0x7fffffff); }                            \
  static inline v##L##f tw_sign_of##L(v##L##f x, v##L##f s) {                                                          \
    return (v##L##f)(((v##L##i)x & 0x7fffffff) | ((v##L##i)s & (int32_t)0x80000000));                                  \
  }                                                                                                                    \
  static inline v##L##f tw_sigmoid##L(v##L##f x) { return 1.f / (1.f + tw_exp##L(-x)); }                               \
  /* tanh: odd polynomial near 0 (Cephes tanhf), 1 - 2 / (exp(2x) + 1) elsewhere. */                                   \
  static inline v##L##f tw_tanh##L(v##L##f x) {                                                                        \
    v##L##f a = tw_abs##L(x), z = x * x;                                                                               \
    v##L##f p = tw_splat##L(-5.70498872745e-3f);                                                                       \
    p = p * z + 2.06390887954e-2f;                                                                                     \
    p = p * z - 5.37397155531e-2f;                                                                                     \
    p = p * z + 1.33314422036e-1f;                                                                                     \
    p = p * z - 3.33332819422e-1f;                                                                                     \
    p = p * z * x + x;                                                                                                 \
    v##L##f q = 1.f - 2.f / (tw_exp##L(a + a) + 1.f);                                                                  \
    return tw_select##L(a < 0.625f, p, tw_select##L(x == x, tw_sign_of##L(q, x), x));                                  \
  }                                                                                                                    \
  /* erf: x P(x^2) up to 1, else 1 - exp(-x^2) Q(1/x^2) / x (coefficients as in Cephes ndtrf). */                      \
  static inline v##L##f tw_erf##L(v##L##f x) {                                                                         \
    v##L##f a = tw_abs##L(x), z = x * x;                                                                               \
    v##L##f p = tw_splat##L(7.853861353153693e-5f);                                                                    \
    p = p * z - 8.010193625184903e-4f;                                                                                 \
    p = p * z + 5.188327685732524e-3f;                                                                                 \
    p = p * z - 2.685381193529856e-2f;                                                                                 \
    p = p * z + 1.128358514861418e-1f;                                                                                 \
    p = p * z - 3.761262582423300e-1f;                                                                                 \
    p = p * z + 1.128379165726710e+0f;                                                                                 \
    v##L##f b = tw_select##L(a < 1.f, tw_splat##L(1.f), a);                                                            \
    v##L##f q = 1.f / b, y = q * q;                                                                                    \
    v##L##f s = tw_splat##L(2.326819970068386e-2f);                                                                    \
    s = s * y - 1.387039388740657e-1f;                                                                                 \
    s = s * y + 3.687424674597105e-1f;                                                                                 \
    s = s * y - 5.824733027278666e-1f;                                                                                 \
    s = s * y + 6.210004621745983e-1f;                                                                                 \
    s = s * y - 4.944515323274145e-1f;                                                                                 \
    s = s * y + 3.404879937665872e-1f;                                                                                 \
    s = s * y - 2.741127028184656e-1f;                                                                                 \
    s = s * y + 5.638259427472472e-1f;                                                                                 \
    v##L##f far = 1.f - tw_exp##L(-(b * b)) * q * s;                                                                   \
    return tw_select##L(a < 1.f, p * x, tw_select##L(x == x, tw_sign_of##L(far, x), x));                               \
  }

#define TW_LANEWISE(L, NAME, CALL)                                                                                     \
  static inline v##L##f tw_##NAME##L(v##L##f x) {                                                                      \
    for (int l = 0; l < L; l++) x[l] = CALL;                                                                           \
    return x;                                                                                                          \
  }

#define TW_COMPARED(L)                                                                                                 \
  static inline v##L##f tw_max##L(v##L##f a, v##L##f b) { return tw_select##L(a > b, a, tw_select##L(a == a, b, a)); } \
  static inline v##L##f tw_min##L(v##L##f a, v##L##f b) { return tw_select##L(a < b, a, tw_select##L(a == a, b, a)); } \
  /* the same when `b` is known not to be a NaN */                                                                     \
  static inline v##L##f tw_atleast##L(v##L##f a, v##L##f b) { return tw_select##L(b > a, b, a); }                      \
  static inline v##L##f tw_atmost##L(v##L##f a, v##L##f b) { return tw_select##L(b < a, b, a); }

/* The first n lanes of memory, zeros behind them; nothing else is touched. A masked load, for what was written to the stack
 * in pieces cannot be forwarded to a load of the whole. Stores in pieces: masked ones take dozens of cycles on some cores. */
#ifdef __AVX__
#define TW_LOADED4(p, n) __builtin_ia32_maskloadps((const v4f *)(p), (v4i){0, 1, 2, 3} < (n))
#define TW_LOADED8(p, n) __builtin_ia32_maskloadps256((const v8f *)(p), (v8i){0, 1, 2, 3, 4, 5, 6, 7} < (n))
#else
#define TW_LOADED4(p, n) ({ v4f v = {}; __builtin_memcpy(&v, p, 4 * (n)); v; })
#endif

#define TW_PARTIAL(L)                                                                                                  \
  static inline v##L##f tw_load##L(const float *p, int n) { return TW_LOADED##L(p, n); }                               \
  static inline void tw_store##L(float *p, v##L##f v, int n) {                                                         \
    if (__builtin_constant_p(n) || n >= L) {                                                                           \
      __builtin_memcpy(p, &v, 4 * (n < L ? n : L));                                                                    \
      return;                                                                                                          \
    }                                                                                                                  \
    float row[L];                                                                                                      \
    __builtin_memcpy(row, &v, 4 * L);                                                                                  \
    const int behind = n & 4, last = n & 6;                                                                            \
    if (L > 4 && behind) __builtin_memcpy(p, row, 16);                                                                 \
    if (n & 2) __builtin_memcpy(p + behind, row + behind, 8);                                                          \
    if (n & 1) p[last] = row[last];                                                                                    \
  }

TW_FLOATS(4, 16)
TW_COMPARED(4)
TW_PARTIAL(4)
TW_LANEWISE(4, sqrt, sqrtf(x[l]))
TW_LANEWISE(4, log, logf(x[l]))
TW_LANEWISE(4, floor, floorf(x[l]))

#ifdef __AVX__ /* maxps(a, b) is a > b ? a : b: the second operand when either is a NaN */
TW_FLOATS(8, 32)
TW_PARTIAL(8)
TW_LANEWISE(8, log, logf(x[l]))
TW_LANEWISE(8, floor, floorf(x[l]))
static inline v8f tw_atleast8(v8f a, v8f b) { return __builtin_ia32_maxps256(b, a); }
static inline v8f tw_atmost8(v8f a, v8f b) { return __builtin_ia32_minps256(b, a); }
static inline v8f tw_max8(v8f a, v8f b) { return tw_select8(a == a, tw_atleast8(b, a), a); }
static inline v8f tw_min8(v8f a, v8f b) { return tw_select8(a == a, tw_atmost8(b, a), a); }
static inline v8f tw_sqrt8(v8f x) { return __builtin_ia32_sqrtps256(x); }
#endif

#ifdef __AVX512F__
#define TW_ALL ((unsigned short)-1)
TW_FLOATS(16, 64)
TW_LANEWISE(16, log, logf(x[l]))
TW_LANEWISE(16, floor, floorf(x[l]))
static inline v16f tw_atleast16(v16f a, v16f b) { return __builtin_ia32_maxps512_mask(b, a, a, TW_ALL, 4); }
static inline v16f tw_atmost16(v16f a, v16f b) { return __builtin_ia32_minps512_mask(b, a, a, TW_ALL, 4); }
static inline v16f tw_max16(v16f a, v16f b) { return tw_select16(a == a, tw_atleast16(b, a), a); }
static inline v16f tw_min16(v16f a, v16f b) { return tw_select16(a == a, tw_atmost16(b, a), a); }
static inline v16f tw_sqrt16(v16f x) { return __builtin_ia32_sqrtps512_mask(x, x, TW_ALL, 4); }
static inline v16f tw_load16(const float *p, int n) {
  return __builtin_ia32_loadups512_mask(p, (v16f){}, (unsigned short)((1u << n) - 1));
}
static inline void tw_store16(float *p, v16f v, int n) {
  __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1u << n) - 1));
}
#endif

/* Turn a block: to[u * stride + l] = from[l * step + u]. Rows 0 and L/2 are woven together, 1 and L/2 + 1, ...; after
 * log2 L such rounds, rows are columns. `_part`: only so many rows u and lanes l. */
#ifdef __clang__
#define TW_SHUFFLE(TYPE, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TW_SHUFFLE(TYPE, a, b, ...) __builtin_shuffle(a, b, (TYPE){__VA_ARGS__})
#endif
#define TW_APART __attribute__((noinline, unused)) /* a function that is called: not one copy a use */

#define TW_EACH4(F, L) F(L, 0) F(L, 1) F(L, 2) F(L, 3)
#define TW_EACH8(F, L) TW_EACH4(F, L) F(L, 4) F(L, 5) F(L, 6) F(L, 7)
#define TW_EACH16(F, L) TW_EACH8(F, L) F(L, 8) F(L, 9) F(L, 10) F(L, 11) F(L, 12) F(L, 13) F(L, 14) F(L, 15)
#define TW_TAKE(L, i) const v##L##f a##i = *(const u##L##f *)(from + i * step);
#define TW_GIVE(L, i) *(u##L##f *)(to + i * stride) = z##i;
#define TW_TAKE_PART(L, i) const v##L##f a##i = lanes > i ? tw_load##L(from + i * step, rows) : (v##L##f){};
#define TW_GIVE_PART(L, i) if (rows > i) tw_store##L(to + i * stride, z##i, lanes);
#define TW_TURNS(L, ROUNDS) /* from a0, a1, ... to z0, z1, ... */                                                      \
  TW_APART static void tw_turn##L(const float *from, int64_t step, float *to, int64_t stride) {                        \
    TW_EACH##L(TW_TAKE, L) ROUNDS TW_EACH##L(TW_GIVE, L)                                                               \
  }                                                                                                                    \
  TW_APART static void tw_turn_part##L(const float *from, int64_t step, float *to, int64_t stride, int rows, int lanes) {\
    TW_EACH##L(TW_TAKE_PART, L) ROUNDS TW_EACH##L(TW_GIVE_PART, L)                                                     \
  }

static inline v4f tw_low4(v4f a, v4f b) { return TW_SHUFFLE(v4i, a, b, 0, 4, 1, 5); }
static inline v4f tw_high4(v4f a, v4f b) { return TW_SHUFFLE(v4i, a, b, 2, 6, 3, 7); }
#define TW_ROUND4(b, a)                                                                                                \
  const v4f b##0 = tw_low4(a##0, a##2), b##1 = tw_high4(a##0, a##2);                                                   \
  const v4f b##2 = tw_low4(a##1, a##3), b##3 = tw_high4(a##1, a##3);
TW_TURNS(4, TW_ROUND4(b, a) TW_ROUND4(z, b))

#ifdef __AVX__
static inline v8f tw_low8(v8f a, v8f b) { return TW_SHUFFLE(v8i, a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline v8f tw_high8(v8f a, v8f b) { return TW_SHUFFLE(v8i, a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#define TW_ROUND8(b, a)                                                                                                \
  const v8f b##0 = tw_low8(a##0, a##4), b##1 = tw_high8(a##0, a##4);                                                   \
  const v8f b##2 = tw_low8(a##1, a##5), b##3 = tw_high8(a##1, a##5);                                                   \
  const v8f b##4 = tw_low8(a##2, a##6), b##5 = tw_high8(a##2, a##6);                                                   \
  const v8f b##6 = tw_low8(a##3, a##7), b##7 = tw_high8(a##3, a##7);
TW_TURNS(8, TW_ROUND8(b, a) TW_ROUND8(c, b) TW_ROUND8(z, c))
#endif

#ifdef __AVX512F__
static inline v16f tw_low16(v16f a, v16f b) { return TW_SHUFFLE(v16i, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
static inline v16f tw_high16(v16f a, v16f b) { return TW_SHUFFLE(v16i, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
#define TW_ROUND16(b, a)                                                                                               \
  const v16f b##0 = tw_low16(a##0, a##8), b##1 = tw_high16(a##0, a##8);                                                \
  const v16f b##2 = tw_low16(a##1, a##9), b##3 = tw_high16(a##1, a##9);                                                \
  const v16f b##4 = tw_low16(a##2, a##10), b##5 = tw_high16(a##2, a##10);                                              \
  const v16f b##6 = tw_low16(a##3, a##11), b##7 = tw_high16(a##3, a##11);                                              \
  const v16f b##8 = tw_low16(a##4, a##12), b##9 = tw_high16(a##4, a##12);                                              \
  const v16f b##10 = tw_low16(a##5, a##13), b##11 = tw_high16(a##5, a##13);                                            \
  const v16f b##12 = tw_low16(a##6, a##14), b##13 = tw_high16(a##6, a##14);                                            \
  const v16f b##14 = tw_low16(a##7, a##15), b##15 = tw_high16(a##7, a##15);
TW_TURNS(16, TW_ROUND16(b, a) TW_ROUND16(c, b) TW_ROUND16(d, c) TW_ROUND16(z, d))
#endif

/* Every other element: p[0], p[2], ...; nothing behind the last one is touched. `_part`: the first n of them. */
#define TW_EVENS(L, ...)                                                                                               \
  static inline v##L##f tw_even##L(const float *p) {                                                                   \
    return TW_SHUFFLE(v##L##i, *(const u##L##f *)p, *(const u##L##f *)(p + L - 1), __VA_ARGS__);                       \
  }                                                                                                                    \
  static inline v##L##f tw_even_part##L(const float *p, int n) {                                                       \
    const v##L##f a = tw_load##L(p, 2 * n - 1 < L ? 2 * n - 1 : L);                                                    \
    const v##L##f b = 2 * n > L ? tw_load##L(p + L - 1, 2 * n - L) : (v##L##f){};                                      \
    return TW_SHUFFLE(v##L##i, a, b, __VA_ARGS__);                                                                     \
  }

/* The lanes from `low` (at least 0) up to `high` (at most L) of a row, zeros elsewhere; nothing else of it is touched. */
#define TW_WINDOW(L)                                                                                                   \
  TW_APART static v##L##f tw_edge##L(const float *p, int64_t low, int64_t high) {                                      \
    float row[2 * L] __attribute__((aligned(64))) = {};                                                                \
    if (low < high) *(u##L##f *)(row + low) = tw_load##L(p + low, (int)(high - low));                                  \
    return *(const v##L##f *)row;                                                                                      \
  }                                                                                                                    \
  static inline __attribute__((always_inline)) v##L##f tw_window##L(const float *p, int64_t low, int64_t high) {       \
    if (low <= 0 && high >= L) return *(const u##L##f *)p;                                                             \
    return tw_edge##L(p, low, high < L ? high : L);                                                                    \
  }

TW_EVENS(4, 0, 2, 5, 7)
TW_WINDOW(4)

#ifdef __AVX__
TW_EVENS(8, 0, 2, 4, 6, 9, 11, 13, 15)
TW_WINDOW(8)
#endif

#ifdef __AVX512F__
TW_EVENS(16, 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)
static inline v16f tw_window16(const float *p, int64_t low, int64_t high) {
  const unsigned below = high >= 16 ? 0xffff : high > 0 ? (1u << high) - 1 : 0, from = low >= 16 ? 0 : 0xffffu << low;
  return __builtin_ia32_loadups512_mask(p, (v16f){}, (unsigned short)(below & from));
}
#endif
