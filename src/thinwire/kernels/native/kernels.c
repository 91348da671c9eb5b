/* The hot loops in C. Every function gives the bits of the torch expression (for sketches, of the numpy form) that is its
 * definition in kernels/: no fast-math, no contraction, sums along the same trees. Two say that they need not.
 *
 * One text, compiled once for each instruction set (build.py); plain C ABI, called through ctypes on data_ptr().
 * Nothing but the number of threads is kept between calls, nothing but small scratch is allocated. Sizes and pointers are
 * the caller's promise, positions are not: those that come off a wire are tested here. Functions `..._range` are jobs of
 * run_parallel: the same bits for any ranges.
 *
 * Loops are written so that compilers vectorise them: whole chunks through small buffers that stay in the first cache,
 * magnitudes compared as whole numbers (a floating-point maximum does not vectorise without fast-math).
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian, and so is this text"
#endif

typedef int64_t i64;
typedef int32_t i32;
typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef u32 __attribute__((may_alias)) any32; /* floats, read as words */
typedef u16 __attribute__((may_alias)) half16; /* words, read by halves */
typedef float __attribute__((may_alias, aligned(1))) wire_float; /* of a message, at any address */

#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u
#define CHUNK 4096 /* elements worked at a time, and the length of the rows of mean_magnitude */
#define PIECE 512  /* elements that share one buffer of noise */

static inline u32 bits_of(float x) { u32 u; memcpy(&u, &x, 4); return u; }
static inline float float_of(u32 u) { float x; memcpy(&x, &u, 4); return x; }
static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline u32 largest_of(u32 a, u32 b) { return a > b ? a : b; }

/* core.saturate: what overflowed becomes the largest number, NaN becomes 0 */
static inline float saturated(float x) {
  u32 b = bits_of(x), a = b & MAGNITUDE;
  u32 largest = (b & ~MAGNITUDE) | (INFINITE - 1);
  u32 mended = a == INFINITE ? largest : 0;
  return float_of(a < INFINITE ? b : mended);
}

/* Largest magnitude, as bits. */
static u32 peak_bits(const float *x, i64 n) {
  u32 peak = 0;
  for (i64 i = 0; i < n; i++) {
    u32 a = bits_of(x[i]) & MAGNITUDE;
    peak = a > peak ? a : peak;
  }
  return peak;
}

/* out = x + y, saturated; returns the largest magnitude before that as bits: INFINITE or more if something overflowed or
 * was not finite. That is rare, so it is mended afterwards. */
static u32 add_mended(const float *x, const float *y, float *out, i64 n) {
  u32 peak = 0;
  for (i64 i = 0; i < n; i++) {
    float sum = x[i] + y[i];
    u32 a = bits_of(sum) & MAGNITUDE;
    out[i] = sum;
    peak = a > peak ? a : peak;
  }
  if (peak >= INFINITE) for (i64 i = 0; i < n; i++) out[i] = saturated(out[i]);
  return peak;
}

/* out = x - y; else as add_mended */
static u32 subtract_mended(const float *x, const float *y, float *out, i64 n) {
  u32 peak = 0;
  for (i64 i = 0; i < n; i++) {
    float difference = x[i] - y[i];
    u32 a = bits_of(difference) & MAGNITUDE;
    out[i] = difference;
    peak = a > peak ? a : peak;
  }
  if (peak >= INFINITE) for (i64 i = 0; i < n; i++) out[i] = saturated(out[i]);
  return peak;
}

/* out = y + 0, saturated: the sum with zeros, so -0 becomes 0. x is not read; else as add_mended. */
static u32 copy_mended(const float *x, const float *y, float *out, i64 n) {
  u32 peak = 0;
  (void)x;
  for (i64 i = 0; i < n; i++) {
    float sum = y[i] + 0.0f;
    u32 a = bits_of(sum) & MAGNITUDE;
    out[i] = sum;
    peak = a > peak ? a : peak;
  }
  if (peak >= INFINITE) for (i64 i = 0; i < n; i++) out[i] = saturated(out[i]);
  return peak;
}

typedef u32 (*Combine)(const float *x, const float *y, float *out, i64 n); /* one of the three above */

/* Loops that compute more than they read leave the memory idle; so they ask for what comes next. */
static inline void ask_for(const float *x, i64 n) {
  for (i64 i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

/* ---- long outputs, by stores that bypass the cache: what is not read soon need not push out what is ---- */
enum { LONG = 1 << 16 }; /* elements */

/* A chunk of a long output. */
static void put_chunk(float *out, const float *chunk, i64 n) {
  i64 i = 0;
#if defined(__AVX512F__)
  if (((uintptr_t)out & 63) == 0) for (; i + 16 <= n; i += 16) _mm512_stream_ps(out + i, _mm512_loadu_ps(chunk + i));
#elif defined(__AVX2__)
  if (((uintptr_t)out & 31) == 0) for (; i + 8 <= n; i += 8) _mm256_stream_ps(out + i, _mm256_loadu_ps(chunk + i));
#elif defined(__SSE2__)
  if (((uintptr_t)out & 15) == 0) for (; i + 4 <= n; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(chunk + i));
#endif
  memcpy(out + i, chunk + i, (size_t)(n - i) * sizeof *out);
}

/* After the last chunk, before another thread may read them. */
static inline void end_chunks(void) {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

static void fill_zeros(float *out, i64 n) {
  static const float zeros[CHUNK];
  if (n < LONG) { memset(out, 0, (size_t)n * sizeof *out); return; }
  i64 first = (i64)(-(uintptr_t)out & 63) / 4; /* up to a cache line */
  memset(out, 0, (size_t)first * sizeof *out);
  for (i64 at = first; at < n; at += CHUNK) put_chunk(out + at, zeros, least(CHUNK, n - at));
  end_chunks();
}

u32 tw_mark(void) { return TW_MARK; } /* of this text, from build.py */

#include "threads.c"

typedef struct { Combine combine; const float *x, *y; float *out; u32 peak; } Combined;

static void combined_range(void *state, i64 from, i64 to) {
  Combined *a = state;
  raise_to(&a->peak, a->combine(a->x + from, a->y + from, a->out + from, to - from));
}

static u32 combine_all(Combine combine, const float *x, const float *y, i64 n, float *out) {
  Combined a = {combine, x, y, out, 0};
  run_parallel(combined_range, &a, n, CHUNK, n);
  return a.peak;
}

static u32 add_all(const float *x, const float *y, i64 n, float *out) { return combine_all(add_mended, x, y, n, out); }

void tw_add_saturated(const float *x, const float *y, i64 n, float *out) { add_all(x, y, n, out); }

/* ---- noise ---- */
static inline u32 mix32(u32 x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/* Noise of elements first ... first + n - 1 (n <= PIECE). A word's halves serve two neighbours, which is the order
 * they have in memory. */
typedef struct { u32 words[PIECE / 2 + 1]; } Noise;

static const half16 *fill_noise(Noise *noise, u32 start, u32 stride, i64 first, i64 n) {
  u32 base = start + stride * (u32)(first >> 1);
  i32 words = (i32)((n + (first & 1) + 1) >> 1);
  for (i32 j = 0; j < words; j++) noise->words[j] = mix32(base + stride * (u32)j);
  return (const half16 *)noise->words + (first & 1);
}

typedef struct { u32 start, stride; i32 *out; } Draws;

static void noise_range(void *state, i64 from, i64 to) {
  const Draws *a = state;
  Noise noise;
  for (i64 at = from; at < to; at += PIECE) {
    i64 m = least(PIECE, to - at);
    const half16 *draws = fill_noise(&noise, a->start, a->stride, at, m);
    for (i64 i = 0; i < m; i++) a->out[at + i] = draws[i];
  }
}

void tw_noise16(u32 start, u32 stride, i64 n, i32 *out) {
  Draws a = {start, stride, out};
  run_parallel(noise_range, &a, n, PIECE, n);
}

/* ---- bits: eight numbers of b bits in b bytes ---- */
static inline u64 every(u64 lane, int width) { /* one lane, repeated in all 64 bits */
  u64 all = 0;
  for (int at = 0; at < 64; at += width) all |= lane << at;
  return all;
}

typedef struct { u64 low[3]; int bits; } Squeeze; /* masks for lanes of 2, 4 and 8 numbers */

static Squeeze squeeze_of(int bits) {
  Squeeze s = {{every((1ull << bits) - 1, 16), every((1ull << 2 * bits) - 1, 32), (1ull << 4 * bits) - 1}, bits};
  return s;
}

static inline u64 squeezed(u64 x, const Squeeze *s) {
  for (int i = 0; i < 3; i++) {
    int used = s->bits << i, lane = 8 << i;
    x = (x & s->low[i]) | ((x >> (lane - used)) & (s->low[i] << used));
  }
  return x;
}

static inline u64 spread(u64 x, const Squeeze *s) {
  for (int i = 2; i >= 0; i--) {
    int used = s->bits << i, lane = 8 << i;
    x = (x & s->low[i]) | ((x & (s->low[i] << used)) << (lane - used));
  }
  return x;
}

/* Codes of n numbers (room for a multiple of 8, which this fills with zeros) -> `nbytes` bytes. */
static void pack_codes(u8 *codes, i64 n, const Squeeze *s, u8 *out, i64 nbytes) {
  int b = s->bits;
  memset(codes + n, 0, (size_t)(-n & 7));
  if (b == 8) { memcpy(out, codes, (size_t)nbytes); return; }
  if (b == 4) {
    for (i64 i = 0; i < nbytes; i++) {
      u16 pair;
      memcpy(&pair, codes + 2 * i, 2);
      out[i] = (u8)(pair | pair >> 4);
    }
    return;
  }
  i64 at = 0;
  for (; at + 8 <= nbytes; at += b, codes += 8) { /* a whole word is stored, the next one covers what is too much */
    u64 word;
    memcpy(&word, codes, 8);
    word = squeezed(word, s);
    memcpy(out + at, &word, 8);
  }
  for (; at < nbytes; at += b, codes += 8) {
    u64 word;
    memcpy(&word, codes, 8);
    word = squeezed(word, s);
    memcpy(out + at, &word, (size_t)least(b, nbytes - at));
  }
}

/* `nbytes` bytes -> codes of n numbers; room for a multiple of 8. */
static void unpack_codes(const u8 *in, i64 nbytes, const Squeeze *s, u8 *codes, i64 n) {
  int b = s->bits;
  if (b == 8) { memcpy(codes, in, (size_t)n); return; }
  if (b == 4) {
    for (i64 i = 0; i < nbytes; i++) {
      u16 pair = (u16)((in[i] | in[i] << 4) & 0x0F0F);
      memcpy(codes + 2 * i, &pair, 2);
    }
    return;
  }
  i64 at = 0;
  for (i64 i = 0; i < n; i += 8, at += b) {
    u64 word = 0;
    if (at + 8 <= nbytes) memcpy(&word, in + at, 8);
    else memcpy(&word, in + at, (size_t)least(b, nbytes - at));
    word = spread(word, s);
    memcpy(codes + i, &word, 8);
  }
}

/* wire.pack_bits and unpack_bits for numbers of 1 to 56 bits; eight of them fill whole bytes */
typedef struct { const i64 *values; i64 *read; const u8 *in; u8 *out; int bits; } Wide;

static void pack_range(void *state, i64 from, i64 to) {
  const Wide *a = state;
  u64 held = 0, mask = (1ull << a->bits) - 1;
  u8 *out = a->out + from / 8 * a->bits;
  int have = 0, bits = a->bits;
  for (i64 i = from; i < to; i++) {
    held |= ((u64)a->values[i] & mask) << have;
    for (have += bits; have >= 8; have -= 8, held >>= 8) *out++ = (u8)held;
  }
  if (have) *out = (u8)held;
}

static void unpack_range(void *state, i64 from, i64 to) {
  const Wide *a = state;
  u64 held = 0, mask = (1ull << a->bits) - 1;
  const u8 *in = a->in + from / 8 * a->bits;
  int have = 0, bits = a->bits;
  for (i64 i = from; i < to; i++) {
    for (; have < bits; have += 8) held |= (u64)*in++ << have;
    a->read[i] = (i64)(held & mask);
    held >>= bits;
    have -= bits;
  }
}

void tw_pack_bits(const i64 *values, i64 n, int bits, u8 *out) {
  Wide a = {.values = values, .out = out, .bits = bits};
  run_parallel(pack_range, &a, n, 8, n);
}

void tw_unpack_bits(const u8 *in, i64 n, int bits, i64 *values) {
  Wide a = {.in = in, .read = values, .bits = bits};
  run_parallel(unpack_range, &a, n, 8, n);
}

/* ---- masks of 32 elements: one bit each ---- */
#define MASK32(TEST512, TEST256, TEST128, TEST)                                                                \
  u32 mask = 0;                                                                                                 \
  MASK32_BODY(TEST512, TEST256, TEST128, TEST)                                                                  \
  return mask;
#if defined(__AVX512F__)
#define MASK32_BODY(TEST512, TEST256, TEST128, TEST) \
  for (int i = 0; i < 2; i++) { __m512 v = _mm512_loadu_ps(x + 16 * i); mask |= (u32)(TEST512) << 16 * i; }
#elif defined(__AVX2__)
#define MASK32_BODY(TEST512, TEST256, TEST128, TEST) \
  for (int i = 0; i < 4; i++) { __m256 v = _mm256_loadu_ps(x + 8 * i); mask |= (u32)(TEST256) << 8 * i; }
#elif defined(__SSE2__)
#define MASK32_BODY(TEST512, TEST256, TEST128, TEST) \
  for (int i = 0; i < 8; i++) { __m128 v = _mm_loadu_ps(x + 4 * i); mask |= (u32)(TEST128) << 4 * i; }
#else
#define MASK32_BODY(TEST512, TEST256, TEST128, TEST) \
  for (int i = 0; i < 32; i++) { float v = x[i]; mask |= (u32)(TEST) << i; }
#endif

static inline u32 negative32(const float *x) { /* x < 0; the zero with a sign is none */
  MASK32(_mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ),
         _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ)),
         _mm_movemask_ps(_mm_cmplt_ps(v, _mm_setzero_ps())), v < 0)
}

static inline u32 reach32(const float *x, u32 level) { /* |x| >= level, which is not 0 */
  i32 below = (i32)level - 1;
  (void)below;
  MASK32(_mm512_cmpgt_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(MAGNITUDE)),
                                 _mm512_set1_epi32(below)),
         _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(
             _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(MAGNITUDE)), _mm256_set1_epi32(below)))),
         _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(
             _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(MAGNITUDE)), _mm_set1_epi32(below)))),
         (bits_of(v) & MAGNITUDE) >= level)
}

static inline u32 at_least32(const float *x, float level) { /* |x| >= level as numbers: any level, and never a NaN */
  MASK32(_mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(level), _CMP_GE_OQ),
         _mm256_movemask_ps(
             _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), _mm256_set1_ps(level), _CMP_GE_OQ)),
         _mm_movemask_ps(_mm_cmpge_ps(_mm_andnot_ps(_mm_set1_ps(-0.0f), v), _mm_set1_ps(level))), fabsf(v) >= level)
}

static void pack_signs(const float *x, i64 n, u8 *out) {
  i64 at = 0;
  for (; at + 32 <= n; at += 32) {
    u32 mask = negative32(x + at);
    memcpy(out + at / 8, &mask, 4);
  }
  for (; at < n; at += 8) {
    u8 mask = 0;
    for (i64 i = 0; i < least(8, n - at); i++) mask |= (u8)((x[at + i] < 0) << i);
    out[at / 8] = mask;
  }
}

/* Of the kernels for signs: x, or x + y in rest; payloads of ranks for means. */
typedef struct {
  const float *x, *y;
  float *rest, share, *sums;
  u8 *signs;
  const u8 *const *all;
  const float *scales;
  i64 ranks;
  float weight, *out;
  u32 peak;
} Signs;

static void signs_range(void *state, i64 from, i64 to) {
  const Signs *a = state;
  pack_signs(a->x + from, to - from, a->signs + from / 8);
}

void tw_pack_signs(const float *x, i64 n, u8 *out) {
  Signs a = {.x = x, .signs = out};
  run_parallel(signs_range, &a, n, CHUNK, n);
}

/* ---- the mean of magnitudes, along the trees of reference.mean_magnitude ---- */
static float halved(float *row, i64 width) { /* a power of two */
  for (i64 half = width / 2; half >= 1; half /= 2)
    for (i64 i = 0; i < half; i++) row[i] += row[i + half];
  return row[0];
}

/* Eight numbers, halved three times: of one row's, those a width/8 apart. */
#define EIGHT(f, w) (((f(0) + f(4 * w)) + (f(2 * w) + f(6 * w))) + ((f(w) + f(5 * w)) + (f(3 * w) + f(7 * w))))

static float row_sum(const float *x, i64 n, float share) {
  enum { FIRST = CHUNK / 8, SECOND = FIRST / 8 };
  float row[CHUNK];
  if (n == CHUNK) { /* three halvings at once, so that what lies between is not stored */
#define SHARE(at) (fabsf(x[i + (at)]) * share)
#define HELD(at) row[i + (at)]
    for (i64 i = 0; i < FIRST; i++) row[i] = EIGHT(SHARE, FIRST);
    for (i64 i = 0; i < SECOND; i++) row[i] = EIGHT(HELD, SECOND);
    return halved(row, SECOND);
  }
  for (i64 i = 0; i < n; i++) row[i] = fabsf(x[i]) * share;
  memset(row + n, 0, (size_t)(CHUNK - n) * 4);
  return halved(row, CHUNK);
}

static float mean_of(float *sums, i64 rows, i64 width, float back) { /* sums has room for `width` */
  memset(sums + rows, 0, (size_t)(width - rows) * 4);
  float mean = halved(sums, width) * back, largest = float_of(INFINITE - 1);
  return mean > largest ? largest : mean;
}

/* n > 0; share = 1/2^p, back = 2^p/n; sums: a power of two of numbers, at least one a row. signs may be missing. */
static void sign_range(void *state, i64 from, i64 to) {
  Signs *a = state;
  u32 peak = 0;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    const float *x = (a->rest ? a->rest : a->x) + at;
    if (a->rest) peak = largest_of(peak, add_mended(a->x + at, a->y + at, a->rest + at, m));
    if (a->signs) pack_signs(x, m, a->signs + at / 8);
    a->sums[at / CHUNK] = row_sum(x, m, a->share);
  }
  raise_to(&a->peak, peak);
}

float tw_sign_encode(const float *x, i64 n, float share, float back, float *sums, i64 width, u8 *signs) {
  Signs a = {.x = x, .share = share, .sums = sums, .signs = signs};
  run_parallel(sign_range, &a, n, CHUNK, n);
  return mean_of(sums, (n + CHUNK - 1) / CHUNK, width, back);
}

static inline float signed_by(u32 scale, u32 word, int i) { return float_of(scale ^ ((word << (31 - i)) & ~MAGNITUDE)); }

static void sign_rest_range(void *state, i64 from, i64 to) { /* towards the other sign: cannot overflow */
  const Signs *a = state;
  float *rest = a->rest, scale = a->weight;
  for (i64 i = from; i < to; i++) rest[i] -= rest[i] < 0 ? -scale : scale;
}

/* Also notes the largest magnitude of x + before, as add_mended returns it. */
static float sign_feedback(const float *x, const float *before, float *rest, i64 n, float share, float back, float *sums,
                           i64 width, u8 *signs, u32 *peak) {
  Signs a = {.x = x, .y = before, .rest = rest, .share = share, .sums = sums, .signs = signs};
  run_parallel(sign_range, &a, n, CHUNK, n);
  *peak = a.peak;
  a.weight = mean_of(sums, (n + CHUNK - 1) / CHUNK, width, back);
  run_parallel(sign_rest_range, &a, n, CHUNK, n);
  return a.weight;
}

float tw_sign_feedback(const float *x, const float *before, float *rest, i64 n, float share, float back, float *sums,
                       i64 width, u8 *signs) {
  u32 peak = 0;
  return sign_feedback(x, before, rest, n, share, back, sums, width, signs, &peak);
}

static void sign_chunk(const u8 *signs, i64 n, float scale, float *out, int add) {
  u32 bits = bits_of(scale), word;
  i64 at = 0;
  for (; at + 32 <= n; at += 32) {
    memcpy(&word, signs + at / 8, 4);
    float *y = out + at;
    if (add) for (int i = 0; i < 32; i++) y[i] += signed_by(bits, word, i);
    else for (int i = 0; i < 32; i++) y[i] = signed_by(bits, word, i);
  }
  for (; at < n; at++) {
    float value = (signs[at / 8] >> (at & 7)) & 1 ? -scale : scale;
    out[at] = add ? out[at] + value : value;
  }
}

static void sign_decode_range(void *state, i64 from, i64 to) {
  const Signs *a = state;
  sign_chunk(a->signs + from / 8, to - from, a->weight, a->out + from, 0);
}

void tw_sign_decode(const u8 *signs, i64 n, float scale, float *out) {
  Signs a = {.signs = (u8 *)signs, .weight = scale, .out = out};
  run_parallel(sign_decode_range, &a, n, CHUNK, n);
}

static void sign_mean_range(void *state, i64 from, i64 to) {
  const Signs *a = state;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    memset(a->out + at, 0, (size_t)m * 4);
    for (i64 r = 0; r < a->ranks; r++)
      sign_chunk(a->all[r] + at / 8, m, a->scales[r] * a->weight, a->out + at, 1);
  }
}

void tw_sign_mean(const u8 *const *signs, const float *scales, i64 ranks, i64 n, float weight, float *out) {
  Signs a = {.all = signs, .scales = scales, .ranks = ranks, .weight = weight, .out = out};
  run_parallel(sign_mean_range, &a, n, CHUNK, n);
}

/* ---- QSGD and uniform: levels of blocks ---- */
/* What a code says: QSGD's sign and level, or a step above the lowest, rounded to the nearest or by chance. */
typedef enum { SIGNED, NEAREST, STOCHASTIC } Rounding;

#if defined(__AVX2__)
static inline __m256 draw8(const half16 *noise) { /* (noise + 1/2) / 2^16, exactly */
  __m256i draw = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)noise)), 7);
  __m256 noisy = _mm256_castsi256_ps(_mm256_or_si256(draw, _mm256_set1_epi32(0x3F800040)));
  return _mm256_sub_ps(noisy, _mm256_set1_ps(1.0f));
}

static inline void store_codes32(u8 *codes, __m256i a, __m256i b, __m256i c, __m256i d) {
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works in halves of a register */
  __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
  _mm256_storeu_si256((__m256i *)codes, _mm256_permutevar8x32_epi32(bytes, order));
}

static inline __m256i code8(const float *x, const half16 *noise, __m256 scale, __m256i levels, __m256i sign) {
  __m256 v = _mm256_loadu_ps(x);
  __m256 place = _mm256_mul_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), scale);
  __m256i level = _mm256_cvttps_epi32(_mm256_add_ps(place, draw8(noise)));
  __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ));
  return _mm256_or_si256(_mm256_min_epi32(level, levels), _mm256_and_si256(negative, sign));
}

static inline __m256i step8(const float *x, const half16 *noise, __m256 scale, __m256i levels) {
  __m256 place = _mm256_mul_ps(_mm256_loadu_ps(x), scale);
  __m256i step = noise ? _mm256_cvttps_epi32(_mm256_floor_ps(_mm256_add_ps(place, draw8(noise))))
                       : _mm256_cvtps_epi32(place); /* halves to even, as everywhere */
  step = _mm256_max_epi32(step, _mm256_sub_epi32(_mm256_setzero_si256(), levels));
  return _mm256_add_epi32(_mm256_min_epi32(step, levels), levels);
}
#endif

static inline float draw_of(u16 noise) { return float_of(0x3F800040u | (u32)noise << 7) - 1.0f; }

static void code_levels(const float *x, const half16 *noise, i64 n, float scale, i32 levels, int sign_at, u8 *codes) {
  i64 i = 0;
#if defined(__AVX2__) /* as below; compilers spend more on the narrowing */
  __m256 s = _mm256_set1_ps(scale);
  __m256i top = _mm256_set1_epi32(levels), sign = _mm256_set1_epi32(1 << sign_at);
  for (; i + 32 <= n; i += 32) {
    __m256i a = code8(x + i, noise + i, s, top, sign), b = code8(x + i + 8, noise + i + 8, s, top, sign);
    __m256i c = code8(x + i + 16, noise + i + 16, s, top, sign), d = code8(x + i + 24, noise + i + 24, s, top, sign);
    store_codes32(codes + i, a, b, c, d);
  }
#endif
  for (; i < n; i++) {
    i32 level = (i32)(fabsf(x[i]) * scale + draw_of(noise[i]));
    level = level > levels ? levels : level;
    codes[i] = (u8)(level | (x[i] < 0) << sign_at);
  }
}

static inline u8 step_code(i32 step, i32 levels) {
  step = step < -levels ? -levels : step;
  return (u8)((step > levels ? levels : step) + levels);
}

/* Places are not above 128 or so: added to 1.5 * 2^23 they are rounded to whole numbers, halves to even, and stand in
 * the last bits. Without noise, which is NULL, that is all. */
static void code_steps(const float *x, const half16 *noise, i64 n, float scale, i32 levels, u8 *codes) {
  i64 i = 0;
#if defined(__AVX2__)
  __m256 s = _mm256_set1_ps(scale);
  __m256i top = _mm256_set1_epi32(levels);
#define STEP8(at) step8(x + i + (at), noise ? noise + i + (at) : NULL, s, top)
  for (; i + 32 <= n; i += 32) store_codes32(codes + i, STEP8(0), STEP8(8), STEP8(16), STEP8(24));
#endif
  if (!noise) {
    for (; i < n; i++) codes[i] = step_code((i32)(bits_of(x[i] * scale + 0x1.8p23f) - 0x4B400000u), levels);
    return;
  }
  for (; i < n; i++) {
    float place = x[i] * scale + draw_of(noise[i]);
    i32 step = (i32)place;
    codes[i] = step_code((i32)((u32)step - ((float)step > place)), levels); /* a NaN is the smallest number here */
  }
}

static inline float level_value(u8 code, i32 levels, float unit, float norm) {
  float level = (float)(code & levels) * unit;
  return (code > levels ? -level : level) * norm;
}

static inline float step_value(u8 code, i32 levels, float unit, float norm) {
  return (float)(code - levels) * unit * norm;
}

/* x alone, or x + before with what is not sent in rest. norms are worked out (at least `smallest`) unless given; if they
 * are, and there is a rest, it holds the sums. */
typedef struct {
  Rounding how;
  const float *x, *before;
  float *rest;
  i64 block;
  int bits;
  u32 start, stride;
  int given;
  float smallest, *norms;
  u8 *out;
  u32 largest; /* magnitude as bits: INFINITE or more if something overflowed or was not finite; 0 if norms are given */
} Blocks;

/* Whole blocks, unless their norms are given; from a multiple of 8. */
static void blocks_range(void *state, i64 from, i64 to) {
  Blocks *a = state;
  u8 stage[CHUNK + PIECE + 8], *out = a->out + from / 8 * a->bits;
  Noise noise;
  Squeeze s = squeeze_of(a->bits);
  i32 levels = (1 << (a->bits - 1)) - 1;
  float unit = (float)(1.0 / levels);
  i64 fill = 0, m;
  u32 largest = 0;
  float *norms = a->norms + from / a->block;
  for (i64 begin = from; begin < to; begin += m, norms++) {
    m = least(a->block - (begin == from ? from % a->block : 0), to - begin);
    const float *p = (a->rest ? a->rest : a->x) + begin;
    if (!a->given) {
      u32 found = a->rest ? add_mended(a->x + begin, a->before + begin, a->rest + begin, m) : peak_bits(p, m);
      float peak = float_of(a->rest && found >= INFINITE ? peak_bits(p, m) : found);
      largest = largest_of(largest, found);
      *norms = peak > a->smallest ? peak : a->smallest;
    }
    float norm = *norms, scale = (1.0f / norm) * (float)levels;
    for (i64 at = 0; at < m; at += PIECE) {
      i64 part = least(PIECE, m - at);
      i64 next = least(PIECE, to - begin - at - part);
      ask_for((a->given ? p - begin : a->x) + begin + at + part, next);
      if (a->rest && !a->given) ask_for(a->before + begin + at + part, next);
      const half16 *draws = a->how == NEAREST ? NULL : fill_noise(&noise, a->start, a->stride, begin + at, part);
      u8 *codes = stage + fill;
      if (a->how == SIGNED) code_levels(p + at, draws, part, scale, levels, a->bits - 1, codes);
      else code_steps(p + at, draws, part, scale, levels, codes);
      if (a->rest) {
        float *r = a->rest + begin + at;
        if (a->how == SIGNED) for (i64 i = 0; i < part; i++) r[i] -= level_value(codes[i], levels, unit, norm);
        else for (i64 i = 0; i < part; i++) r[i] -= step_value(codes[i], levels, unit, norm);
        if (norm > 0x1p126f) /* else nothing can overflow */
          for (i64 i = 0; i < part; i++) r[i] = saturated(r[i]);
      }
      fill += part;
      if (fill >= CHUNK) {
        pack_codes(stage, CHUNK, &s, out, CHUNK / 8 * a->bits);
        out += CHUNK / 8 * a->bits;
        memcpy(stage, stage + CHUNK, (size_t)(fill -= CHUNK));
      }
    }
  }
  pack_codes(stage, fill, &s, out, (fill * a->bits + 7) / 8);
  raise_to(&a->largest, largest);
}

/* Peaks of blocks of which several threads have a part each. */
static void wide_peaks_range(void *state, i64 from, i64 to) {
  Blocks *a = state;
  for (i64 at = from, m; at < to; at += m) {
    m = least(a->block - at % a->block, to - at);
    const float *p = (a->rest ? a->rest : a->x) + at;
    u32 found = a->rest ? add_mended(a->x + at, a->before + at, a->rest + at, m) : peak_bits(p, m);
    raise_to(&a->largest, found);
    raise_to((any32 *)a->norms + at / a->block, a->rest && found >= INFINITE ? peak_bits(p, m) : found);
  }
}

static void wide_peaks(Blocks *a, i64 n) {
  memset(a->norms, 0, (size_t)((n + a->block - 1) / a->block) * 4);
  run_parallel(wide_peaks_range, a, n, CHUNK, n);
}

static int is_wide(i64 block) { return block > 8 * grain; } /* a block is more than a thread takes at a time */

static u32 blocks_encode(Rounding how, const float *x, const float *before, float *rest, i64 n, i64 block, int bits,
                         u32 start, u32 stride, int given, float smallest, float *norms, u8 *out) {
  Blocks a = {how, x, before, rest, block, bits, start, stride, given, smallest, norms, out, 0};
  if (!divides(n)) { blocks_range(&a, 0, n); return a.largest; }
  if (!given && is_wide(block)) {
    wide_peaks(&a, n);
    for (i64 b = 0; b < (n + block - 1) / block; b++) norms[b] = norms[b] > smallest ? norms[b] : smallest;
    a.given = 1;
  }
  run_parallel(blocks_range, &a, n, a.given ? CHUNK : block % 8 ? 8 * block : block, n);
  return a.largest;
}

void tw_qsgd_encode(const float *x, i64 n, i64 block, int bits, u32 start, u32 stride, int given, float smallest,
                    float *norms, u8 *out) {
  blocks_encode(SIGNED, x, NULL, NULL, n, block, bits, start, stride, given, smallest, norms, out);
}

void tw_qsgd_feedback(const float *x, const float *before, float *rest, i64 n, i64 block, int bits, u32 start,
                      u32 stride, float smallest, float *norms, u8 *out) {
  blocks_encode(SIGNED, x, before, rest, n, block, bits, start, stride, 0, smallest, norms, out);
}

void tw_uniform_encode(const float *x, i64 n, i64 block, int bits, u32 start, u32 stride, int by_chance, float smallest,
                       float *norms, u8 *out) {
  Rounding how = by_chance ? STOCHASTIC : NEAREST;
  blocks_encode(how, x, NULL, NULL, n, block, bits, start, stride, 0, smallest, norms, out);
}

void tw_uniform_feedback(const float *x, const float *before, float *rest, i64 n, i64 block, int bits, u32 start,
                         u32 stride, int by_chance, float smallest, float *norms, u8 *out) {
  Rounding how = by_chance ? STOCHASTIC : NEAREST;
  blocks_encode(how, x, before, rest, n, block, bits, start, stride, 0, smallest, norms, out);
}

/* One or more payloads: their levels times norms, or the sum of those times `weight`. Returns the largest code. */
static u8 blocks_chunk(int steps, const u8 *in, const wire_float *norms, i64 at, i64 m, i64 block, const Squeeze *s,
                       float weight, float *out, int add) {
  u8 codes[CHUNK];
  u8 top = 0;
  i32 levels = (1 << (s->bits - 1)) - 1;
  float unit = (float)(1.0 / levels);
  unpack_codes(in + at / 8 * s->bits, (m * s->bits + 7) / 8, s, codes, m);
  for (i64 i = 0; i < m;) {
    i64 b = (at + i) / block, end = least(m, (b + 1) * block - at);
    float norm = norms[b];
    if (steps && add) for (; i < end; i++) out[i] += step_value(codes[i], levels, unit, norm) * weight;
    else if (steps) for (; i < end; i++) out[i] = step_value(codes[i], levels, unit, norm);
    else if (add) for (; i < end; i++) out[i] += level_value(codes[i], levels, unit, norm) * weight;
    else for (; i < end; i++) out[i] = level_value(codes[i], levels, unit, norm);
  }
  if (steps) for (i64 i = 0; i < m; i++) top = codes[i] > top ? codes[i] : top;
  return top;
}

typedef struct {
  int steps, add;
  const u8 *const *in;
  const wire_float *const *norms;
  i64 ranks, block;
  int bits;
  float weight, *out;
  u32 top;
} Levels;

static void levels_range(void *state, i64 from, i64 to) {
  Levels *a = state;
  Squeeze s = squeeze_of(a->bits);
  u8 top = 0;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    float *out = a->out + at;
    if (a->add) memset(out, 0, (size_t)m * 4);
    for (i64 r = 0; r < a->ranks; r++) {
      u8 code = blocks_chunk(a->steps, a->in[r], a->norms[r], at, m, a->block, &s, a->weight, out, a->add);
      top = code > top ? code : top;
    }
  }
  raise_to(&a->top, top);
}

static int blocks_decode(int steps, const u8 *in, const float *norms, i64 n, i64 block, int bits, float *out) {
  const wire_float *scales = norms;
  Levels a = {steps, 0, &in, &scales, 1, block, bits, 1.0f, out, 0};
  run_parallel(levels_range, &a, n, CHUNK, n);
  return (int)a.top;
}

static int blocks_mean(int steps, const u8 *const *in, const wire_float *const *norms, i64 ranks, i64 n, i64 block,
                       int bits, float weight, float *out) {
  Levels a = {steps, 1, in, norms, ranks, block, bits, weight, out, 0};
  run_parallel(levels_range, &a, n, CHUNK, n);
  return (int)a.top;
}

void tw_qsgd_decode(const u8 *in, const float *norms, i64 n, i64 block, int bits, float *out) {
  blocks_decode(0, in, norms, n, block, bits, out);
}

void tw_qsgd_mean(const u8 *const *in, const wire_float *const *norms, i64 ranks, i64 n, i64 block, int bits,
                  float weight, float *out) {
  blocks_mean(0, in, norms, ranks, n, block, bits, weight, out);
}

/* These return the largest code, which may be one that is never sent. */
int tw_uniform_decode(const u8 *in, const float *norms, i64 n, i64 block, int bits, float *out) {
  return blocks_decode(1, in, norms, n, block, bits, out);
}

int tw_uniform_mean(const u8 *const *in, const wire_float *const *norms, i64 ranks, i64 n, i64 block, int bits,
                    float weight, float *out) {
  return blocks_mean(1, in, norms, ranks, n, block, bits, weight, out);
}

/* ---- natural: exponents by chance ---- */
/* codes = clamp(exponent - window, 0, most), with sign_bit for what is negative; n <= PIECE */
static void natural_piece(const float *x, const half16 *draws, i64 n, i32 window, i32 most, u32 sign_bit, u8 *codes) {
  for (i64 i = 0; i < n; i++) {
    u32 noisy = (bits_of(x[i]) & MAGNITUDE) + (((u32)draws[i] << 7) + 64);
    i32 e = (i32)(noisy >> 23) - window;
    e = e < 0 ? 0 : e;
    e = e > most ? most : e;
    codes[i] = (u8)((u32)e | (x[i] < 0 ? sign_bit : 0));
  }
}

/* Of the kernels for powers of two: x, or x + y in rest; codes have signs, or these are in a plane of their own. */
typedef struct {
  const float *x, *y;
  float *rest;
  u32 start, stride;
  i32 window, most;
  u32 sign_bit;
  u8 *codes, *signs;
  const u8 *const *all, *const *all_signs;
  i64 ranks;
  float weight, *out;
  u32 peak; /* with feedback, as add_mended returns it */
} Powers;

static void natural_range(void *state, i64 from, i64 to) {
  const Powers *a = state;
  Noise noise;
  for (i64 at = from; at < to; at += PIECE) {
    i64 m = least(PIECE, to - at);
    const half16 *draws = fill_noise(&noise, a->start, a->stride, at, m);
    natural_piece(a->x + at, draws, m, a->window, a->most, a->sign_bit, a->codes + at);
  }
}

void tw_natural_encode(const float *x, i64 n, u32 start, u32 stride, i32 window, i32 most, u32 sign_bit, u8 *codes) {
  Powers a = {.x = x, .start = start, .stride = stride, .window = window, .most = most, .sign_bit = sign_bit, .codes = codes};
  run_parallel(natural_range, &a, n, CHUNK, n);
}

static inline float power_of(u32 code, i32 window) { /* of 7 bits for the exponent and one for the sign */
  u32 e = code & 127, bits = (code & 128) << 24 | (e + (u32)window) << 23;
  return float_of(e ? bits : 0);
}

static void natural_decode_range(void *state, i64 from, i64 to) {
  const Powers *a = state;
  const u8 *codes = a->codes;
  float *out = a->out;
  i32 window = a->window;
  for (i64 i = from; i < to; i++) out[i] = power_of(codes[i], window);
}

void tw_natural_decode(const u8 *codes, i64 n, i32 window, float *out) {
  Powers a = {.codes = (u8 *)codes, .window = window, .out = out};
  run_parallel(natural_decode_range, &a, n, CHUNK, n);
}

static void natural_mean_range(void *state, i64 from, i64 to) {
  const Powers *a = state;
  float weight = a->weight;
  i32 window = a->window;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    float *out = a->out + at;
    memset(out, 0, (size_t)m * 4);
    for (i64 r = 0; r < a->ranks; r++) {
      const u8 *codes = a->all[r] + at;
      for (i64 i = 0; i < m; i++) out[i] += power_of(codes[i], window) * weight;
    }
  }
}

void tw_natural_mean(const u8 *const *codes, i64 ranks, i64 n, i32 window, float weight, float *out) {
  Powers a = {.all = codes, .ranks = ranks, .window = window, .weight = weight, .out = out};
  run_parallel(natural_mean_range, &a, n, CHUNK, n);
}

/* With feedback: x + before is sent, rest is what that leaves. A power of two has the number's sign and is at most twice
 * as large (or 2^-126), so nothing can overflow. */
static void natural_feedback_range(void *state, i64 from, i64 to) {
  Powers *a = state;
  Noise noise;
  u32 peak = 0;
  for (i64 at = from; at < to; at += PIECE) {
    i64 m = least(PIECE, to - at);
    float *r = a->rest + at;
    u8 *codes = a->codes + at;
    peak = largest_of(peak, add_mended(a->x + at, a->y + at, r, m));
    natural_piece(r, fill_noise(&noise, a->start, a->stride, at, m), m, a->window, 127, 128, codes);
    for (i64 i = 0; i < m; i++) r[i] -= power_of(codes[i], a->window);
  }
  raise_to(&a->peak, peak);
}

static u32 natural_feedback(const float *x, const float *before, float *rest, i64 n, u32 start, u32 stride, i32 window,
                            u8 *codes) {
  Powers a = {.x = x, .y = before, .rest = rest, .start = start, .stride = stride, .window = window, .codes = codes};
  run_parallel(natural_feedback_range, &a, n, CHUNK, n);
  return a.peak;
}

void tw_natural_feedback(const float *x, const float *before, float *rest, i64 n, u32 start, u32 stride, i32 window,
                         u8 *codes) {
  natural_feedback(x, before, rest, n, start, stride, window, codes);
}

/* The same with eight bits for the exponent, and signs in a plane of their own. */
enum { PUT, ADD, SUBTRACT };

static void exponents_piece(const u8 *exponents, const u8 *signs, i64 n, float weight, float *out, int what) {
  i64 at = 0;
  for (; at + 32 <= n; at += 32) {
    u32 word;
    const u8 *e = exponents + at;
    float *y = out + at;
    memcpy(&word, signs + at / 8, 4);
    if (what == PUT) for (int i = 0; i < 32; i++) y[i] = signed_by((u32)e[i] << 23, word, i);
    else if (what == ADD) for (int i = 0; i < 32; i++) y[i] += signed_by((u32)e[i] << 23, word, i) * weight;
    else for (int i = 0; i < 32; i++) y[i] -= signed_by((u32)e[i] << 23, word, i);
  }
  for (; at < n; at++) {
    float value = float_of((u32)exponents[at] << 23 | (u32)(signs[at / 8] >> (at & 7) & 1) << 31);
    out[at] = what == PUT ? value : what == ADD ? out[at] + value * weight : out[at] - value;
  }
}

static void exponents_decode_range(void *state, i64 from, i64 to) {
  const Powers *a = state;
  exponents_piece(a->codes + from, a->signs + from / 8, to - from, 1.0f, a->out + from, PUT);
}

void tw_exponents_decode(const u8 *exponents, const u8 *signs, i64 n, float *out) {
  Powers a = {.codes = (u8 *)exponents, .signs = (u8 *)signs, .out = out};
  run_parallel(exponents_decode_range, &a, n, CHUNK, n);
}

static void exponents_mean_range(void *state, i64 from, i64 to) {
  const Powers *a = state;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    memset(a->out + at, 0, (size_t)m * 4);
    for (i64 r = 0; r < a->ranks; r++)
      exponents_piece(a->all[r] + at, a->all_signs[r] + at / 8, m, a->weight, a->out + at, ADD);
  }
}

void tw_exponents_mean(const u8 *const *exponents, const u8 *const *signs, i64 ranks, i64 n, float weight, float *out) {
  Powers a = {.all = exponents, .all_signs = signs, .ranks = ranks, .weight = weight, .out = out};
  run_parallel(exponents_mean_range, &a, n, CHUNK, n);
}

static void exponents_feedback_range(void *state, i64 from, i64 to) {
  Powers *a = state;
  Noise noise;
  u32 peak = 0;
  for (i64 at = from; at < to; at += PIECE) {
    i64 m = least(PIECE, to - at);
    float *r = a->rest + at;
    peak = largest_of(peak, add_mended(a->x + at, a->y + at, r, m));
    natural_piece(r, fill_noise(&noise, a->start, a->stride, at, m), m, 0, a->most, 0, a->codes + at);
    pack_signs(r, m, a->signs + at / 8);
    exponents_piece(a->codes + at, a->signs + at / 8, m, 1.0f, r, SUBTRACT);
  }
  raise_to(&a->peak, peak);
}

static u32 exponents_feedback(const float *x, const float *before, float *rest, i64 n, u32 start, u32 stride, i32 most,
                              u8 *exponents, u8 *signs) {
  Powers a = {.x = x, .y = before, .rest = rest, .start = start, .stride = stride, .most = most, .codes = exponents};
  a.signs = signs;
  run_parallel(exponents_feedback_range, &a, n, CHUNK, n);
  return a.peak;
}

void tw_exponents_feedback(const float *x, const float *before, float *rest, i64 n, u32 start, u32 stride, i32 most,
                           u8 *exponents, u8 *signs) {
  exponents_feedback(x, before, rest, n, start, stride, most, exponents, signs);
}

/* ---- the k largest magnitudes ---- */
/* Counts the digits at `shift` of those magnitudes whose digits before it are the `settled` ones of `found`. */
typedef struct { const any32 *x; u32 found, settled, mask; int shift; i64 *counts; } Digits;

static void count_digits(const Digits *a, i64 from, i64 to, i64 *counts) {
  const any32 *x = a->x;
  u32 found = a->found, settled = a->settled, mask = a->mask;
  for (i64 i = from; i < to; i++) {
    u32 m = x[i] & MAGNITUDE;
    if (((m ^ found) & settled) == 0) counts[m >> a->shift & mask]++;
  }
}

static void digits_range(void *state, i64 from, i64 to) {
  const Digits *a = state;
  i64 counts[2048] = {0};
  count_digits(a, from, to, counts);
  for (u32 digit = 0; digit <= a->mask; digit++)
    if (counts[digit]) add_to(a->counts + digit, counts[digit]);
}

/* The k-th largest of n magnitudes (1 <= k <= n) as bits: 11, 10 and 10 of them at a time, each settled by counting. */
static u32 kth_magnitude(const any32 *x, i64 n, i64 k, i64 *above) {
  static const int shifts[3] = {20, 10, 0}, widths[3] = {11, 10, 10};
  i64 counts[2048], more = 0;
  Digits a = {x, 0, 0, 0, 0, counts};
  for (int pass = 0; pass < 3; pass++) {
    a.mask = (1u << widths[pass]) - 1;
    a.shift = shifts[pass];
    memset(counts, 0, sizeof counts);
    if (divides(n)) run_parallel(digits_range, &a, n, 1, n);
    else count_digits(&a, 0, n, counts);
    u32 digit = a.mask;
    while (more + counts[digit] < k) more += counts[digit--];
    a.found |= digit << a.shift;
    a.settled |= a.mask << a.shift;
  }
  *above = more;
  return a.found;
}

/* Positions of those above `level`, and of the first `ties` at it; ascending. */
static i64 take_level(const float *x, i64 n, u32 level, i64 ties, i64 *out) {
  i64 taken = 0;
  for (i64 at = 0; at < n; at += 32) {
    i64 m = least(32, n - at);
    u32 mask = 0;
    if (m == 32 && level) mask = reach32(x + at, level);
    else for (i64 i = 0; i < m; i++) mask |= (u32)((bits_of(x[at + i]) & MAGNITUDE) >= level) << i;
    for (; mask; mask &= mask - 1) {
      i64 i = at + __builtin_ctz(mask);
      if ((bits_of(x[i]) & MAGNITUDE) > level || ties-- > 0) out[taken++] = i;
    }
  }
  return taken;
}

/* Candidates for the largest: where they are, and their magnitudes. found < 0: there was no room for all. */
typedef struct { i64 *at; u32 *bits; i64 room, found; } Few;

/* Those of x[0 ... n-1] that reach `level`, which is not 0; positions count from `first`. */
static void collect(Few *few, const float *x, i64 first, i64 n, u32 level) {
  for (i64 at = 0; at < n && few->found >= 0; at += 32) {
    i64 m = least(32, n - at);
    u32 mask = 0;
    if (m == 32) mask = reach32(x + at, level);
    else for (i64 i = 0; i < m; i++) mask |= (u32)((bits_of(x[at + i]) & MAGNITUDE) >= level) << i;
    if (mask && few->found + 32 > few->room) { few->found = -1; return; }
    for (; mask; mask &= mask - 1) {
      i64 i = at + __builtin_ctz(mask);
      few->at[few->found] = first + i;
      few->bits[few->found++] = bits_of(x[i]) & MAGNITUDE;
    }
  }
}

/* Candidates of one range after another; with y, of combine(x, y), and left(x, y) is written to `out` on the way. If
 * several threads do so, ranges are in any order, and `runs` has the first candidate of each chunk, with how many there
 * are. */
typedef struct { i64 first, count; } Run;
typedef struct { Combine combine, left; const float *x, *y; float *out; } Pair;
typedef struct { Pair pair; i64 n; u32 level; Few *few; Run *runs; u32 *peak; } Search;

/* Short parts: memory is read ahead while candidates are collected. Parts of 4096 elements take 1.5 times as long. */
enum { PART = 128, PARTS_AHEAD = 4 };

static void collect_chunk(const Search *a, i64 at, i64 m, Few *few) {
  const Pair *p = &a->pair;
  if (!p->y) { collect(few, p->x + at, at, m, a->level); return; }
  float part[PART]; /* looked through while the first cache has it */
  for (i64 end = at + m, count; at < end; at += count) {
    count = least(PART, end - at);
    i64 ahead = at + PARTS_AHEAD * PART;
    ask_for(p->x + ahead, least(PART, a->n - ahead));
    ask_for(p->y + ahead, least(PART, a->n - ahead));
    raise_to(a->peak, p->combine(p->x + at, p->y + at, part, count));
    collect(few, part, at, count, a->level);
    if (p->left != p->combine) p->left(p->x + at, p->y + at, part, count);
    if (a->n < LONG) memcpy(p->out + at, part, (size_t)count * sizeof *part);
    else put_chunk(p->out + at, part, count);
  }
}

static void collect_range(void *state, i64 from, i64 to) {
  const Search *a = state;
  i64 places[CHUNK + 32];
  u32 bits[CHUNK + 32];
  for (i64 at = from; at < to; at += CHUNK) {
    Few some = {places, bits, CHUNK + 32, a->level ? 0 : -1};
    collect_chunk(a, at, least(CHUNK, to - at), &some);
    if (some.found < 1) continue;
    Run run = {__atomic_fetch_add(&a->few->found, some.found, __ATOMIC_RELAXED), some.found};
    a->runs[at / CHUNK] = run;
    if (run.first + run.count > a->few->room) continue;
    memcpy(a->few->at + run.first, places, (size_t)run.count * sizeof *places);
    memcpy(a->few->bits + run.first, bits, (size_t)run.count * sizeof *bits);
  }
  end_chunks();
}

/* All candidates. Returns the runs in which they ascend, `count` of them, or NULL if they all do. */
static Run *collect_all(const Search *a, i64 *count) {
  Run *runs = NULL;
  i64 n = a->n;
  *count = (n + CHUNK - 1) / CHUNK;
  if (divides(n)) runs = calloc((size_t)*count, sizeof *runs);
  if (!runs) {
    for (i64 at = 0; at < n; at += CHUNK) collect_chunk(a, at, least(CHUNK, n - at), a->few);
    end_chunks();
    return NULL;
  }
  Search shared = *a;
  shared.runs = runs;
  run_parallel(collect_range, &shared, n, CHUNK, n);
  if (a->few->found > a->few->room) a->few->found = -1;
  return runs;
}

/* The candidates of one run above `level`, and the first `ties` at it; returns where the next one goes, before `end`. No
 * branch but the last, because no other could be predicted. */
static i64 *take_run(const Few *few, Run run, u32 level, i64 *ties, i64 *out, const i64 *end) {
  for (i64 i = run.first; i < run.first + run.count && out < end; i++) {
    i64 tie = (few->bits[i] == level) & (*ties > 0);
    *out = few->at[i];
    out += (few->bits[i] > level) | tie;
    *ties -= tie;
  }
  return out;
}

/* Collect those that reach search->level, and among them count out the k largest. 0 if that did not work (no level, too
 * few, too many), else *kth is the k-th magnitude. With y, pair.out is filled in any case. */
static int largest_from(Search *search, i64 k, i64 *out, u32 *kth) {
  i64 count, above;
  Few *few = search->few;
  few->found = search->level ? 0 : -1;
  Run *runs = search->level || search->pair.y ? collect_all(search, &count) : NULL, all = {0, few->found};
  if (few->found >= k) {
    u32 level = *kth = kth_magnitude(few->bits, few->found, k, &above);
    i64 ties = k - above, *end = out + k;
    if (!runs) take_run(few, all, level, &ties, out, end);
    else for (i64 r = 0; r < count; r++) out = take_run(few, runs[r], level, &ties, out, end);
  }
  free(runs);
  return few->found >= k;
}

/* The k-th magnitude of the last search in a layer, and how far below it the next one begins, as a fraction: it shrinks
 * slowly while enough are found, doubles if they are too few and halves if they are too many. A guess saves the sample;
 * whatever it is, the result is the same. */
typedef struct { float level, margin; } Guess;
enum { ENOUGH, TOO_FEW, TOO_MANY };
#define FIRST_MARGIN 0.1f
#define WIDEST_MARGIN 0.2f /* beyond it levels change too much from step to step: a sample is better */

static u32 guessed_level(const Guess *guess) {
  return guess && guess->level > 0 && guess->margin <= WIDEST_MARGIN ? bits_of(guess->level * (1 - guess->margin)) : 0;
}

static void note_guess(Guess *guess, int outcome, u32 kth) {
  static const float factors[3] = {0.98f, 2, 0.5f};
  if (!guess) return;
  if (!(guess->margin > 0)) guess->margin = FIRST_MARGIN;
  guess->margin *= factors[outcome];
  guess->level = float_of(kth);
}

/* A level four deviations low, from a sample of which `keep` are above it. */
static u32 sampled_level(const Search *a, i64 samples, i64 keep) {
  i64 stride = a->n / samples, above;
  const Pair *p = &a->pair;
  u32 *bits = a->few->bits;
  float sign = p->combine == subtract_mended ? -1 : 1; /* x + -1 * y is x - y to the bit */
  for (i64 i = 0; i < samples; i++) {
    float sample = p->x[i * stride];
    bits[i] = bits_of(p->y ? saturated(sample + sign * p->y[i * stride]) : sample);
  }
  return kth_magnitude(bits, samples, keep, &above);
}

/* From a level that was guessed or sampled: among few candidates the k largest are counted out. 0 if that did not work
 * (no memory, too few, too many), which costs time alone. With y it is the largest of combine(x, y), and left(x, y) is in
 * pair.out, whatever is returned. */
static int largest_of_few(Pair pair, i64 n, i64 k, i64 *out, u32 *peak, Guess *guess) {
  i64 samples = n / 64 < 16384 ? n / 64 : 16384;
  double expected = (double)k * (double)samples / (double)n;
  i64 keep = (i64)(expected + 4 * sqrt(expected)) + 8, room = 2 * keep * (n / samples) + 64;
  Few few = {NULL, NULL, room, -1};
  Search search = {pair, n, 0, &few, NULL, peak};
  u32 kth = 0;
  int outcome = ENOUGH, done = 0;
  if (keep < samples && room <= n) {
    few.at = malloc((size_t)room * sizeof *few.at);
    few.bits = malloc((size_t)(room > samples ? room : samples) * sizeof *few.bits);
  }
  if (few.at && few.bits && (search.level = guessed_level(guess))) {
    done = largest_from(&search, k, out, &kth);
    if (!done) outcome = few.found < 0 ? TOO_MANY : TOO_FEW;
  }
  if (!done) {
    search.level = few.at && few.bits ? sampled_level(&search, samples, keep) : 0;
    done = largest_from(&search, k, out, &kth);
  }
  note_guess(guess, outcome, kth);
  free(few.at);
  free(few.bits);
  return done;
}

static int worth_a_sample(i64 n, i64 k) { return n >= 4096 && k <= n / 8; }

/* 1 <= k <= n: positions of the k largest |x|, ascending; among equals the first. */
static void largest_guessed(const float *x, i64 n, i64 k, i64 *out, Guess *guess) {
  i64 above;
  u32 peak = 0;
  if (worth_a_sample(n, k) && largest_of_few((Pair){.x = x}, n, k, out, &peak, guess)) return;
  u32 level = kth_magnitude((const any32 *)x, n, k, &above);
  take_level(x, n, level, k - above, out);
}

void tw_largest(const float *x, i64 n, i64 k, i64 *out) { largest_guessed(x, n, k, out, NULL); }

/* The k largest of combine(x, y); left(x, y) is in pair.out. Returns the largest magnitude before saturation, as bits. */
static u32 combine_largest(Pair pair, i64 n, i64 k, i64 *positions, Guess *guess) {
  u32 peak = 0;
  i64 above;
  int is_sampled = worth_a_sample(n, k);
  if (is_sampled && largest_of_few(pair, n, k, positions, &peak, guess)) return peak;
  if (!is_sampled || pair.left != pair.combine) peak = combine_all(pair.combine, pair.x, pair.y, n, pair.out);
  u32 level = kth_magnitude((const any32 *)pair.out, n, k, &above);
  take_level(pair.out, n, level, k - above, positions);
  if (pair.left != pair.combine) combine_all(pair.left, pair.x, pair.y, n, pair.out);
  return peak;
}

/* sums = x + y, saturated, and of these the k largest; returns the largest magnitude before saturation, as bits */
static u32 add_largest(const float *x, const float *y, i64 n, i64 k, float *sums, i64 *positions, Guess *guess) {
  return combine_largest((Pair){add_mended, add_mended, x, y, sums}, n, k, positions, guess);
}

/* ---- levels that are given ---- */
typedef struct { const float *x; float level; u8 *bits; i64 found; } Reach;

static void reaching_range(void *state, i64 from, i64 to) {
  Reach *a = state;
  const float *x = a->x;
  i64 found = 0;
  for (i64 at = from; at < to; at += 32) {
    u32 mask = 0;
    if (at + 32 <= to) mask = at_least32(x + at, a->level);
    else for (i64 i = at; i < to; i++) mask |= (u32)(fabsf(x[i]) >= a->level) << (i - at);
    memcpy(a->bits + at / 8, &mask, 4);
    found += __builtin_popcount(mask);
  }
  add_to(&a->found, found);
}

/* A bit for each |x| >= level, in whole words; returns how many there are. */
i64 tw_reaching(const float *x, i64 n, float level, u8 *bits) {
  Reach a = {x, level, bits, 0};
  run_parallel(reaching_range, &a, n, CHUNK, n);
  return a.found;
}

static void below_range(void *state, i64 from, i64 to) {
  Reach *a = state;
  float level = a->level;
  i64 below = 0;
  for (i64 at = from; at < to; at += CHUNK) {
    i64 m = least(CHUNK, to - at);
    const float *x = a->x + at;
    i32 few = 0; /* as wide as what is compared, so that it vectorises */
    for (i64 i = 0; i < m; i++) few += fabsf(x[i]) < level;
    below += few;
  }
  add_to(&a->found, below);
}

i64 tw_count_below(const float *x, i64 n, float level) {
  Reach a = {x, level, NULL, 0};
  run_parallel(below_range, &a, n, CHUNK, n);
  return a.found;
}

/* ---- products of few columns and rows ---- */
/* sum = l[0] * rows[0] + l[1] * rows[1] + ..., added in this order, to what sum holds unless it is the first. Up to
 * four at once, so that sums stay in registers. */
static void add_rows(const float *l, const float *rows, i64 stride, i64 count, float *restrict sum, i64 m, int first) {
  const float *a = rows, *b = a + stride, *c = b + stride, *d = c + stride;
#define EACH(e) for (i64 j = 0; j < m; j++) sum[j] = (e)
#define ONE (l[0] * a[j])
#define MORE (sum[j] + l[0] * a[j])
#define TWO(x) (x + l[1] * b[j])
#define THREE(x) (TWO(x) + l[2] * c[j])
#define FOUR(x) (THREE(x) + l[3] * d[j])
  switch (count) {
    case 1: if (first) EACH(ONE); else EACH(MORE); break;
    case 2: if (first) EACH(TWO(ONE)); else EACH(TWO(MORE)); break;
    case 3: if (first) EACH(THREE(ONE)); else EACH(THREE(MORE)); break;
    default: if (first) EACH(FOUR(ONE)); else EACH(FOUR(MORE));
  }
}

/* out = the sum over i of left[i, row] * right[i, column], in this order; `subtract`: taken from out instead. */
typedef struct { const float *left, *right; i64 rank, rows, columns; float *out; int subtract; } Product;
enum { WIDTH = 1024 };

static void product_range(void *state, i64 from, i64 to) { /* of pieces of rows */
  const Product *a = state;
  i64 pieces = (a->columns + WIDTH - 1) / WIDTH, row = from / pieces, at = from % pieces * WIDTH;
  float part[WIDTH], l[4];
  for (; from < to; from++) {
    i64 m = least(WIDTH, a->columns - at);
    float *o = a->out + row * a->columns + at, *sum = a->subtract ? part : o;
    for (i64 i = 0; i < a->rank; i += 4) {
      i64 count = least(4, a->rank - i);
      for (i64 k = 0; k < count; k++) l[k] = a->left[(i + k) * a->rows + row];
      add_rows(l, a->right + i * a->columns + at, a->columns, count, sum, m, i == 0);
    }
    if (a->subtract) for (i64 j = 0; j < m; j++) o[j] -= part[j];
    if (peak_bits(o, m) >= INFINITE) for (i64 j = 0; j < m; j++) o[j] = saturated(o[j]);
    if ((at += WIDTH) >= a->columns) { at = 0; row++; }
  }
}

static void low_rank(const float *left, const float *right, i64 rank, i64 rows, i64 columns, float *out, int subtract) {
  Product a = {left, right, rank, rows, columns, out, subtract};
  run_parallel(product_range, &a, rows * ((columns + WIDTH - 1) / WIDTH), 1, rows * columns);
}

void tw_low_rank(const float *left, const float *right, i64 rank, i64 rows, i64 columns, float *out) {
  low_rank(left, right, rank, rows, columns, out, 0);
}

void tw_subtract_low_rank(float *matrix, const float *left, const float *right, i64 rank, i64 rows, i64 columns) {
  low_rank(left, right, rank, rows, columns, matrix, 1);
}

/* ---- products that a rank sends: summed in whatever order is quickest, since no other rank computes them ---- */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8, STRIP = 8192 };

static float sum_lanes(const lanes *x, const lanes *y) {
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += (*x)[i] + (*y)[i];
  return sum;
}

/* sums[i] += the product of x and rows[i], four rows at most; `stride` between rows. */
static void add_products(const float *x, const float *rows, i64 stride, i64 count, float *sums, i64 m) {
  const float *a = rows, *b = a + (count > 1 ? stride : 0), *c = b + (count > 2 ? stride : 0),
              *d = c + (count > 3 ? stride : 0);
  lanes p = {0}, q = {0}, r = {0}, s = {0}, p2 = {0}, q2 = {0}, r2 = {0}, s2 = {0};
#define AT(row, j) (*(const lanes *)((row) + (j)))
  i64 j = 0;
  for (; j + 2 * LANES <= m; j += 2 * LANES) { /* twice four sums, because an addition takes that many turns */
    lanes y = AT(x, j), y2 = AT(x, j + LANES);
    p += y * AT(a, j), p2 += y2 * AT(a, j + LANES);
    q += y * AT(b, j), q2 += y2 * AT(b, j + LANES);
    r += y * AT(c, j), r2 += y2 * AT(c, j + LANES);
    s += y * AT(d, j), s2 += y2 * AT(d, j + LANES);
  }
#undef AT
  float found[4] = {sum_lanes(&p, &p2), sum_lanes(&q, &q2), sum_lanes(&r, &r2), sum_lanes(&s, &s2)};
  for (; j < m; j++) {
    found[0] += x[j] * a[j];
    found[1] += x[j] * b[j];
    found[2] += x[j] * c[j];
    found[3] += x[j] * d[j];
  }
  for (i64 i = 0; i < count; i++) sums[i] += found[i];
}

typedef struct { const float *x, *y, *basis; i64 rank, rows, columns; float *out, *seen; u32 peak; } Projection;

static void project_range(void *state, i64 from, i64 to) { /* of rows */
  Projection *a = state;
  i64 rank = a->rank, rows = a->rows, columns = a->columns;
  u32 peak = 0;
  for (i64 row = from; row < to; row++) {
    for (i64 i = 0; i < rank; i++) a->seen[i * rows + row] = 0;
    for (i64 at = 0; at < columns; at += STRIP) {
      i64 m = least(STRIP, columns - at), here = row * columns + at;
      u32 strip = add_mended(a->x + here, a->y + here, a->out + here, m);
      peak = strip > peak ? strip : peak;
      for (i64 i = 0; i < rank; i += 4) {
        i64 count = least(4, rank - i);
        float sums[4] = {0};
        add_products(a->out + here, a->basis + i * columns + at, columns, count, sums, m);
        for (i64 k = 0; k < count; k++) a->seen[(i + k) * rows + row] += sums[k];
      }
    }
  }
  raise_to(&a->peak, peak);
}

/* out = x + y, saturated; seen[i, row] = the product of basis[i] and that row of out, while it is in the cache. Returns
 * the largest magnitude before saturation. */
static u32 add_and_project(const float *x, const float *y, const float *basis, i64 rank, i64 rows, i64 columns,
                           float *out, float *seen) {
  Projection a = {x, y, basis, rank, rows, columns, out, seen, 0};
  run_parallel(project_range, &a, rows, 1, rows * columns);
  return a.peak;
}

void tw_add_and_project(const float *x, const float *y, const float *basis, i64 rank, i64 rows, i64 columns, float *out,
                        float *seen) {
  add_and_project(x, y, basis, rank, rows, columns, out, seen);
}

/* out[i] = the sum over rows of basis[i, row] * matrix[row]. */
static void combine_range(void *state, i64 from, i64 to) { /* of columns */
  const Projection *a = state;
  i64 rank = a->rank, rows = a->rows, columns = a->columns;
  float l[4];
  for (i64 at = from; at < to; at += STRIP) {
    i64 m = least(STRIP, to - at);
    for (i64 row = 0; row < rows; row += 4) {
      i64 count = least(4, rows - row);
      for (i64 i = 0; i < rank; i++) {
        for (i64 k = 0; k < count; k++) l[k] = a->basis[i * rows + row + k];
        add_rows(l, a->x + row * columns + at, columns, count, a->out + i * columns + at, m, row == 0);
      }
    }
  }
}

/* Columns are divided evenly: a thread that takes few of them at a time would read little of each row. */
void tw_combine_rows(const float *basis, const float *matrix, i64 rank, i64 rows, i64 columns, float *out) {
  Projection a = {.x = matrix, .basis = basis, .rank = rank, .rows = rows, .columns = columns, .out = out};
  i64 share = (columns + num_threads - 1) / num_threads;
  run_parallel(combine_range, &a, columns, least(STRIP, (share + 15) / 16 * 16), rows * columns);
}

/* The sum of a[i] * b[i] along the tree of reference.tree_sum; `sums` has room for a power of two, at least n. */
static double tree_dot(const double *a, const double *b, i64 n, double *sums, i64 width) {
  for (i64 i = 0; i < n; i++) sums[i] = a[i] * b[i];
  memset(sums + n, 0, (size_t)(width - n) * sizeof *sums);
  for (i64 half = width / 2; half >= 1; half /= 2)
    for (i64 i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0];
}

/* matrices.orthonormal, in place; `before` has room for one number a row. */
void tw_orthonormal(double *basis, i64 rows, i64 n, double nothing, double *before, double *sums, i64 width) {
  for (i64 j = 0; j < rows; j++) {
    double *row = basis + j * n, peak = 0;
    for (i64 i = 0; i < n; i++) peak = fabs(row[i]) > peak ? fabs(row[i]) : peak;
    if (peak > 0) for (i64 i = 0; i < n; i++) row[i] /= peak;
    before[j] = tree_dot(row, row, n, sums, width);
  }
  for (i64 j = 0; j < rows; j++) {
    double *row = basis + j * n, energy = tree_dot(row, row, n, sums, width);
    if (energy <= nothing * before[j]) { memset(row, 0, (size_t)n * sizeof *row); continue; }
    double length = sqrt(energy);
    for (i64 i = 0; i < n; i++) row[i] /= length;
    for (double *later = row + n; later < basis + rows * n; later += n) {
      double along = tree_dot(later, row, n, sums, width);
      for (i64 i = 0; i < n; i++) later[i] -= along * row[i];
    }
  }
}

/* ---- sparse vectors ---- */
enum { POSITION = 8 }; /* as much work as so many numbers in a row */

/* Threads may share the positions of a vector if these differ, as they do where they ascend. */
typedef struct { const float *x; float *out, *kept; const i64 *positions; const float *values; i64 n, outside; } Sparse;

static int ascends(const i64 *positions, i64 k) {
  int wrong = 0;
  for (i64 i = 1; i < k; i++) wrong |= positions[i] <= positions[i - 1];
  return !wrong;
}

static i64 run_sparse(Job job, Sparse *a, i64 k) {
  if (divides(POSITION * k) && ascends(a->positions, k)) run_parallel(job, a, k, 1, POSITION * k);
  else job(a, 0, k);
  return a->outside;
}

static void scatter_range(void *state, i64 from, i64 to) {
  Sparse *a = state;
  i64 outside = 0;
  for (i64 i = from; i < to; i++) {
    if ((u64)a->positions[i] < (u64)a->n) a->out[a->positions[i]] = a->values[i];
    else outside++;
  }
  add_to(&a->outside, outside);
}

static void take_range(void *state, i64 from, i64 to) {
  Sparse *a = state;
  i64 outside = 0;
  for (i64 i = from; i < to; i++) {
    if ((u64)a->positions[i] < (u64)a->n) a->kept[i] = a->x[a->positions[i]];
    else outside++;
  }
  add_to(&a->outside, outside);
}

static void subtract_range(void *state, i64 from, i64 to) {
  Sparse *a = state;
  float *x = a->out;
  i64 outside = 0;
  for (i64 i = from; i < to; i++) {
    i64 at = a->positions[i];
    if ((u64)at < (u64)a->n) x[at] = saturated(x[at] - a->values[i]);
    else outside++;
  }
  add_to(&a->outside, outside);
}

/* out[positions] = values. Returns how many positions are outside; those are left alone. */
i64 tw_scatter(const float *values, const i64 *positions, i64 k, float *out, i64 n) {
  Sparse a = {.values = values, .positions = positions, .out = out, .n = n};
  return run_sparse(scatter_range, &a, k);
}

/* out = x[positions]; the same return. */
i64 tw_take(const float *x, i64 n, const i64 *positions, i64 k, float *out) {
  Sparse a = {.x = x, .positions = positions, .kept = out, .n = n};
  return run_sparse(take_range, &a, k);
}

/* x[positions] -= values, saturated; the same return. */
i64 tw_subtract_at(float *x, i64 n, const i64 *positions, const float *values, i64 k) {
  Sparse a = {.values = values, .positions = positions, .out = x, .n = n};
  return run_sparse(subtract_range, &a, k);
}

/* ---- gaps between ascending positions ---- */
/* The sum of (gap >> shift); -1 if positions do not ascend from 0. */
static i64 gap_sum(const i64 *positions, i64 k, int shift) {
  i64 sum = 0, before = -1, wrong = 0;
  for (i64 i = 0; i < k; before = positions[i++]) {
    wrong |= positions[i] <= before;
    sum += (positions[i] - before - 1) >> shift;
  }
  return wrong ? -1 : sum;
}

/* Bytes of the gaps in Rice's code with so many low bits; -1 if positions do not ascend. */
static i64 rice_bytes(const i64 *positions, i64 k, int shift) {
  i64 sum = gap_sum(positions, k, shift);
  return sum < 0 ? -1 : (k * shift + 7) / 8 + (k + sum + 7) / 8;
}

/* gaps.rice_parameter: downhill from `start`, below `most`; its bytes are left in `nbytes`. */
static int rice_parameter(const i64 *positions, i64 k, int start, int most, i64 *nbytes) {
  int best = start;
  i64 cost = rice_bytes(positions, k, best);
  for (int way = -1; way <= 1 && cost >= 0; way += 2)
    while (best + way >= 0 && best + way < most) {
      i64 next = rice_bytes(positions, k, best + way);
      if (next >= cost) break;
      best += way;
      cost = next;
    }
  *nbytes = cost;
  return best;
}

/* Low bits of the gaps, then the rest in unary: so many zeros and a one. rice_bytes was asked how much room `out` must
 * have for that; it is zero. */
static void rice_encode(const i64 *positions, i64 k, int shift, u8 *out) {
  u64 held = 0, mask = (1ull << shift) - 1;
  i64 before = -1, at = 0;
  int have = 0;
  for (i64 i = 0; i < k && shift; before = positions[i++]) {
    held |= ((u64)(positions[i] - before - 1) & mask) << have;
    for (have += shift; have >= 8; have -= 8, held >>= 8) *out++ = (u8)held;
  }
  if (have) *out++ = (u8)held;
  before = -1;
  for (i64 i = 0; i < k; before = positions[i++], at++) {
    at += (positions[i] - before - 1) >> shift;
    out[at >> 3] |= (u8)(1 << (at & 7));
  }
}

static inline u64 word_at(const u8 *in, i64 nbytes, i64 at) {
  u64 word = 0;
  memcpy(&word, in + at, (size_t)least(8, nbytes - at));
  return word;
}

static i64 count_ones(const u8 *in, i64 nbytes) {
  i64 ones = 0;
  for (i64 at = 0; at < nbytes; at += 8) ones += __builtin_popcountll(word_at(in, nbytes, at));
  return ones;
}

/* Parts of a bitmap, of whole words: how many ones each has, then where the first of them goes. */
enum { PARTS = 64 };
typedef struct { const u8 *in; i64 nbytes, part, ones[PARTS], *out; } Bitmap;

static i64 *find_ones(const u8 *in, i64 nbytes, i64 from, i64 to, i64 *out) {
  for (i64 at = from; at < to; at += 8)
    for (u64 word = word_at(in, nbytes, at); word; word &= word - 1) *out++ = 8 * at + __builtin_ctzll(word);
  return out;
}

static void count_parts_range(void *state, i64 from, i64 to) {
  Bitmap *a = state;
  for (i64 i = from; i < to; i++) {
    i64 first = least(i * a->part, a->nbytes);
    a->ones[i] = count_ones(a->in + first, least(a->part, a->nbytes - first));
  }
}

static void find_parts_range(void *state, i64 from, i64 to) {
  const Bitmap *a = state;
  for (i64 i = from; i < to; i++)
    find_ones(a->in, a->nbytes, i * a->part, least((i + 1) * a->part, a->nbytes), a->out + a->ones[i]);
}

/* Positions of the ones; room for all of them. */
void tw_ones(const u8 *in, i64 nbytes, i64 *out) {
  if (!divides(8 * nbytes)) { find_ones(in, nbytes, 0, nbytes, out); return; }
  Bitmap a = {.in = in, .nbytes = nbytes, .part = (nbytes / PARTS / 8 + 1) * 8, .out = out};
  run_parallel(count_parts_range, &a, PARTS, 1, 8 * nbytes);
  for (i64 i = 0, before = 0; i < PARTS; i++) {
    i64 here = a.ones[i];
    a.ones[i] = before;
    before += here;
  }
  run_parallel(find_parts_range, &a, PARTS, 1, 8 * nbytes);
}

/* What rice_encode wrote, for k positions below n: how many ones the unary part has (-1: more than k), with the
 * positions in `out` if they are k; -2 if one of them is not below n. */
static i64 rice_decode(const u8 *in, i64 nbytes, i64 k, int shift, i64 n, i64 *out) {
  i64 low_bytes = (k * shift + 7) / 8, found = 0, before = -1;
  const u8 *low = in, *unary = in + low_bytes;
  for (i64 at = 0; at < nbytes - low_bytes; at += 8)
    for (u64 word = word_at(unary, nbytes - low_bytes, at); word; word &= word - 1) {
      if (found == k) return -1;
      out[found++] = 8 * at + __builtin_ctzll(word);
    }
  if (found < k) return found;
  u64 held = 0, mask = (1ull << shift) - 1;
  i64 end = -1;
  int have = 0;
  for (i64 i = 0; i < k; i++) {
    i64 gap = out[i] - end - 1;
    if (gap > n >> shift) return -2;
    end = out[i];
    for (; have < shift; have += 8) held |= (u64)*low++ << have;
    before += 1 + (gap << shift | (i64)(held & mask));
    held >>= shift;
    have -= shift;
    if (before >= n) return -2;
    out[i] = before;
  }
  return k;
}

/* ---- coded positions, see kernels/positions.py ---- */
enum { EXPLICIT, BITMAP, RICE };

/* k ascending positions (some) below n in the cheapest coding; `out` has room for ten bytes and k numbers of `width` bits.
 * Returns the bytes written << 2 | the coding, or -1 if the positions are none of that kind. */
i64 tw_encode_positions(const i64 *positions, i64 k, i64 n, int start, int width, u8 *out) {
  i64 rice, cost = (k * width + 7) / 8;
  int r = rice_parameter(positions, k, start, width, &rice), coding = EXPLICIT;
  if (rice < 0 || positions[k - 1] >= n) return -1;
  if ((n + 7) / 8 < cost) { coding = BITMAP; cost = (n + 7) / 8; }
  if (rice < cost) { coding = RICE; cost = rice; }
  u8 *at = out;
  *at++ = (u8)(coding == RICE ? coding | r << 2 : coding);
  u64 count = (u64)k;
  for (; count >= 0x80; count >>= 7) *at++ = (u8)(count | 0x80);
  *at++ = (u8)count;
  memset(at, 0, (size_t)cost);
  if (coding == EXPLICIT) tw_pack_bits(positions, k, width, at);
  else if (coding == RICE) rice_encode(positions, k, r, at);
  else for (i64 i = 0; i < k; i++) at[positions[i] >> 3] |= (u8)(1 << (positions[i] & 7));
  return (at + cost - out) << 2 | coding;
}

static int fills_up(const u8 *in, i64 nbytes, i64 bits) { /* so many bits take these bytes, and zeros fill the last */
  return nbytes == (bits + 7) / 8 && (bits % 8 == 0 || in[nbytes - 1] >> bits % 8 == 0);
}

/* 0 if the bytes hold exactly k positions, which are then in `out`: ascending and below n. Of none, only the form that
 * encoders write. */
int tw_decode_positions(const u8 *in, i64 nbytes, i64 k, i64 n, int width, i64 *out) {
  if (nbytes < 2 || k < 0) return 1;
  if (k == 0) return nbytes != 2 || in[0] != EXPLICIT || in[1];
  int coding = in[0] & 3, r = in[0] >> 2, shift = 0;
  u64 announced = 0;
  i64 at = 1;
  for (;; at++, shift += 7) { /* nine bytes at most */
    if (at == nbytes || shift > 56) return 1;
    announced |= (u64)(in[at] & 0x7F) << shift;
    if (in[at] < 0x80) break;
  }
  at++;
  in += at;
  nbytes -= at;
  if (announced != (u64)k || (coding != RICE && r)) return 1;
  if (coding == BITMAP) {
    if (!fills_up(in, nbytes, n) || count_ones(in, nbytes) != k) return 1;
    tw_ones(in, nbytes, out);
    return 0;
  }
  if (coding == EXPLICIT) {
    if (!fills_up(in, nbytes, k * width)) return 1;
    tw_unpack_bits(in, k, width, out);
    for (i64 i = 1; i < k; i++) if (out[i] <= out[i - 1]) return 1;
    return out[k - 1] >= n;
  }
  if (coding != RICE || r > width) return 1;
  i64 low = (k * r + 7) / 8;
  if (nbytes < low + (k + 7) / 8 || nbytes > low + (k + (n >> r) + 7) / 8) return 1;
  return rice_decode(in, nbytes, k, r, n, out) != k;
}

enum { AHEAD = 16 }; /* positions whose places are asked for in advance */

static void take_out_range(void *state, i64 from, i64 to) {
  const Sparse *a = state;
  const i64 *positions = a->positions;
  for (i64 i = from; i < to; i++) {
    if (i + AHEAD < to) __builtin_prefetch(a->out + positions[i + AHEAD], 1);
    a->kept[i] = a->out[positions[i]];
    a->out[positions[i]] = 0;
  }
}

/* Move the numbers at k positions, which ascend, to `kept`; that leaves zeros. */
static void take_out(float *x, const i64 *positions, i64 k, float *kept) {
  Sparse a = {.out = x, .kept = kept, .positions = positions};
  run_parallel(take_out_range, &a, k, 1, POSITION * k);
}

/* rest = x + y, saturated, but zero at its k largest magnitudes: these are in `kept`. The return is that of coding. */
i64 tw_take_largest(const float *x, const float *y, i64 n, i64 k, int start, int width, float *rest, float *kept,
                    i64 *positions, u8 *coded) {
  add_largest(x, y, n, k, rest, positions, NULL);
  take_out(rest, positions, k, kept);
  return tw_encode_positions(positions, k, n, start, width, coded);
}

/* out += values * weight at coded positions; 0 if these are what was promised. `at` has room for them. */
static int add_sparse(const wire_float *values, i64 count, const u8 *coded, i64 nbytes, i64 n, int width, float weight,
                      i64 *at, float *out) {
  if (tw_decode_positions(coded, nbytes, count, n, width, at)) return 1;
  for (i64 i = 0; i < count; i++) {
    if (i + AHEAD < count) __builtin_prefetch(out + at[i + AHEAD], 1);
    out[at[i]] += values[i] * weight;
  }
  return 0;
}

/* A few ranks' positions are decoded side by side, into `at` + most * rank; then each thread adds all of their values to its
 * own ranges of `out`, so that each sum is taken in the order of ranks. The first ranks begin with zeros. */
typedef struct {
  const wire_float *const *values;
  const i64 *counts;
  const u8 *const *coded;
  const i64 *nbytes;
  i64 n, most, *at, ranks;
  int width, zero;
  float weight, *out;
  u32 wrong;
} Sum;

static void decode_ranks_range(void *state, i64 from, i64 to) {
  Sum *a = state;
  for (i64 r = from; r < to; r++)
    if (tw_decode_positions(a->coded[r], a->nbytes[r], a->counts[r], a->n, a->width, a->at + r * a->most))
      raise_to(&a->wrong, 1);
}

static i64 first_from(const i64 *positions, i64 k, i64 least_position) { /* the first that is not below */
  i64 low = 0, high = k;
  while (low < high) {
    i64 middle = (low + high) / 2;
    if (positions[middle] < least_position) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void sparse_sum_range(void *state, i64 from, i64 to) {
  const Sum *a = state;
  float weight = a->weight, *out = a->out;
  if (a->zero) memset(out + from, 0, (size_t)(to - from) * sizeof *out);
  for (i64 r = 0; r < a->ranks; r++) {
    const i64 *at = a->at + r * a->most, k = a->counts[r];
    const wire_float *values = a->values[r];
    for (i64 i = from ? first_from(at, k, from) : 0; i < k && at[i] < to; i++) out[at[i]] += values[i] * weight;
  }
}

/* tw_sparse_mean, if a few threads share it. */
static int sum_together(Sum a, i64 ranks) {
  i64 together = least(num_threads, ranks);
  a.at = malloc((size_t)(a.most * together) * sizeof *a.at);
  if (!a.at) return 1;
  a.zero = 1;
  for (i64 r = 0; r < ranks && !a.wrong; r += together) {
    a.ranks = least(together, ranks - r);
    run_parallel(decode_ranks_range, &a, a.ranks, 1, a.n);
    if (!a.wrong) run_parallel(sparse_sum_range, &a, a.n, CHUNK, a.n);
    a.values += together, a.counts += together, a.coded += together, a.nbytes += together;
    a.zero = 0;
  }
  free(a.at);
  return (int)a.wrong;
}

/* tw_sparse_mean; `at` has room for the positions of a rank. */
static int sum_sparse(const wire_float *const *values, const i64 *counts, const u8 *const *coded, const i64 *nbytes,
                      i64 ranks, i64 n, int width, float weight, i64 *at, float *out) {
  if (divides(n)) {
    Sum a = {values, counts, coded, nbytes, .n = n, .most = 1, .width = width, .weight = weight, .out = out};
    for (i64 r = 0; r < ranks; r++) a.most = counts[r] > a.most ? counts[r] : a.most;
    return sum_together(a, ranks);
  }
  fill_zeros(out, n);
  for (i64 r = 0; r < ranks; r++)
    if (add_sparse(values[r], counts[r], coded[r], nbytes[r], n, width, weight, at, out)) return 1;
  return 0;
}

/* out = the sum of values * weight at positions that are coded. 0 if they all are what was promised. */
int tw_sparse_mean(const float *const *values, const i64 *counts, const u8 *const *coded, const i64 *nbytes, i64 ranks,
                   i64 n, int width, float weight, float *out) {
  i64 most = 0;
  for (i64 r = 0; r < ranks; r++) {
    if (counts[r] > n || counts[r] > 8 * nbytes[r]) return 1; /* before there is room for them */
    most = counts[r] > most ? counts[r] : most;
  }
  i64 *at = malloc((size_t)most * sizeof *at);
  int wrong = !at || sum_sparse(values, counts, coded, nbytes, ranks, n, width, weight, at, out);
  free(at);
  return wrong;
}

static void block_peaks_range(void *state, i64 from, i64 to) {
  const Blocks *a = state;
  float *out = a->norms + from / a->block;
  for (i64 at = from; at < to; at += a->block) *out++ = float_of(peak_bits(a->x + at, least(a->block, to - at)));
}

void tw_block_peaks(const float *x, i64 n, i64 block, float *out) {
  Blocks a = {.x = x, .block = block, .norms = out};
  if (divides(n) && is_wide(block)) wide_peaks(&a, n);
  else run_parallel(block_peaks_range, &a, n, block, n);
}

/* ---- count sketches: three rows of cells, see kernels/sketch.py ---- */
enum { ROWS = 3 };

/* Cells and signs of some items in each row; rows are `apart`. Memory-safe for whatever the items are. */
static void sketch_places(const i64 *items, i64 n, i64 apart, i64 cells, i64 lanes, const u32 *counters, i64 *at,
                          i64 *signs) {
  u64 width = (u64)(cells / (ROWS * lanes)), step = (u64)lanes;
  for (int row = 0; row < ROWS; row++, at += apart, signs += apart) {
    u32 start = counters[2 * row], stride = counters[2 * row + 1];
    u64 first = width * (u64)row;
    for (i64 i = 0; i < n; i++) {
      u64 item = (u64)items[i], lane = 0;
      if (step > 1) { lane = item % step; item /= step; }
      u32 low = (u32)item ^ (u32)(item >> 32) * 0x9E3779B1u, hash = mix32(mix32(low * stride + start));
      at[i] = (i64)((first + (hash * width >> 32)) * step + lane);
      signs[i] = 1 - 2 * (i64)(hash & 1);
    }
  }
}

/* Both for float64 and for whole numbers that wrap around: signed sums in `table`, which is zero; and peeling, which
 * reads `found` in these cells one after another and takes each out of its three. Within a cell, all is added in the
 * order of items or of reading. Peeling returns how many steps lead outside; those are left alone. */
#define SKETCHES(NAME_SKETCH, NAME_PEEL, NUMBER)                                                                     \
  void NAME_SKETCH(const NUMBER *values, const i64 *items, i64 n, i64 cells, i64 lanes, const u32 *counters,           \
                   NUMBER *table) {                                                                                    \
    i64 at[ROWS * PIECE], signs[ROWS * PIECE];                                                                         \
    for (i64 begin = 0; begin < n; begin += PIECE) {                                                                   \
      i64 m = least(PIECE, n - begin);                                                                                 \
      sketch_places(items + begin, m, PIECE, cells, lanes, counters, at, signs);                                       \
      for (i64 row = 0; row < ROWS * PIECE; row += PIECE)                                                              \
        for (i64 i = 0; i < m; i++) table[at[row + i]] += (NUMBER)signs[row + i] * values[begin + i];                  \
    }                                                                                                                  \
  }                                                                                                                    \
  i64 NAME_PEEL(NUMBER *rest, i64 cells, const i64 *at, const i64 *signs, i64 n, const i64 *found, const i64 *in,      \
                i64 steps, NUMBER *values) {                                                                           \
    i64 outside = 0, width = cells / ROWS;                                                                             \
    for (i64 j = 0; j < steps; j++) {                                                                                  \
      i64 i = found[j], cell = in[j], row = (cell >= width) + (cell >= 2 * width);                                     \
      int known = (u64)i < (u64)n && (u64)cell < (u64)cells;                                                           \
      for (i64 r = 0; known && r < ROWS; r++) known = (u64)at[r * n + i] < (u64)cells;                                 \
      if (!known) { outside++; continue; }                                                                             \
      NUMBER read = (NUMBER)signs[row * n + i] * rest[cell];                                                           \
      values[i] = read;                                                                                                \
      for (i64 r = 0; r < ROWS; r++) rest[at[r * n + i]] -= (NUMBER)signs[r * n + i] * read;                           \
    }                                                                                                                  \
    return outside;                                                                                                    \
  }
SKETCHES(tw_sketch, tw_peel, double)
SKETCHES(tw_sketch_whole, tw_peel_whole, u32)

typedef struct { u32 degree, names; } Cell; /* how many items are left in it, and their numbers, each XORed */

static inline void mark_alone(Cell cell, u64 *marks) { /* without a branch: it could not be predicted */
  u32 alone = cell.degree == 1, name = alone ? cell.names : 0;
  marks[name / 64] |= (u64)alone << name % 64;
}

/* Which items are found in which cells, round by round: each ends at ends[round]. at: item by item. A round's items are
 * marked by bits, which puts them in order and each once; of the cells that hold an item alone, the first counts. While
 * a round is taken out, items of that very round are marked, too; `done` has a bit for each that was taken. */
static i64 peeling_rounds(const u32 *at, i64 n, Cell *table, u64 *marks, u64 *done, i64 *found, i64 *in, i64 *ends,
                          u8 *left) {
  i64 rounds = 0, taken = 0, words = (n + 63) / 64;
  for (;;) {
    i64 begin = taken;
    for (i64 w = 0; w < words; w++) {
      u64 some = marks[w] & ~done[w];
      marks[w] = 0;
      done[w] |= some;
      for (; some; some &= some - 1) found[taken++] = 64 * w + __builtin_ctzll(some);
    }
    if (taken == begin) return rounds;
    for (i64 j = begin; j < taken; j++) {
      const u32 *cell = at + ROWS * found[j];
      u32 later = table[cell[1]].degree == 1 ? cell[1] : cell[2];
      in[j] = table[cell[0]].degree == 1 ? cell[0] : later;
      left[found[j]] = 0;
    }
    for (i64 j = begin; j < taken; j++)
      for (int row = 0; row < ROWS; row++) {
        Cell *cell = table + at[ROWS * found[j] + row];
        cell->degree--;
        cell->names ^= (u32)found[j];
        mark_alone(*cell, marks);
      }
    ends[rounds++] = taken;
  }
}

/* Places and rounds of n items; items and cells are fewer than 2^32. All of found, in and ends have room for n. Returns
 * how many rounds there are, or -1 where memory is missing. */
i64 tw_peeling_order(const i64 *items, i64 n, i64 cells, i64 lanes, const u32 *counters, i64 *at, i64 *signs,
                     i64 *found, i64 *in, i64 *ends, u8 *left) {
  i64 rounds = -1, words = (n + 63) / 64;
  Cell *table = calloc((size_t)cells, sizeof *table);
  u64 *marks = calloc(2 * (size_t)words, sizeof *marks);
  u32 *near = malloc((size_t)n * ROWS * sizeof *near); /* an item's cells side by side: one miss instead of three */
  if (table && marks && near) {
    sketch_places(items, n, n, cells, lanes, counters, at, signs);
    for (i64 i = 0; i < n; i++)
      for (int row = 0; row < ROWS; row++) {
        Cell *cell = table + (near[ROWS * i + row] = (u32)at[row * n + i]);
        cell->degree++;
        cell->names ^= (u32)i;
      }
    for (i64 c = 0; c < cells; c++) mark_alone(table[c], marks);
    memset(left, 1, (size_t)n);
    rounds = peeling_rounds(near, n, table, marks, marks + words, found, in, ends, left);
  }
  free(table);
  free(marks);
  free(near);
  return rounds;
}

/* ---- allocation, see kernels/allocation.py ---- */
#define SPAN 32 /* sums worked at a time, which stay in registers for all options; rows are whole spans */
typedef struct { i64 error; double cost; i64 index; } Option;

static i64 row_length(i64 width) { return (width + SPAN - 1) / SPAN * SPAN + SPAN; }

static int compare_options(const void *a, const void *b) { /* by error, then cost, then index */
  const Option *x = a, *y = b;
  if (x->error != y->error) return x->error < y->error ? -1 : 1;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* The options of a layer that no other beats, by ascending errors; returns how many. */
static i64 keep_options(const double *costs, const i64 *errors, i64 candidates, i64 budget, Option *kept) {
  i64 n = 0, count = 0;
  for (i64 c = 0; c < candidates; c++)
    if (errors[c] <= budget) kept[n++] = (Option){errors[c], costs[c], c};
  qsort(kept, (size_t)n, sizeof(Option), compare_options);
  for (i64 c = 0; c < n; c++)
    if (!count || kept[c].cost < kept[count - 1].cost) kept[count++] = kept[c];
  return count;
}

/* Keeps counts[l] options of each layer, with their errors above the least one of the layer. widths[l]: the first l layers
 * have sums of such errors below it. Returns how many sums `tw_cheapest` stores; 0 if the least errors exceed the budget. */
i64 tw_keep_options(const double *costs, const i64 *errors, i64 layers, i64 candidates, i64 budget, Option *kept,
                    i64 *counts, i64 *widths) {
  i64 left = budget, cells = SPAN;
  for (i64 layer = 0; layer < layers; layer++) {
    Option *own = kept + layer * candidates;
    counts[layer] = keep_options(costs + layer * candidates, errors + layer * candidates, candidates, budget, own);
    if (!counts[layer] || own->error > left) return 0;
    left -= own->error;
    for (i64 c = counts[layer] - 1; c >= 0; c--) own[c].error -= own->error;
  }
  widths[0] = 1;
  for (i64 layer = 0; layer < layers; layer++) {
    Option *own = kept + layer * candidates;
    while (own[counts[layer] - 1].error > left) counts[layer]--;
    cells += row_length(widths[layer]);
    widths[layer + 1] = least(left + 1, widths[layer] + own[counts[layer] - 1].error);
  }
  return cells + row_length(widths[layers]);
}

/* The least costs of SPAN sums of errors from `at` on, from those of one layer less. */
static void add_layer(const double *before, i64 at, const Option *from, const Option *end, double *after) {
#if defined(__AVX2__)
  __m256d best[SPAN / 4]; /* by hand: from the text below, the compiler shuffles options of several rounds together */
  for (int i = 0; i < SPAN / 4; i++) best[i] = _mm256_set1_pd(INFINITY);
  for (; from < end; from++) {
    const double *sums = before + (at - from->error);
    const __m256d cost = _mm256_set1_pd(from->cost);
    for (int i = 0; i < SPAN / 4; i++) best[i] = _mm256_min_pd(_mm256_add_pd(_mm256_loadu_pd(sums + 4 * i), cost), best[i]);
  }
  for (int i = 0; i < SPAN / 4; i++) _mm256_storeu_pd(after + at + 4 * i, best[i]);
#else
  double best[SPAN];
  for (int i = 0; i < SPAN; i++) best[i] = INFINITY;
  for (; from < end; from++) {
    const double *sums = before + (at - from->error), cost = from->cost;
    for (int i = 0; i < SPAN; i++) {
      double sum = sums[i] + cost;
      best[i] = sum < best[i] ? sum : best[i];
    }
  }
  memcpy(after + at, best, sizeof best);
#endif
}

/* The first of the options that lead to `sum`; row: of one layer less. */
static const Option *find_option(const Option *kept, i64 count, const double *row, i64 width, i64 error, double sum) {
  const Option *found = NULL;
  for (const Option *own = kept; own < kept + count && own->error <= error; own++)
    if (error - own->error < width && row[error - own->error] + own->cost == sum && (!found || own->index < found->index))
      found = own;
  return found;
}

/* What `tw_keep_options` has kept -> the option of each layer. tables: for each number of layers a row, the least cost for
 * each sum of errors, with a span of infinities before and behind it. The last span of a row may have sums beyond the
 * budget; none within it is made of them. */
void tw_cheapest(const Option *kept, const i64 *counts, const i64 *widths, i64 layers, i64 candidates, double *tables,
                 i64 *chosen) {
  double *row = tables + SPAN;
  for (i64 i = 0; i < 3 * SPAN; i++) tables[i] = INFINITY;
  row[0] = 0;
  for (i64 layer = 0; layer < layers; layer++, kept += candidates) {
    const double *before = row;
    const Option *from = kept, *end = kept, *last = kept + counts[layer];
    row += row_length(widths[layer]);
    i64 at = 0;
    for (; at < widths[layer + 1]; at += SPAN) { /* all other options have infinities for this span */
      while (end < last && end->error < at + SPAN) end++;
      while (from < end && from->error <= at - widths[layer]) from++;
      add_layer(before, at, from, end, row);
    }
    for (i64 i = 0; i < SPAN; i++) row[at + i] = INFINITY;
  }
  i64 error = 0;
  for (i64 e = 1; e < widths[layers]; e++) if (row[e] < row[error]) error = e;
  double sum = row[error];
  for (i64 layer = layers - 1; layer >= 0; layer--) {
    kept -= candidates;
    row -= row_length(widths[layer]);
    const Option *own = find_option(kept, counts[layer], row, widths[layer], error, sum);
    chosen[layer] = own->index;
    error -= own->error;
    sum = row[error];
  }
}

#include "batched.c"
#include "batched_codes.c"
