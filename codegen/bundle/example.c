/* Runs the network once.
 *
 *     ./model weights.bin INPUT... OUTPUT...
 *
 * One file of raw numbers for each input and output, in the order of manifest.json; outputs are written. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

static void *room(int64_t size) {
  void *p = NULL;
  if (posix_memalign(&p, 64, size ? (size_t)size : 1)) exit((fprintf(stderr, "out of memory\n"), 1));
  return p;
}

static void *load(const char *path, int64_t size) {
  void *p = room(size);
  FILE *f = fopen(path, "rb");
  if (!f) exit((perror(path), 1));
  if (fread(p, 1, (size_t)size, f) != (size_t)size || fgetc(f) != EOF)
    exit((fprintf(stderr, "%s: not %lld bytes\n", path, (long long)size), 1));
  fclose(f);
  return p;
}

static void save(const char *path, const void *p, int64_t size) {
  FILE *f = fopen(path, "wb");
  if (!f) exit((perror(path), 1));
  if (fwrite(p, 1, (size_t)size, f) != (size_t)size || fclose(f)) exit((perror(path), 1));
}

int main(int count, char **words) {
  if (count != 2 + TILEWRIGHT_INPUTS + TILEWRIGHT_OUTPUTS) {
    fprintf(stderr, "usage: %s weights.bin and %d inputs, %d outputs\n", words[0], TILEWRIGHT_INPUTS,
            TILEWRIGHT_OUTPUTS);
    return 2;
  }
  const void *constants[TILEWRIGHT_CONSTANTS + 1], *inputs[TILEWRIGHT_INPUTS + 1];
  void *outputs[TILEWRIGHT_OUTPUTS + 1], *weights = load(words[1], TILEWRIGHT_WEIGHTS_BYTES);
  void *arena = room(TILEWRIGHT_ARENA_BYTES);
  char **input_paths = words + 2, **output_paths = words + 2 + TILEWRIGHT_INPUTS;

  tilewright_bind(weights, constants);
  for (int i = 0; i < TILEWRIGHT_INPUTS; i++) inputs[i] = load(input_paths[i], tilewright_input_bytes[i]);
  for (int i = 0; i < TILEWRIGHT_OUTPUTS; i++) outputs[i] = room(tilewright_output_bytes[i]);

  if (tilewright_run(inputs, outputs, arena, constants)) return 1;

  for (int i = 0; i < TILEWRIGHT_OUTPUTS; i++) save(output_paths[i], outputs[i], tilewright_output_bytes[i]);
  for (int i = 0; i < TILEWRIGHT_INPUTS; i++) free((void *)inputs[i]);
  for (int i = 0; i < TILEWRIGHT_OUTPUTS; i++) free(outputs[i]);
  free(arena);
  free(weights);
  return 0;
}
