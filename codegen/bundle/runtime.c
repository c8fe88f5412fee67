/* Entry points of a network; `tilewright_step` and the tables are above. */

static int tilewright_team = TILEWRIGHT_THREADS;

int tilewright_init(int threads) {
  if (threads < 1) return 1;
  tilewright_team = threads;
  return 0;
}

void tilewright_bind(const void *weights, const void **constants) {
  for (int i = 0; i < TILEWRIGHT_CONSTANTS; i++) constants[i] = (const char *)weights + tilewright_offsets[i];
}

/* The team size belongs to the calling thread, so it is set at each call and given back: other users of OpenMP in
 * this process do not notice. */
static int tilewright_enter(void) {
#ifdef _OPENMP
  int before = omp_get_max_threads();
  omp_set_num_threads(tilewright_team);
  return before;
#else
  return 1;
#endif
}

static void tilewright_leave(int before) {
#ifdef _OPENMP
  omp_set_num_threads(before);
#else
  (void)before;
#endif
}

static double tilewright_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int tilewright_run(const void *const *inputs, void *const *outputs, void *arena, const void *const *constants) {
  if ((uintptr_t)arena % 64) return 1;
  int before = tilewright_enter(), code = 0;
  for (int i = 0; i < TILEWRIGHT_STEPS && !code; i++)
    if (tilewright_step(i, inputs, outputs, arena, constants)) code = 2 + i;
  tilewright_leave(before);
  return code;
}

int tilewright_profile(const void *const *inputs, void *const *outputs, void *arena, const void *const *constants,
                       double *seconds) {
  if ((uintptr_t)arena % 64) return 1;
  int before = tilewright_enter(), code = 0;
  double start = tilewright_now();
  for (int i = 0; i < TILEWRIGHT_STEPS && !code; i++) {
    if (tilewright_step(i, inputs, outputs, arena, constants)) code = 2 + i;
    double end = tilewright_now();
    seconds[i] = end - start;
    start = end;
  }
  tilewright_leave(before);
  return code;
}
