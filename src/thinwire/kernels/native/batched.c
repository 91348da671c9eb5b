/* Kernels for all layers of a batch in one call; included at the end of kernels.c. Each does what the kernel for one
 * layer does, layer by layer, so the bits are the same. Pointers come as arrays, one entry a layer. */

static int all_finite(const float *x, i64 n) { return peak_bits(x, n) < INFINITE; }

/* tw_take_largest of each layer; without y, the largest of x, and nothing is left in `rest`. `written` has its results,
 * `guesses` is read and written. Returns the first layer with an x that is not finite (then the results are void), -1 if
 * there is none, -2 where memory is missing. */
i64 tw_take_largest_many(i64 layers, const float *const *x, const float *const *y, const i64 *n, const i64 *k,
                         const i64 *start, const i64 *width, float *const *rest, float *const *kept, u8 *const *coded,
                         i64 *written, Guess *guesses) {
  i64 most = 1;
  for (i64 l = 0; l < layers; l++) most = k[l] > most ? k[l] : most;
  i64 *positions = malloc((size_t)most * sizeof *positions);
  if (!positions) return -2;
  i64 bad = -1;
  for (i64 l = 0; l < layers && bad < 0; l++) {
    if (!y) {
      if (!all_finite(x[l], n[l])) bad = l;
      largest_guessed(x[l], n[l], k[l], positions, guesses + l);
      for (i64 i = 0; i < k[l]; i++) kept[l][i] = x[l][positions[i]];
    } else {
      if (add_largest(x[l], y[l], n[l], k[l], rest[l], positions, guesses + l) >= INFINITE && !all_finite(x[l], n[l])) bad = l;
      take_out(rest[l], positions, k[l], kept[l]);
    }
    written[l] = tw_encode_positions(positions, k[l], n[l], (int)start[l], (int)width[l], coded[l]);
  }
  free(positions);
  return bad;
}

/* out = x + y of each layer, saturated; without y, nothing. Returns the first layer with an x that is not finite, or -1. */
i64 tw_add_many(i64 layers, const float *const *x, const float *const *y, const i64 *n, float *const *out) {
  for (i64 l = 0; l < layers; l++)
    if ((!y || add_all(x[l], y[l], n[l], out[l]) >= INFINITE) && !all_finite(x[l], n[l])) return l;
  return -1;
}

/* The k-th largest magnitude of each layer. 0, or 1 where memory is missing. */
int tw_kth_magnitudes(i64 layers, const float *const *x, const i64 *n, const i64 *k, float *level) {
  i64 most = 1;
  for (i64 l = 0; l < layers; l++) most = k[l] > most ? k[l] : most;
  i64 *positions = malloc((size_t)most * sizeof *positions);
  if (!positions) return 1;
  for (i64 l = 0; l < layers; l++) {
    tw_largest(x[l], n[l], k[l], positions);
    level[l] = fabsf(x[l][positions[0]]);
    for (i64 i = 1; i < k[l]; i++) level[l] = fminf(level[l], fabsf(x[l][positions[i]]));
  }
  free(positions);
  return 0;
}

/* tw_reaching of each layer, with a level for each; the bits of a layer begin at a whole word. */
void tw_reaching_many(i64 layers, const float *const *x, const i64 *n, const float *level, u8 *bits, i64 *found) {
  for (i64 l = 0; l < layers; l++) {
    found[l] = tw_reaching(x[l], n[l], level[l], bits);
    bits += (n[l] + 31) / 32 * 4;
  }
}

/* tw_ones of what tw_reaching_many found; the positions of all layers, one after another. */
void tw_ones_many(i64 layers, const u8 *bits, const i64 *n, const i64 *found, i64 *positions) {
  for (i64 l = 0; l < layers; l++) {
    i64 nbytes = (n[l] + 31) / 32 * 4;
    tw_ones(bits, nbytes, positions);
    bits += nbytes;
    positions += found[l];
  }
}

/* The numbers of each layer at k positions, which ascend, and the coded positions; `remove`: zeros are left there. A layer
 * may have none. Returns 1 if positions are none of that kind. */
int tw_take_at_many(i64 layers, float *const *x, const i64 *n, const i64 *positions, const i64 *k, const i64 *start,
                    const i64 *width, int remove, float *const *kept, u8 *const *coded, i64 *written) {
  for (i64 l = 0; l < layers; l++) {
    written[l] = 2 << 2 | EXPLICIT;
    if (!k[l]) { memset(coded[l], 0, 2); continue; }
    written[l] = tw_encode_positions(positions, k[l], n[l], (int)start[l], (int)width[l], coded[l]);
    if (written[l] < 0) return 1;
    if (remove) take_out(x[l], positions, k[l], kept[l]);
    else tw_take(x[l], n[l], positions, k[l], kept[l]);
    positions += k[l];
  }
  return 0;
}

static int are_finite(const wire_float *numbers, i64 n) {
  u32 peak = 0;
  for (i64 i = 0; i < n; i++) peak = largest_of(peak, bits_of(numbers[i]) & MAGNITUDE);
  return peak < INFINITE;
}

/* tw_sparse_mean of each layer; values, counts, coded and nbytes have one entry for each rank of each layer, layer by
 * layer. Returns the first layer with positions or values that are wrong, -1 if there is none, -2: memory is missing. */
i64 tw_sparse_mean_many(i64 layers, i64 ranks, const wire_float *const *values, const i64 *counts, const u8 *const *coded,
                        const i64 *nbytes, const i64 *n, const i64 *width, float weight, float *const *out) {
  i64 most = 1;
  for (i64 i = 0; i < layers * ranks; i++) {
    if (counts[i] > n[i / ranks] || counts[i] > 8 * nbytes[i]) return i / ranks; /* before there is room for them */
    most = counts[i] > most ? counts[i] : most;
  }
  i64 *at = malloc((size_t)most * sizeof *at), wrong = -1;
  if (!at) return -2;
  for (i64 l = 0; l < layers && wrong < 0; l++) {
    i64 first = l * ranks;
    for (i64 i = first; i < first + ranks; i++) if (!are_finite(values[i], counts[i])) wrong = l;
    if (wrong < 0 && sum_sparse(values + first, counts + first, coded + first, nbytes + first, ranks, n[l], (int)width[l],
                                weight, at, out[l])) wrong = l;
  }
  free(at);
  return wrong;
}

/* ---- framing: the lengths of all parts as varints, then the parts (wire/framing.py) ---- */
enum { ALIGN_FROM = 4096, ALIGN = 8 };

static i64 varint_size(u64 value) {
  i64 size = 1;
  for (; value >= 0x80; value >>= 7) size++;
  return size;
}

static i64 aligned(i64 at, i64 nbytes) { return nbytes >= ALIGN_FROM ? (at + ALIGN - 1) / ALIGN * ALIGN : at; }

/* The bytes that `count` parts of these lengths take. */
i64 tw_framed_bytes(const i64 *nbytes, i64 count) {
  i64 at = 0;
  for (i64 i = 0; i < count; i++) at += varint_size((u64)nbytes[i]);
  for (i64 i = 0; i < count; i++) at = aligned(at, nbytes[i]) + nbytes[i];
  return at;
}

void tw_pack_parts(const u8 *const *parts, const i64 *nbytes, i64 count, u8 *out) {
  i64 at = 0;
  for (i64 i = 0; i < count; i++) {
    u64 value = (u64)nbytes[i];
    for (; value >= 0x80; value >>= 7) out[at++] = (u8)(value | 0x80);
    out[at++] = (u8)value;
  }
  for (i64 i = 0; i < count; i++) {
    i64 start = aligned(at, nbytes[i]);
    memset(out + at, 0, (size_t)(start - at));
    if (nbytes[i]) memcpy(out + start, parts[i], (size_t)nbytes[i]);
    at = start + nbytes[i];
  }
}

/* The starts and lengths of `count` parts in a message; 1 if the lengths do not add up to it. */
int tw_unpack_parts(const u8 *in, i64 size, i64 count, i64 *starts, i64 *nbytes) {
  i64 at = 0;
  for (i64 i = 0; i < count; i++) {
    u64 value = 0;
    for (int shift = 0;; shift += 7) { /* nine bytes at most */
      if (at == size || shift > 56) return 1;
      u8 byte = in[at++];
      value |= (u64)(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    if (value > (u64)size) return 1;
    nbytes[i] = (i64)value;
  }
  for (i64 i = 0; i < count; i++) {
    starts[i] = aligned(at, nbytes[i]);
    if (starts[i] > size || nbytes[i] > size - starts[i]) return 1;
    at = starts[i] + nbytes[i];
  }
  return at != size;
}

/* ---- PowerSGD of all matrices; factors of all layers lie one after another (kernels/factor_batches.py) ---- */

/* out = rows scaled to a largest entry of one; 0 if a row is zero */
static int normalize_rows(const float *rows, i64 count, i64 n, float *out) {
  for (i64 i = 0; i < count; i++) {
    float peak = float_of(peak_bits(rows + i * n, n));
    if (!(peak > 0)) return 0;
    for (i64 j = 0; j < n; j++) out[i * n + j] = rows[i * n + j] / peak;
  }
  return 1;
}

static void saturate_all(float *x, i64 n) {
  if (peak_bits(x, n) >= INFINITE) for (i64 i = 0; i < n; i++) x[i] = saturated(x[i]);
}

static i64 most_numbers(i64 layers, const i64 *rank, const i64 *size) {
  i64 most = 1;
  for (i64 l = 0; l < layers; l++) most = rank[l] * size[l] > most ? rank[l] * size[l] : most;
  return most;
}

/* target = x + y and its products with the normalized right factor, saturated. Returns the first layer with an x that is
 * not finite, -1 if there is none, -2 where memory is missing, -3 if a factor has a row of zeros. */
i64 tw_project_many(i64 layers, const float *const *x, const float *const *y, const float *const *right, const i64 *rank,
                    const i64 *rows, const i64 *columns, float *const *target, float *projected) {
  float *start = malloc((size_t)most_numbers(layers, rank, columns) * sizeof *start);
  i64 state = start ? -1 : -2;
  for (i64 l = 0; l < layers && state == -1; l++) {
    if (!normalize_rows(right[l], rank[l], columns[l], start)) { state = -3; break; }
    u32 watched = add_and_project(x[l], y[l], start, rank[l], rows[l], columns[l], target[l], projected) >= INFINITE;
    saturate_all(projected, rank[l] * rows[l]);
    projected += rank[l] * rows[l];
    if (watched && !all_finite(x[l], rows[l] * columns[l])) state = l;
  }
  free(start);
  return state;
}

/* basis = orthonormal rows of the left factor; combined = basis @ target, saturated. 0, or 1 where memory is missing. */
int tw_combine_many(i64 layers, const float *left, const i64 *rank, const i64 *rows, const i64 *columns,
                    const float *const *target, double nothing, float *basis, float *combined) {
  i64 most = most_numbers(layers, rank, rows), longest = 1, deepest = 1;
  for (i64 l = 0; l < layers; l++) {
    longest = rows[l] > longest ? rows[l] : longest;
    deepest = rank[l] > deepest ? rank[l] : deepest;
  }
  i64 width = 1;
  while (width < longest) width *= 2;
  double *wide = malloc((size_t)(most + deepest + width) * sizeof *wide);
  if (!wide) return 1;
  for (i64 l = 0; l < layers; l++) {
    i64 count = rank[l] * rows[l], own = 1;
    while (own < rows[l]) own *= 2;
    for (i64 i = 0; i < count; i++) wide[i] = left[i];
    tw_orthonormal(wide, rank[l], rows[l], nothing, wide + most, wide + most + deepest, own);
    for (i64 i = 0; i < count; i++) basis[i] = (float)wide[i];
    tw_combine_rows(basis, target[l], rank[l], rows[l], columns[l], combined);
    saturate_all(combined, rank[l] * columns[l]);
    left += count;
    basis += count;
    combined += rank[l] * columns[l];
  }
  free(wide);
  return 0;
}

/* out = left' right of each layer; subtract: taken from out instead. */
void tw_low_rank_many(i64 layers, const float *left, const float *right, const i64 *rank, const i64 *rows,
                      const i64 *columns, int subtract, float *const *out) {
  for (i64 l = 0; l < layers; l++) {
    low_rank(left, right, rank[l], rows[l], columns[l], out[l], subtract);
    left += rank[l] * rows[l];
    right += rank[l] * columns[l];
  }
}

/* ---- differences and sums of EF21 ---- */

/* out = x - y of each layer, saturated. Returns the first layer with an x that is not finite, or -1. */
i64 tw_subtract_many(i64 layers, const float *const *x, const float *const *y, const i64 *n, float *const *out) {
  float chunk[CHUNK];
  for (i64 l = 0; l < layers; l++) {
    u32 peak = 0;
    for (i64 at = 0; at < n[l]; at += CHUNK) {
      i64 m = least(CHUNK, n[l] - at);
      peak = largest_of(peak, subtract_mended(x[l] + at, y[l] + at, chunk, m));
      put_chunk(out[l] + at, chunk, m);
    }
    end_chunks();
    if (peak >= INFINITE && !all_finite(x[l], n[l])) return l;
  }
  return -1;
}

enum { TILE = 1024 }; /* elements of a sum that stay in the first cache */

typedef struct { const float *x, *y; const i64 *positions; float *kept, *next; } Changes;

static void changes_range(void *state, i64 from, i64 to) {
  const Changes *a = state;
  for (i64 i = from; i < to; i++) {
    if (i + AHEAD < to) {
      i64 later = a->positions[i + AHEAD];
      __builtin_prefetch(a->x + later);
      __builtin_prefetch(a->y + later);
      __builtin_prefetch(a->next + later, 1);
    }
    i64 at = a->positions[i];
    a->kept[i] = saturated(a->x[at] - a->y[at]);
    a->next[at] = saturated(a->y[at] + (0.0f + a->kept[i])); /* what arrives of -0 is 0 */
  }
}

/* The largest of x - y of each layer, saturated; next = y + these, saturated. The difference is not stored: it is read
 * once, and next is written in the same pass. Else as tw_take_largest_many. */
i64 tw_take_changes_many(i64 layers, const float *const *x, const float *const *y, const i64 *n, const i64 *k,
                         const i64 *start, const i64 *width, float *const *next, float *const *kept, u8 *const *coded,
                         i64 *written, Guess *guesses) {
  i64 most = 1, bad = -1;
  for (i64 l = 0; l < layers; l++) most = k[l] > most ? k[l] : most;
  i64 *positions = malloc((size_t)most * sizeof *positions);
  if (!positions) return -2;
  for (i64 l = 0; l < layers && bad < 0; l++) {
    Pair pair = {subtract_mended, copy_mended, x[l], y[l], next[l]};
    if (combine_largest(pair, n[l], k[l], positions, guesses + l) >= INFINITE && !all_finite(x[l], n[l])) bad = l;
    Changes changes = {x[l], y[l], positions, kept[l], next[l]};
    run_parallel(changes_range, &changes, k[l], 1, POSITION * k[l]);
    written[l] = tw_encode_positions(positions, k[l], n[l], (int)start[l], (int)width[l], coded[l]);
  }
  free(positions);
  return bad;
}

/* put_chunk to any address: what lies before the first cache line and after the last is copied. */
static void put_anywhere(float *out, const float *chunk, i64 n) {
  i64 first = least((i64)(-(uintptr_t)out & 63) / 4, n);
  memcpy(out, chunk, (size_t)first * sizeof *out);
  put_chunk(out + first, chunk + first, n - first);
}

/* out = base + the sum of values * weight at positions, saturated: the sum first, then the base, chunk by chunk. The same
 * is written to `copy`, unless that is NULL. Positions of rank r are at + most * r. */
typedef struct {
  const wire_float *const *values;
  const i64 *counts, *at;
  i64 ranks, most;
  float weight;
  const float *base;
  float *out, *copy;
} SparseSum;

static void sparse_add_range(void *state, i64 from, i64 to) {
  const SparseSum *a = state;
  float sum[TILE], chunk[TILE];
  for (i64 begin = from; begin < to; begin += TILE) {
    i64 m = least(TILE, to - begin);
    memset(sum, 0, (size_t)m * sizeof *sum);
    for (i64 r = 0; r < a->ranks; r++) {
      const i64 *at = a->at + r * a->most, k = a->counts[r];
      for (i64 j = first_from(at, k, begin); j < k && at[j] < begin + m; j++)
        sum[at[j] - begin] += a->values[r][j] * a->weight;
    }
    add_mended(a->base + begin, sum, chunk, m);
    put_anywhere(a->out + begin, chunk, m);
    if (a->copy) put_anywhere(a->copy + begin, chunk, m);
  }
  end_chunks();
}

/* SparseSum of each layer. `copies` may be NULL. Other arguments and returns as for tw_sparse_mean_many. */
i64 tw_add_sparse_many(i64 layers, i64 ranks, const wire_float *const *values, const i64 *counts, const u8 *const *coded,
                       const i64 *nbytes, const i64 *n, const i64 *width, float weight, const float *const *base,
                       float *const *out, float *const *copies) {
  i64 most = 1;
  for (i64 i = 0; i < layers * ranks; i++) {
    if (counts[i] > n[i / ranks] || counts[i] > 8 * nbytes[i]) return i / ranks; /* before there is room for them */
    most = counts[i] > most ? counts[i] : most;
  }
  i64 *at = malloc((size_t)most * (size_t)ranks * sizeof *at), wrong = at ? -1 : -2;
  for (i64 l = 0; l < layers && wrong == -1; l++) {
    i64 first = l * ranks;
    for (i64 r = 0; r < ranks; r++)
      if (!are_finite(values[first + r], counts[first + r]) ||
          tw_decode_positions(coded[first + r], nbytes[first + r], counts[first + r], n[l], (int)width[l], at + r * most))
        wrong = l;
    SparseSum a = {values + first, counts + first, at, ranks, most, weight, base[l], out[l], copies ? copies[l] : NULL};
    if (wrong == -1) run_parallel(sparse_add_range, &a, n[l], CHUNK, n[l]);
  }
  free(at);
  return wrong;
}
