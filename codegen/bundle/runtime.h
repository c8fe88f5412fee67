#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Identifies this program. */
TILEWRIGHT_API extern const char tilewright_id[];

/* Bytes of each input and output, in order; sizes of all of them are in the constants above. */
TILEWRIGHT_API extern const int64_t tilewright_input_bytes[], tilewright_output_bytes[];

/* Team size of every later call; the default is TILEWRIGHT_THREADS, and programs without OpenMP use one thread.
 * Returns 0, or 1 when threads < 1. Not while a call runs. */
TILEWRIGHT_API int tilewright_init(int threads);

/* Sets the TILEWRIGHT_CONSTANTS pointers for weights that lie in memory as in the file, 64-byte aligned. */
TILEWRIGHT_API void tilewright_bind(const void *weights, const void **constants);

/* Reads the inputs, writes all of every output. No buffer may overlap another one that is written. `arena`:
 * TILEWRIGHT_ARENA_BYTES of scratch, 64-byte aligned, not shared by calls that run at the same time; nothing in it
 * needs to be kept. Returns 0, or 1 when the arena is not aligned, or 2 + i when step i met an index out of range. */
TILEWRIGHT_API int tilewright_run(const void *const *inputs, void *const *outputs, void *arena,
                                  const void *const *constants);

/* The same; `seconds` receives the time of each of the TILEWRIGHT_STEPS steps. */
TILEWRIGHT_API int tilewright_profile(const void *const *inputs, void *const *outputs, void *arena,
                                      const void *const *constants, double *seconds);

#ifdef __cplusplus
}
#endif
