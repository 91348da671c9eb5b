/* The hot loops in C. Every function gives the bits that the torch expressions of kernels/reference.py and
 * kernels/codes.py give, which are their definition: no fast-math, no contraction, sums along the same trees.
 *
 * One text, compiled once for each instruction set (build.py); plain C ABI, called through ctypes on data_ptr().
 * Nothing is kept between calls, nothing but small scratch is allocated. Sizes and pointers are the caller's promise,
 * positions are not: those that come off a wire are tested here.
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

#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u
#define CHUNK 4096 /* elements worked at a time, and the length of the rows of mean_magnitude */
#define PIECE 512  /* elements that share one buffer of noise */

static inline u32 bits_of(float x) { u32 u; memcpy(&u, &x, 4); return u; }
static inline float float_of(u32 u) { float x; memcpy(&x, &u, 4); return x; }
static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

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

/* out = x + y, saturated; returns the largest magnitude as bits. What overflows is rare, so it is mended afterwards. */
static u32 add_saturated(const float *x, const float *y, float *out, i64 n) {
  u32 peak = 0;
  for (i64 i = 0; i < n; i++) {
    float sum = x[i] + y[i];
    u32 a = bits_of(sum) & MAGNITUDE;
    out[i] = sum;
    peak = a > peak ? a : peak;
  }
  if (peak < INFINITE) return peak;
  for (i64 i = 0; i < n; i++) out[i] = saturated(out[i]);
  return peak_bits(out, n);
}

/* Loops that compute more than they read leave the memory idle; so they ask for what comes next. */
static inline void ask_for(const float *x, i64 n) {
  for (i64 i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

u32 tw_mark(void) { return TW_MARK; } /* of this text, from build.py */

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

void tw_noise16(u32 start, u32 stride, i64 n, i32 *out) {
  Noise noise;
  for (i64 at = 0; at < n; at += PIECE) {
    i64 m = least(PIECE, n - at);
    const half16 *draws = fill_noise(&noise, start, stride, at, m);
    for (i64 i = 0; i < m; i++) out[at + i] = draws[i];
  }
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

/* wire.pack_bits and unpack_bits for numbers of 1 to 56 bits */
void tw_pack_bits(const i64 *values, i64 n, int bits, u8 *out) {
  u64 held = 0, mask = (1ull << bits) - 1;
  int have = 0;
  for (i64 i = 0; i < n; i++) {
    held |= ((u64)values[i] & mask) << have;
    for (have += bits; have >= 8; have -= 8, held >>= 8) *out++ = (u8)held;
  }
  if (have) *out = (u8)held;
}

void tw_unpack_bits(const u8 *in, i64 n, int bits, i64 *values) {
  u64 held = 0, mask = (1ull << bits) - 1;
  int have = 0;
  for (i64 i = 0; i < n; i++) {
    for (; have < bits; have += 8) held |= (u64)*in++ << have;
    values[i] = (i64)(held & mask);
    held >>= bits;
    have -= bits;
  }
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

void tw_pack_signs(const float *x, i64 n, u8 *out) { pack_signs(x, n, out); }

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
float tw_sign_encode(const float *x, i64 n, float share, float back, float *sums, i64 width, u8 *signs) {
  i64 rows = 0;
  for (i64 at = 0; at < n; at += CHUNK) {
    i64 m = least(CHUNK, n - at);
    if (signs) pack_signs(x + at, m, signs + at / 8);
    sums[rows++] = row_sum(x + at, m, share);
  }
  return mean_of(sums, rows, width, back);
}

static inline float signed_by(u32 scale, u32 word, int i) { return float_of(scale ^ ((word << (31 - i)) & ~MAGNITUDE)); }

float tw_sign_feedback(const float *x, const float *before, float *rest, i64 n, float share, float back, float *sums,
                       i64 width, u8 *signs) {
  i64 rows = 0;
  for (i64 at = 0; at < n; at += CHUNK) {
    i64 m = least(CHUNK, n - at);
    add_saturated(x + at, before + at, rest + at, m);
    pack_signs(rest + at, m, signs + at / 8);
    sums[rows++] = row_sum(rest + at, m, share);
  }
  float scale = mean_of(sums, rows, width, back);
  for (i64 i = 0; i < n; i++) rest[i] -= rest[i] < 0 ? -scale : scale; /* towards the other sign: cannot overflow */
  return scale;
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

void tw_sign_decode(const u8 *signs, i64 n, float scale, float *out) { sign_chunk(signs, n, scale, out, 0); }

void tw_sign_mean(const u8 *const *signs, const float *scales, i64 ranks, i64 n, float weight, float *out) {
  memset(out, 0, (size_t)n * 4);
  for (i64 at = 0; at < n; at += CHUNK)
    for (i64 r = 0; r < ranks; r++) sign_chunk(signs[r] + at / 8, least(CHUNK, n - at), scales[r] * weight, out + at, 1);
}

/* ---- QSGD: levels of blocks ---- */
#if defined(__AVX2__)
static inline __m256i code8(const float *x, const half16 *noise, __m256 scale, __m256i levels, __m256i sign) {
  __m256 v = _mm256_loadu_ps(x);
  __m256i draw = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)noise)), 7);
  __m256 noisy = _mm256_castsi256_ps(_mm256_or_si256(draw, _mm256_set1_epi32(0x3F800040)));
  __m256 place = _mm256_mul_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), scale);
  __m256i level = _mm256_cvttps_epi32(_mm256_add_ps(place, _mm256_sub_ps(noisy, _mm256_set1_ps(1.0f))));
  __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ));
  return _mm256_or_si256(_mm256_min_epi32(level, levels), _mm256_and_si256(negative, sign));
}
#endif

static void code_levels(const float *x, const half16 *noise, i64 n, float scale, i32 levels, int sign_at, u8 *codes) {
  i64 i = 0;
#if defined(__AVX2__) /* as below; compilers spend more on the narrowing */
  __m256 s = _mm256_set1_ps(scale);
  __m256i top = _mm256_set1_epi32(levels), sign = _mm256_set1_epi32(1 << sign_at);
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works in halves of a register */
  for (; i + 32 <= n; i += 32) {
    __m256i a = code8(x + i, noise + i, s, top, sign), b = code8(x + i + 8, noise + i + 8, s, top, sign);
    __m256i c = code8(x + i + 16, noise + i + 16, s, top, sign), d = code8(x + i + 24, noise + i + 24, s, top, sign);
    __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    _mm256_storeu_si256((__m256i *)(codes + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
#endif
  for (; i < n; i++) {
    float place = fabsf(x[i]) * scale;
    float draw = float_of(0x3F800040u | (u32)noise[i] << 7) - 1.0f; /* (noise + 1/2) / 2^16, exactly */
    i32 level = (i32)(place + draw);
    level = level > levels ? levels : level;
    codes[i] = (u8)(level | (x[i] < 0) << sign_at);
  }
}

static inline float level_value(u8 code, i32 levels, float unit, float norm) {
  float level = (float)(code & levels) * unit;
  return (code > levels ? -level : level) * norm;
}

/* x alone, or x + before with what is not sent in rest. norms are worked out (at least `smallest`) unless given. */
static void qsgd_encode(const float *x, const float *before, float *rest, i64 n, i64 block, int bits, u32 start,
                        u32 stride, int given, float smallest, float *norms, u8 *out) {
  u8 stage[CHUNK + PIECE + 8];
  Noise noise;
  Squeeze s = squeeze_of(bits);
  i32 levels = (1 << (bits - 1)) - 1;
  float unit = (float)(1.0 / levels);
  i64 fill = 0;
  for (i64 begin = 0; begin < n; begin += block, norms++) {
    i64 m = least(block, n - begin);
    const float *p = (before ? rest : x) + begin;
    if (before || !given) {
      float peak = float_of(before ? add_saturated(x + begin, before + begin, rest + begin, m) : peak_bits(p, m));
      *norms = peak > smallest ? peak : smallest;
    }
    float norm = *norms, scale = (1.0f / norm) * (float)levels;
    for (i64 at = 0; at < m; at += PIECE) {
      i64 part = least(PIECE, m - at);
      i64 next = least(PIECE, n - begin - at - part);
      ask_for(x + begin + at + part, next);
      if (before) ask_for(before + begin + at + part, next);
      const half16 *draws = fill_noise(&noise, start, stride, begin + at, part);
      u8 *codes = stage + fill;
      code_levels(p + at, draws, part, scale, levels, bits - 1, codes);
      if (before) {
        float *r = rest + begin + at;
        for (i64 i = 0; i < part; i++) r[i] -= level_value(codes[i], levels, unit, norm);
        if (norm > 0x1p126f) /* else nothing can overflow */
          for (i64 i = 0; i < part; i++) r[i] = saturated(r[i]);
      }
      fill += part;
      if (fill >= CHUNK) {
        pack_codes(stage, CHUNK, &s, out, CHUNK / 8 * bits);
        out += CHUNK / 8 * bits;
        memcpy(stage, stage + CHUNK, (size_t)(fill -= CHUNK));
      }
    }
  }
  pack_codes(stage, fill, &s, out, (fill * bits + 7) / 8);
}

void tw_qsgd_encode(const float *x, i64 n, i64 block, int bits, u32 start, u32 stride, int given, float smallest,
                    float *norms, u8 *out) {
  qsgd_encode(x, NULL, NULL, n, block, bits, start, stride, given, smallest, norms, out);
}

void tw_qsgd_feedback(const float *x, const float *before, float *rest, i64 n, i64 block, int bits, u32 start,
                      u32 stride, float smallest, float *norms, u8 *out) {
  qsgd_encode(x, before, rest, n, block, bits, start, stride, 0, smallest, norms, out);
}

/* One or more payloads: their levels times norms, or the sum of those times `weight`. */
static void qsgd_chunk(const u8 *in, const float *norms, i64 at, i64 m, i64 block, const Squeeze *s, float weight,
                       float *out, int add) {
  u8 codes[CHUNK];
  i32 levels = (1 << (s->bits - 1)) - 1;
  float unit = (float)(1.0 / levels);
  unpack_codes(in + at / 8 * s->bits, (m * s->bits + 7) / 8, s, codes, m);
  for (i64 i = 0; i < m;) {
    i64 b = (at + i) / block, end = least(m, (b + 1) * block - at);
    float norm = norms[b];
    if (add) for (; i < end; i++) out[i] += level_value(codes[i], levels, unit, norm) * weight;
    else for (; i < end; i++) out[i] = level_value(codes[i], levels, unit, norm);
  }
}

void tw_qsgd_decode(const u8 *in, const float *norms, i64 n, i64 block, int bits, float *out) {
  Squeeze s = squeeze_of(bits);
  for (i64 at = 0; at < n; at += CHUNK) qsgd_chunk(in, norms, at, least(CHUNK, n - at), block, &s, 1.0f, out + at, 0);
}

void tw_qsgd_mean(const u8 *const *in, const float *const *norms, i64 ranks, i64 n, i64 block, int bits, float weight,
                  float *out) {
  Squeeze s = squeeze_of(bits);
  memset(out, 0, (size_t)n * 4);
  for (i64 at = 0; at < n; at += CHUNK)
    for (i64 r = 0; r < ranks; r++)
      qsgd_chunk(in[r], norms[r], at, least(CHUNK, n - at), block, &s, weight, out + at, 1);
}

/* ---- natural: exponents by chance ---- */
/* codes = clamp(exponent - window, 0, most), with sign_bit for what is negative */
void tw_natural_encode(const float *x, i64 n, u32 start, u32 stride, i32 window, i32 most, u32 sign_bit, u8 *codes) {
  Noise noise;
  for (i64 at = 0; at < n; at += PIECE) {
    i64 m = least(PIECE, n - at);
    const half16 *draws = fill_noise(&noise, start, stride, at, m);
    const float *p = x + at;
    u8 *o = codes + at;
    for (i64 i = 0; i < m; i++) {
      u32 noisy = (bits_of(p[i]) & MAGNITUDE) + (((u32)draws[i] << 7) + 64);
      i32 e = (i32)(noisy >> 23) - window;
      e = e < 0 ? 0 : e;
      e = e > most ? most : e;
      o[i] = (u8)((u32)e | (p[i] < 0 ? sign_bit : 0));
    }
  }
}

void tw_natural_decode(const u8 *codes, i64 n, i32 window, float *out) {
  for (i64 i = 0; i < n; i++) {
    u32 c = codes[i], e = c & 127, bits = (c & 128) << 24 | (e + (u32)window) << 23;
    out[i] = float_of(e ? bits : 0);
  }
}

void tw_exponents_decode(const u8 *exponents, const u8 *signs, i64 n, float *out) {
  i64 at = 0;
  for (; at + 32 <= n; at += 32) {
    u32 word;
    memcpy(&word, signs + at / 8, 4);
    for (int i = 0; i < 32; i++) out[at + i] = signed_by((u32)exponents[at + i] << 23, word, i);
  }
  for (; at < n; at++) out[at] = float_of((u32)exponents[at] << 23 | (u32)(signs[at / 8] >> (at & 7) & 1) << 31);
}

/* ---- the k largest magnitudes ---- */
/* The k-th largest of n magnitudes (1 <= k <= n) as bits: 11, 10 and 10 of them at a time, each settled by counting. */
static u32 kth_magnitude(const any32 *x, i64 n, i64 k, i64 *above) {
  static const int shifts[3] = {20, 10, 0}, widths[3] = {11, 10, 10};
  u32 found = 0, settled = 0;
  i64 counts[2048], more = 0;
  for (int pass = 0; pass < 3; pass++) {
    u32 mask = (1u << widths[pass]) - 1;
    memset(counts, 0, sizeof counts);
    for (i64 i = 0; i < n; i++) {
      u32 a = x[i] & MAGNITUDE;
      if (((a ^ found) & settled) == 0) counts[a >> shifts[pass] & mask]++;
    }
    u32 digit = mask;
    while (more + counts[digit] < k) more += counts[digit--];
    found |= digit << shifts[pass];
    settled |= mask << shifts[pass];
  }
  *above = more;
  return found;
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

/* From a level set four deviations low on a sample: among few candidates the k largest are counted out. 0 if that did
 * not work (no memory, too few, too many), which costs time alone. With y it is the largest of x + y, saturated, which
 * is worked out on the way and left in `sums`, whatever is returned. */
static int largest_of_few(const float *x, const float *y, float *sums, i64 n, i64 k, i64 *out) {
  i64 samples = n / 64 < 16384 ? n / 64 : 16384, stride = n / samples, above;
  double expected = (double)k * (double)samples / (double)n;
  i64 keep = (i64)(expected + 4 * sqrt(expected)) + 8, room = 2 * keep * stride + 64;
  u32 level = 0;
  Few few = {NULL, NULL, room, -1};
  if (keep < samples && room <= n) {
    few.at = malloc((size_t)room * sizeof *few.at);
    few.bits = malloc((size_t)(room > samples ? room : samples) * sizeof *few.bits);
  }
  if (few.at && few.bits) {
    for (i64 i = 0; i < samples; i++) few.bits[i] = bits_of(y ? saturated(x[i * stride] + y[i * stride]) : x[i * stride]);
    level = kth_magnitude(few.bits, samples, keep, &above);
  }
  if (level) few.found = 0;
  if (!y) collect(&few, x, 0, n, level);
  else for (i64 at = 0; at < n; at += CHUNK) { /* each chunk is looked through while the first cache has it */
    i64 m = least(CHUNK, n - at);
    add_saturated(x + at, y + at, sums + at, m);
    collect(&few, sums + at, at, m, level);
  }
  if (few.found >= k) {
    level = kth_magnitude(few.bits, few.found, k, &above);
    i64 ties = k - above, taken = 0;
    for (i64 i = 0; i < few.found; i++)
      if (few.bits[i] > level || (few.bits[i] == level && ties-- > 0)) out[taken++] = few.at[i];
  }
  free(few.at);
  free(few.bits);
  return few.found >= k;
}

static int worth_a_sample(i64 n, i64 k) { return n >= 4096 && k <= n / 8; }

/* 1 <= k <= n: positions of the k largest |x|, ascending; among equals the first. */
void tw_largest(const float *x, i64 n, i64 k, i64 *out) {
  i64 above;
  if (worth_a_sample(n, k) && largest_of_few(x, NULL, NULL, n, k, out)) return;
  u32 level = kth_magnitude((const any32 *)x, n, k, &above);
  take_level(x, n, level, k - above, out);
}

/* sums = x + y, saturated, and of these the k largest */
void tw_add_largest(const float *x, const float *y, i64 n, i64 k, float *sums, i64 *out) {
  if (!worth_a_sample(n, k)) add_saturated(x, y, sums, n);
  else if (largest_of_few(x, y, sums, n, k, out)) return;
  i64 above;
  u32 level = kth_magnitude((const any32 *)sums, n, k, &above);
  take_level(sums, n, level, k - above, out);
}

/* ---- products of few columns and rows ---- */
/* out = the sum over i of left[i, row] * right[i, column], in this order; `subtract`: taken from out instead. */
static void low_rank(const float *left, const float *right, i64 rank, i64 rows, i64 columns, float *out, int subtract) {
  enum { WIDTH = 1024 };
  float part[WIDTH];
  for (i64 row = 0; row < rows; row++)
    for (i64 at = 0; at < columns; at += WIDTH) {
      i64 m = least(WIDTH, columns - at);
      const float *r = right + at;
      float *o = out + row * columns + at, *sum = subtract ? part : o, l = left[row];
      for (i64 j = 0; j < m; j++) sum[j] = l * r[j];
      for (i64 i = 1; i < rank; i++) {
        l = left[i * rows + row];
        r += columns;
        for (i64 j = 0; j < m; j++) sum[j] += l * r[j];
      }
      if (subtract) for (i64 j = 0; j < m; j++) o[j] -= sum[j];
      if (peak_bits(o, m) >= INFINITE) for (i64 j = 0; j < m; j++) o[j] = saturated(o[j]);
    }
}

void tw_low_rank(const float *left, const float *right, i64 rank, i64 rows, i64 columns, float *out) {
  low_rank(left, right, rank, rows, columns, out, 0);
}

void tw_subtract_low_rank(float *matrix, const float *left, const float *right, i64 rank, i64 rows, i64 columns) {
  low_rank(left, right, rank, rows, columns, matrix, 1);
}

/* ---- sparse vectors ---- */
/* out[positions] = values, or += values * weight. Returns how many positions are outside; those are left alone. */
i64 tw_scatter(const float *values, const i64 *positions, i64 k, float *out, i64 n) {
  i64 outside = 0;
  for (i64 i = 0; i < k; i++) {
    if ((u64)positions[i] < (u64)n) out[positions[i]] = values[i];
    else outside++;
  }
  return outside;
}

i64 tw_scatter_add(const float *values, const i64 *positions, i64 k, float weight, float *out, i64 n) {
  i64 outside = 0;
  for (i64 i = 0; i < k; i++) {
    if ((u64)positions[i] < (u64)n) out[positions[i]] += values[i] * weight;
    else outside++;
  }
  return outside;
}

/* out = x[positions]; the same return. */
i64 tw_take(const float *x, i64 n, const i64 *positions, i64 k, float *out) {
  i64 outside = 0;
  for (i64 i = 0; i < k; i++) {
    if ((u64)positions[i] < (u64)n) out[i] = x[positions[i]];
    else outside++;
  }
  return outside;
}

/* x[positions] -= values, saturated; the same return. */
i64 tw_subtract_at(float *x, i64 n, const i64 *positions, const float *values, i64 k) {
  i64 outside = 0;
  for (i64 i = 0; i < k; i++) {
    if ((u64)positions[i] < (u64)n) x[positions[i]] = saturated(x[positions[i]] - values[i]);
    else outside++;
  }
  return outside;
}

/* ---- gaps between ascending positions ---- */
/* The sum of (gap >> shift); -1 if positions do not ascend from 0. */
i64 tw_gap_sum(const i64 *positions, i64 k, int shift) {
  i64 sum = 0, before = -1, wrong = 0;
  for (i64 i = 0; i < k; before = positions[i++]) {
    wrong |= positions[i] <= before;
    sum += (positions[i] - before - 1) >> shift;
  }
  return wrong ? -1 : sum;
}

/* Low bits of the gaps, then the rest in unary: so many zeros and a one. tw_gap_sum was asked how much room `out` must
 * have for that; it is zero. */
void tw_rice_encode(const i64 *positions, i64 k, int shift, u8 *out) {
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

i64 tw_count_ones(const u8 *in, i64 nbytes) {
  i64 ones = 0;
  for (i64 at = 0; at < nbytes; at += 8) ones += __builtin_popcountll(word_at(in, nbytes, at));
  return ones;
}

/* Positions of the ones; room for all of them. */
void tw_ones(const u8 *in, i64 nbytes, i64 *out) {
  for (i64 at = 0; at < nbytes; at += 8)
    for (u64 word = word_at(in, nbytes, at); word; word &= word - 1) *out++ = 8 * at + __builtin_ctzll(word);
}

/* What tw_rice_encode wrote, for k positions below n: how many ones the unary part has (-1: more than k), with the
 * positions in `out` if they are k; -2 if one of them is not below n. */
i64 tw_rice_decode(const u8 *in, i64 nbytes, i64 k, int shift, i64 n, i64 *out) {
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

void tw_add_saturated(const float *x, const float *y, i64 n, float *out) { add_saturated(x, y, out, n); }

void tw_block_peaks(const float *x, i64 n, i64 block, float *out) {
  for (i64 at = 0; at < n; at += block) *out++ = float_of(peak_bits(x + at, least(block, n - at)));
}
