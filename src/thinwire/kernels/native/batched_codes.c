/* Quantizers for all layers of a batch in one call; included after batched.c. Each layer is coded by the kernel for one
 * layer, so the bits are the same. Pointers come as arrays, one entry a layer. */

/* kernels/code_batches.py: the first three are those of Rounding. limit: the window of POWERS, the largest of EXPONENTS. */
enum { POWERS = STOCHASTIC + 1, EXPONENTS, SIGNS };
typedef struct { i64 coding, bits, block, limit; } CodeForm;

static i64 power_of_two(i64 n) { /* not below n */
  i64 power = 1;
  while (power < n) power *= 2;
  return power;
}

static i64 rows_of(i64 n) { return power_of_two(n) / CHUNK > 1 ? power_of_two(n) / CHUNK : 1; }

/* Codes of x without residuals. Like all below, these return the largest magnitude as bits, of x or x + y before it was
 * mended. */
static void powers_range(void *state, i64 from, i64 to) {
  Powers *a = state;
  Noise noise;
  u32 peak = 0;
  for (i64 at = from; at < to; at += PIECE) {
    i64 m = least(PIECE, to - at);
    const float *x = a->x + at;
    const half16 *draws = fill_noise(&noise, a->start, a->stride, at, m);
    peak = largest_of(peak, peak_bits(x, m));
    natural_piece(x, draws, m, a->window, a->most, a->sign_bit, a->codes + at);
    if (a->signs) pack_signs(x, m, a->signs + at / 8);
  }
  raise_to(&a->peak, peak);
}

static u32 encode_powers(const CodeForm *form, const float *x, i64 n, u32 start, u32 stride, u8 *codes, u8 *signs) {
  Powers a = {.x = x, .start = start, .stride = stride, .codes = codes, .signs = signs, .sign_bit = signs ? 0 : 128};
  a.window = signs ? 0 : (i32)form->limit;
  a.most = signs ? (i32)form->limit : 127;
  run_parallel(powers_range, &a, n, CHUNK, n);
  return a.peak;
}

static u32 encode_signs(const float *x, const float *y, float *rest, i64 n, float *sums, u8 *signs, float *scale) {
  i64 power = power_of_two(n);
  float share = (float)(1.0 / (double)power), back = (float)((double)power / (double)n);
  u32 peak = 0;
  if (y) {
    *scale = sign_feedback(x, y, rest, n, share, back, sums, rows_of(n), signs, &peak);
    return peak;
  }
  *scale = tw_sign_encode(x, n, share, back, sums, rows_of(n), signs);
  return bits_of(sums[0]) & MAGNITUDE; /* the sum of shares, which finite numbers leave finite */
}

static u32 encode_layer(const CodeForm *form, const float *x, const float *y, float *rest, i64 n, u32 start, u32 stride,
                        float smallest, float *sums, u8 *first, void *second) {
  i32 limit = (i32)form->limit;
  switch (form->coding) {
    case POWERS:
      if (y) return natural_feedback(x, y, rest, n, start, stride, limit, first);
      return encode_powers(form, x, n, start, stride, first, NULL);
    case EXPONENTS:
      if (y) return exponents_feedback(x, y, rest, n, start, stride, limit, first, second);
      return encode_powers(form, x, n, start, stride, first, second);
    case SIGNS: return encode_signs(x, y, rest, n, sums, first, second);
    default:
      return blocks_encode((Rounding)form->coding, x, y, rest, n, form->block, (int)form->bits, start, stride, 0,
                           smallest, second, first);
  }
}

/* Codes of x, or of x + y with what is not sent in rest. start and stride may be missing where nothing is left to chance,
 * and `second` where a layer has one part. Returns the first layer with an x that is not finite (then the results are
 * void), -1 if there is none, -2 where memory is missing. */
i64 tw_encode_codes_many(const CodeForm *form, i64 layers, float smallest, const float *const *x, const float *const *y,
                         const i64 *n, const u32 *start, const u32 *stride, float *const *rest, u8 *const *first,
                         void *const *second) {
  float *sums = NULL;
  if (form->coding == SIGNS) {
    i64 room = 1;
    for (i64 l = 0; l < layers; l++) room = rows_of(n[l]) > room ? rows_of(n[l]) : room;
    if (!(sums = malloc((size_t)room * sizeof *sums))) return -2;
  }
  i64 bad = -1;
  for (i64 l = 0; l < layers && bad < 0; l++) {
    u32 peak = encode_layer(form, x[l], y ? y[l] : NULL, y ? rest[l] : NULL, n[l], start ? start[l] : 0,
                            stride ? stride[l] : 0, smallest, sums, first[l], second ? second[l] : NULL);
    if (peak >= INFINITE && (!y || !all_finite(x[l], n[l]))) bad = l;
  }
  free(sums);
  return bad;
}

/* Whether all are finite and none is below 0; the zero with a sign is none. */
static int are_magnitudes(const wire_float *numbers, i64 n) {
  int wrong = 0;
  for (i64 i = 0; i < n; i++) {
    u32 b = bits_of(numbers[i]);
    wrong |= b >= INFINITE && b != ~MAGNITUDE;
  }
  return !wrong;
}

/* Whether the last byte has nothing after n numbers of so many bits. */
static int is_padded(const u8 *packed, i64 n, i64 bits) {
  i64 used = n * bits % 8;
  return !used || packed[n * bits / 8] >> used == 0;
}

/* Whether an encoder could have written this layer of a rank, as far as one can tell without reading all codes. */
static int is_sound(const CodeForm *form, const u8 *first, const void *second, i64 n) {
  switch (form->coding) {
    case POWERS: return 1;
    case EXPONENTS: return is_padded(second, n, 1);
    case SIGNS: return is_padded(first, n, 1) && are_magnitudes(second, 1);
    default: return is_padded(first, n, form->bits) && are_magnitudes(second, (n + form->block - 1) / form->block);
  }
}

static u8 largest_byte(const u8 *x, i64 n) {
  u8 top = 0;
  for (i64 i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  return top;
}

typedef struct {
  i64 coding, ranks;
  const u8 *const *first;
  const void *const *second;
  float weight, *out;
  u32 top; /* exponent */
} Planes;

static void planes_range(void *state, i64 from, i64 to) {
  Planes *a = state;
  u8 top = 0;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    float *out = a->out + at;
    memset(out, 0, (size_t)m * 4);
    for (i64 r = 0; r < a->ranks; r++) {
      if (a->coding == SIGNS) {
        sign_chunk(a->first[r] + at / 8, m, *(const wire_float *)a->second[r] * a->weight, out, 1);
        continue;
      }
      u8 code = largest_byte(a->first[r] + at, m);
      top = code > top ? code : top;
      exponents_piece(a->first[r] + at, (const u8 *)a->second[r] + at / 8, m, a->weight, out, ADD);
    }
  }
  raise_to(&a->top, top);
}

/* Means of signs, or of powers of two with signs in a plane of their own; 0 if an exponent stands for infinity. */
static int mean_of_planes(const CodeForm *form, i64 ranks, const u8 *const *first, const void *const *second, i64 n,
                          float weight, float *out) {
  Planes a = {form->coding, ranks, first, second, weight, out, 0};
  run_parallel(planes_range, &a, n, CHUNK, n);
  return a.top <= form->limit || form->coding == SIGNS;
}

/* 0 if a payload is wrong. */
static int mean_layer(const CodeForm *form, i64 ranks, const u8 *const *first, const void *const *second, i64 n,
                      float weight, float *out) {
  for (i64 r = 0; r < ranks; r++) if (!is_sound(form, first[r], second ? second[r] : NULL, n)) return 0;
  if (form->coding == POWERS) { tw_natural_mean(first, ranks, n, (i32)form->limit, weight, out); return 1; }
  if (form->coding > POWERS) return mean_of_planes(form, ranks, first, second, n, weight, out);
  int steps = form->coding != SIGNED, bits = (int)form->bits;
  int top = blocks_mean(steps, first, (const wire_float *const *)second, ranks, n, form->block, bits, weight, out);
  return top <= (1 << bits) - 2;
}

/* The mean of all ranks' payloads of each layer; first and second have one entry for each rank of each layer, layer by
 * layer. Lengths are the caller's promise, what the payloads say is not. Returns the first layer with a payload that is
 * wrong, -1 if there is none. */
i64 tw_mean_codes_many(const CodeForm *form, i64 layers, i64 ranks, const u8 *const *first, const void *const *second,
                       const i64 *n, float weight, float *const *out) {
  for (i64 l = 0; l < layers; l++, first += ranks, second += second ? ranks : 0)
    if (!mean_layer(form, ranks, first, second, n[l], weight, out[l])) return l;
  return -1;
}
