/* Vector types and functions for generated kernels. GNU C; no other header than these two, whose cost is small. */
#include <math.h>
#include <stdint.h>

static inline float tw_maxf(float a, float b) { return a > b || a != a ? a : b; }   /* a NaN on either side stays */
static inline float tw_minf(float a, float b) { return a < b || a != a ? a : b; }
static inline double tw_max(double a, double b) { return a > b || a != a ? a : b; }
static inline double tw_min(double a, double b) { return a < b || a != a ? a : b; }
static inline int64_t tw_floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static inline int64_t tw_mod(int64_t a, int64_t b) { int64_t r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
static inline double tw_fmod_floor(double a, double b) { double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

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

#define TW_PARTIAL(L)                                                                                                  \
  static inline v##L##f tw_load##L(const float *p, int n) {                                                            \
    v##L##f v = {};                                                                                                    \
    __builtin_memcpy(&v, p, 4 * n);                                                                                    \
    return v;                                                                                                          \
  }                                                                                                                    \
  static inline void tw_store##L(float *p, v##L##f v, int n) { __builtin_memcpy(p, &v, 4 * n); }

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
