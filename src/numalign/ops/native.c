/* The mean or sum of the cross-entropy of class indices, and its gradient, in one pass through the logits. On the CPU.

   With logits x_c, target t, weight w, k = incoming gradient / divisor, and m = max x_c, let e_c = exp(x_c - m) and s the sum
   of e_c over every class but the target. The loss of one element and its gradient are

       w (log1p((e_t - 1) + s) - (x_t - m)),    k w e_c / (s + e_t) for c != t,    -k w s / (s + e_t) for c = t,

   and nothing cancels: s is not 1 - p_t, and the argument of log1p is s itself where the target is the maximum, and otherwise
   holds the 1 of the maximum in s.

   All is computed in fp32, sums over classes in two levels and in a fixed order, sums over elements in fp64. A tile is what is
   read, computed and written at a time. It depends on shapes and strides alone and never on the number of threads, so neither do
   the bits of the results.

   Errors, in units u = 2^-24 of the result: see the functions. An entry of the gradient is a product of e_c (3 u), of
   1 / (s + e_t) (8 u), and of k w, in three roundings: 15 u at the most and 2 u as a rule.

   Built at run time by numalign.ops._native for the processor at hand. Vectors are those of GCC and Clang, which make them out of
   whatever registers there are. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef double vd __attribute__((vector_size(8 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
/* The same at any address. */
typedef float vf_in_memory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t vh_in_memory __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum dtype { FLOAT16 = 0, BFLOAT16 = 1, FLOAT32 = 2 };
enum option { MEAN = 1, EMPTY_IS_ZERO = 2, DIVISOR_IS_GIVEN = 4 };
enum outcome { DONE = 0, CLASS_OUT_OF_RANGE = 1, NO_MEMORY = 2 };

#define MAX_AXES 64

/* Where everything lies, in numbers of items. Element axes are those of the target, the innermost one last. */
struct layout {
  int64_t axes, elements, classes, logits_class_stride, grad_class_stride;
  int64_t sizes[MAX_AXES], logits[MAX_AXES], grad[MAX_AXES], target[MAX_AXES];
};

struct problem {
  const struct layout *layout;
  const char *logits;
  char *grad; /* or none */
  const int64_t *target;
  const float *weight; /* one per class, or none */
  int64_t ignore_index, tile_elements, tiles;
  int dtype, by_rows;
  float factor;   /* k */
  double *losses; /* one per tile */
  double *weights;
  int failed; /* an outcome; whoever writes it writes no DONE */
};

/* Arithmetic. */

static inline vf splat(float x) { return x - (vf){0}; }

static inline vf pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

static inline vf keep(vi mask, vf a) { return (vf)(mask & (vi)a); }

/* Of two numbers of which the second is no nan; a nan in the first is passed over, and comes back in the sum. */
static inline vf larger(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#else
  return pick(a > b, a, b);
#endif
}

#define LN2_HIGH 0.693359375f /* 10 bits, so that its product with an exponent is exact */
#define LN2_LOW -2.12194440e-4f

/* exp(d + rest) for d <= 0 and |rest| <= u |d|, subnormal results included, 0 below 2^-150; nan for nan.
   With n = round(d / ln 2) and r = d - n ln 2, |r| <= 0.347, it is 2^n times the Taylor series of exp(r) up to r^7, which leaves
   out r^8 / 8! < 0.1 u. r is off by 1 u |r|, and the last sum by half a unit in the last place: within 2 u. */
static inline vf exp_of(vf d, vf rest) {
  const vf magic = splat(12582912.0f); /* 1.5 2^23: what is added to it is rounded to a whole number */
  vi tiny = d < splat(-104.0f);
  d = keep(~tiny, d);
  vf shifted = d * 1.44269504f + magic;
  vf n = shifted - magic;
  vf r = d - n * LN2_HIGH;
  r = r - n * LN2_LOW + rest;
  vf p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  p = _mm512_scalef_ps(p, n);
#else
  /* In two factors, as 2^n may be subnormal where the product is not, and is to be rounded once where it is. */
  vi exponent = (vi)shifted - (vi)magic, half = exponent >> 1;
  p = p * (vf)((half + 127) << 23) * (vf)((exponent - half + 127) << 23);
#endif
  return keep(~tiny, p);
}

/* exp(x - top). In fp32 x - top is rounded, and would put the result off by (top - x) u: what is lost is told to the exponential.
   The difference of 16-bit numbers is rounded as well, but so little that a 16-bit result does not tell. */
static inline vf power_of(vf x, vf top, int dtype) {
  vf d = x - top;
  if (dtype != FLOAT32) return exp_of(d, (vf){0});
  vf back = d - x;
  return exp_of(d, (x - (d - back)) - (top + back));
}

/* log(1 + y) for y >= 0; nan for nan. Within 3 u.
   u = 1 + y is rounded, and c makes up for it. With u = 2^n (1 + f), -0.293 <= f <= 0.415, and z = f / (2 + f), log(1 + f) is
   2 atanh(z) = f - z (f - 2 z^2 (1/3 + z^2/5 + z^4/7 + z^6/9 + ...)), whose next term is z^10 / 11 < 0.1 u of the result. */
static inline vf log1p_of(vf y) {
  const int32_t root_half = 0x3f3504f3;
  vf u = y + 1.0f;
  vf c = (y - (u - 1.0f)) / u;
  vi bits = (vi)u - root_half;
  vf n = __builtin_convertvector(bits >> 23, vf);
  vf f = (vf)((bits & 0x7fffff) + root_half) - 1.0f;
  vf z = f / (f + 2.0f), zz = z * z;
  vf series = zz * (1.0f / 9) + 1.0f / 7;
  series = series * zz + 1.0f / 5;
  series = series * zz + 1.0f / 3;
  vf log = f - z * (f - 2.0f * zz * series);
  return n * LN2_HIGH + (log + (n * LN2_LOW + c));
}

/* A sum of many positive numbers, in each lane: at most SPAN of them in fp32 one after the other, and those sums in twice the
   precision. Off by (SPAN - 1) u / 2 at the most, were every rounding the worst and in one direction. */
#define SPAN 16
struct sum {
  vf high, low;
};

static inline void add(struct sum *sum, vf part) {
  vf high = sum->high + part, rest = high - sum->high;
  sum->low += (sum->high - (high - rest)) + (part - rest);
  sum->high = high;
}

static inline double across_lanes(vf values) {
  double total = 0;
  for (int i = 0; i < LANES; i++) total += values[i];
  return total;
}

/* Conversions, rounded to the nearest, ties to even. */

static inline float half_to_float(uint16_t h) {
  /* The exponent of fp16, moved into that of fp32 as it is, is too small by 112; a product mends that for subnormal numbers too. */
  uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, bits;
  float value;
  memcpy(&value, &magnitude, 4);
  value *= 0x1p112f;
  memcpy(&bits, &value, 4);
  if ((h & 0x7c00) == 0x7c00) bits = magnitude | 0x7f800000;
  bits |= (uint32_t)(h & 0x8000) << 16;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint16_t float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint16_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00; /* 65520, half a unit above the largest */
  if (bits < 0x38800000) {
    /* Subnormal: a number whose unit in the last place is 2^-24 rounds what is added to it there. */
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, 4);
    return sign | (uint16_t)(bits - 0x3f000000);
  }
  return sign | (uint16_t)((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
}

static inline float bfloat_to_float(uint16_t b) {
  uint32_t bits = (uint32_t)b << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline vf read_vector(const char *source, int dtype) {
  if (dtype == FLOAT32) return *(const vf_in_memory *)source;
  if (dtype == BFLOAT16) return (vf)(__builtin_convertvector(*(const vh_in_memory *)source, vi) << 16);
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)source));
#elif defined(__F16C__) && LANES == 8
  return _mm256_cvtph_ps(_mm_loadu_si128((const void *)source));
#else
  vf values;
  for (int i = 0; i < LANES; i++) values[i] = half_to_float(((const uint16_t *)source)[i]);
  return values;
#endif
}

static inline void write_vector(char *result, int dtype, vf values) {
  if (dtype == FLOAT32) {
    *(vf_in_memory *)result = values;
  } else if (dtype == BFLOAT16) {
    vi bits = (vi)values;
    vi rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff, is_nan = values != values;
    *(vh_in_memory *)result = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), vh);
  } else {
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)result, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__) && LANES == 8
    _mm_storeu_si128((void *)result, _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) ((uint16_t *)result)[i] = float_to_half(values[i]);
#endif
  }
}

static inline float read_one(const char *source, int dtype) {
  if (dtype == FLOAT32) return *(const float *)source;
  return (dtype == FLOAT16 ? half_to_float : bfloat_to_float)(*(const uint16_t *)source);
}

static inline void write_one(char *result, int dtype, float value) {
  if (dtype == FLOAT32)
    *(float *)result = value;
  else
    *(uint16_t *)result = (dtype == FLOAT16 ? float_to_half : float_to_bfloat)(value);
}

static inline int64_t bytes_of(int dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* n numbers, ``stride`` apart, to fp32 that lie ``step`` apart. */
static inline void read_line(float *to, int64_t step, const char *from, int64_t stride, int64_t n, int dtype) {
  int64_t size = bytes_of(dtype), i = 0;
  if (stride == 1 && step == 1)
    for (; i + LANES <= n; i += LANES) *(vf_in_memory *)(to + i) = read_vector(from + i * size, dtype);
  for (; i < n; i++) to[i * step] = read_one(from + i * stride * size, dtype);
}

static inline void write_line(char *to, int64_t stride, const float *from, int64_t step, int64_t n, int dtype) {
  int64_t size = bytes_of(dtype), i = 0;
  if (stride == 1 && step == 1)
    for (; i + LANES <= n; i += LANES) write_vector(to + i * size, dtype, *(const vf_in_memory *)(from + i));
  for (; i < n; i++) write_one(to + i * stride * size, dtype, from[i * step]);
}

/* Tiles. */

/* Elements of a tile whose strides are those of the innermost axis. */
struct run {
  int64_t logits, grad, target, first, length;
};

struct tile {
  int64_t elements, padded, runs;
  struct run *run;
  int32_t *class_of;  /* 0 where ignored */
  int32_t *ignored;   /* all ones, or 0 */
  float *weight;      /* 0 where ignored */
  float *distance;    /* x_t - m */
  float *others;      /* s */
  float *numbers;     /* the work area */
  float *line;        /* for what is read and written before and after it is transposed */
};

static int64_t round_up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static void find_runs(const struct problem *problem, int64_t index, struct tile *tile) {
  const struct layout *layout = problem->layout;
  int64_t at[MAX_AXES], left = index * problem->tile_elements, last = layout->axes - 1;
  int64_t logits = 0, grad = 0, target = 0, n = layout->elements - left;
  tile->elements = n < problem->tile_elements ? n : problem->tile_elements;
  tile->padded = round_up(tile->elements);
  for (int64_t axis = last; axis >= 0; axis--) {
    at[axis] = left % layout->sizes[axis];
    left /= layout->sizes[axis];
    logits += at[axis] * layout->logits[axis];
    grad += at[axis] * layout->grad[axis];
    target += at[axis] * layout->target[axis];
  }
  tile->runs = 0;
  for (int64_t first = 0; first < tile->elements;) {
    int64_t length = layout->sizes[last] - at[last];
    if (length > tile->elements - first) length = tile->elements - first;
    tile->run[tile->runs++] = (struct run){logits, grad, target, first, length};
    first += length;
    for (int64_t axis = last, step = length; axis >= 0; axis--, step = 1) {
      at[axis] += step;
      logits += step * layout->logits[axis];
      grad += step * layout->grad[axis];
      target += step * layout->target[axis];
      if (at[axis] < layout->sizes[axis]) break;
      at[axis] = 0;
      logits -= layout->sizes[axis] * layout->logits[axis];
      grad -= layout->sizes[axis] * layout->grad[axis];
      target -= layout->sizes[axis] * layout->target[axis];
    }
  }
}

/* Whether every target of the tile is a class or ignored. Fills in classes, weights, and what is ignored. */
static int read_targets(const struct problem *problem, struct tile *tile) {
  int64_t stride = problem->layout->target[problem->layout->axes - 1], classes = problem->layout->classes;
  int good = 1;
  for (int64_t r = 0; r < tile->runs; r++) {
    const int64_t *target = problem->target + tile->run[r].target;
    for (int64_t i = 0, j = tile->run[r].first; i < tile->run[r].length; i++, j++) {
      int64_t class = target[i * stride];
      int ignored = class == problem->ignore_index;
      good &= ignored | ((class >= 0) & (class < classes));
      tile->class_of[j] = ignored ? 0 : (int32_t)class;
      tile->ignored[j] = -ignored;
      tile->weight[j] = ignored ? 0.0f : 1.0f;
    }
  }
  for (int64_t j = tile->elements; j < tile->padded; j++) {
    tile->class_of[j] = 0;
    tile->ignored[j] = -1;
    tile->weight[j] = 0;
  }
  if (good && problem->weight)
    for (int64_t j = 0; j < tile->elements; j++)
      if (!tile->ignored[j]) tile->weight[j] = problem->weight[tile->class_of[j]];
  return good;
}

/* The work area of a tile of few classes or of classes that do not lie side by side: LANES elements at a time, class by class. */
static inline float *column(const struct problem *problem, const struct tile *tile, int64_t element) {
  return tile->numbers + element / LANES * problem->layout->classes * LANES + element % LANES;
}

static inline __attribute__((always_inline)) void read_columns(const struct problem *problem, struct tile *tile, int dtype) {
  const struct layout *layout = problem->layout;
  int64_t classes = layout->classes, step = layout->logits[layout->axes - 1], across = layout->logits_class_stride;
  int64_t size = bytes_of(dtype), block = classes * LANES;
  for (int64_t r = 0; r < tile->runs; r++) {
    struct run run = tile->run[r];
    const char *from = problem->logits + run.logits * size;
    if (step == 1) {
      for (int64_t c = 0; c < classes; c++) {
        const char *line = from + c * across * size;
        float *to = tile->numbers + c * LANES;
        int64_t i = 0, j = run.first;
        for (; i < run.length && j % LANES; i++, j++) to[j / LANES * block + j % LANES] = read_one(line + i * size, dtype);
        for (; i + LANES <= run.length; i += LANES, j += LANES)
          *(vf *)(to + j / LANES * block) = read_vector(line + i * size, dtype);
        for (; i < run.length; i++, j++) to[j / LANES * block + j % LANES] = read_one(line + i * size, dtype);
      }
    } else if (across == 1 && step == classes) {
      read_line(tile->line, 1, from, 1, run.length * classes, dtype);
      for (int64_t i = 0; i < run.length; i++) {
        float *to = column(problem, tile, run.first + i);
        for (int64_t c = 0; c < classes; c++) to[c * LANES] = tile->line[i * classes + c];
      }
    } else {
      for (int64_t i = 0; i < run.length; i++)
        read_line(column(problem, tile, run.first + i), LANES, from + i * step * size, across, classes, dtype);
    }
  }
  for (int64_t j = tile->elements; j < tile->padded; j++) {
    float *to = column(problem, tile, j);
    for (int64_t c = 0; c < classes; c++) to[c * LANES] = 0;
  }
}

static inline __attribute__((always_inline)) void write_columns(const struct problem *problem, struct tile *tile, int dtype) {
  const struct layout *layout = problem->layout;
  int64_t classes = layout->classes, step = layout->grad[layout->axes - 1], across = layout->grad_class_stride;
  int64_t size = bytes_of(dtype), block = classes * LANES;
  for (int64_t r = 0; r < tile->runs; r++) {
    struct run run = tile->run[r];
    char *to = problem->grad + run.grad * size;
    if (step == 1) {
      for (int64_t c = 0; c < classes; c++) {
        char *line = to + c * across * size;
        const float *from = tile->numbers + c * LANES;
        int64_t i = 0, j = run.first;
        for (; i < run.length && j % LANES; i++, j++) write_one(line + i * size, dtype, from[j / LANES * block + j % LANES]);
        for (; i + LANES <= run.length; i += LANES, j += LANES)
          write_vector(line + i * size, dtype, *(const vf *)(from + j / LANES * block));
        for (; i < run.length; i++, j++) write_one(line + i * size, dtype, from[j / LANES * block + j % LANES]);
      }
    } else if (across == 1 && step == classes) {
      for (int64_t i = 0; i < run.length; i++) {
        const float *from = column(problem, tile, run.first + i);
        for (int64_t c = 0; c < classes; c++) tile->line[i * classes + c] = from[c * LANES];
      }
      write_line(to, 1, tile->line, 1, run.length * classes, dtype);
    } else {
      for (int64_t i = 0; i < run.length; i++)
        write_line(to + i * step * size, across, column(problem, tile, run.first + i), LANES, classes, dtype);
    }
  }
}

/* s and x_t - m of each element; leaves the gradient in the work area where it is wanted. */
static inline __attribute__((always_inline)) void compute_columns(const struct problem *problem, struct tile *tile, int dtype) {
  int64_t classes = problem->layout->classes;
  for (int64_t j = 0; j < tile->padded; j += LANES) {
    vf *numbers = (vf *)(tile->numbers + j * classes);
    vi class_of = *(vi *)(tile->class_of + j);
    vf target;
    vf top = splat(-INFINITY);
    for (int64_t c = 0; c < classes; c++) top = larger(numbers[c], top);
    for (int i = 0; i < LANES; i++) target[i] = ((float *)numbers)[class_of[i] * LANES + i];
    struct sum sum = {{0}, {0}};
    vi number = {0};
    for (int64_t c = 0; c < classes;) {
      int64_t end = c + SPAN < classes ? c + SPAN : classes;
      vf part = {0};
      for (; c < end; c++, number += 1) {
        vf power = power_of(numbers[c], top, dtype);
        numbers[c] = power;
        part += keep(number != class_of, power);
      }
      add(&sum, part);
    }
    vf others = sum.high + sum.low, distance = target - top;
    *(vf *)(tile->others + j) = others;
    *(vf *)(tile->distance + j) = distance;
    if (!problem->grad) continue;
    vf ratio = 1.0f / (exp_of(distance, (vf){0}) + others), amount;
    amount = keep(~*(vi *)(tile->ignored + j), problem->factor * *(vf *)(tile->weight + j));
    number = (vi){0};
    for (int64_t c = 0; c < classes; c++, number += 1)
      numbers[c] = pick(number == class_of, -others, numbers[c]) * ratio * amount;
  }
}

/* Rows: classes that lie side by side, an element at a time. */
static inline __attribute__((always_inline)) void do_rows(const struct problem *problem, struct tile *tile, int dtype) {
  const struct layout *layout = problem->layout;
  int64_t classes = layout->classes, padded = round_up(classes), size = bytes_of(dtype), last = layout->axes - 1;
  const int64_t piece = 64 * LANES; /* what stays in the first cache from one step to the next */
  float *numbers = tile->numbers;
  for (int64_t r = 0; r < tile->runs; r++) {
    struct run run = tile->run[r];
    for (int64_t i = 0, j = run.first; i < run.length; i++, j++) {
      const char *from = problem->logits + (run.logits + i * layout->logits[last]) * size;
      vf highest = splat(-INFINITY);
      for (int64_t c = classes; c < padded; c++) numbers[c] = -INFINITY;
      for (int64_t begin = 0; begin < classes; begin += piece) {
        int64_t n = classes - begin < piece ? classes - begin : piece;
        read_line(numbers + begin, 1, from + begin * layout->logits_class_stride * size, layout->logits_class_stride, n, dtype);
        for (int64_t c = begin; c < round_up(begin + n); c += LANES) highest = larger(*(vf *)(numbers + c), highest);
      }
      float top = highest[0];
      for (int lane = 1; lane < LANES; lane++) top = highest[lane] > top ? highest[lane] : top;
      int32_t class = tile->class_of[j];
      float distance = numbers[class] - top;
      struct sum sum = {{0}, {0}};
      numbers[class] = -INFINITY;
      for (int64_t c = 0; c < padded;) {
        int64_t end = c + SPAN * LANES < padded ? c + SPAN * LANES : padded;
        vf part = {0};
        for (; c < end; c += LANES) {
          vf power = power_of(*(vf *)(numbers + c), splat(top), dtype);
          *(vf *)(numbers + c) = power;
          part += power;
        }
        add(&sum, part);
      }
      float others = (float)(across_lanes(sum.high) + across_lanes(sum.low));
      tile->distance[j] = distance;
      tile->others[j] = others;
      if (!problem->grad) continue;
      vf ratio = splat(1.0f / (exp_of(splat(distance), (vf){0})[0] + others)), amount;
      amount = splat(tile->ignored[j] ? 0.0f : problem->factor * tile->weight[j]);
      numbers[class] = -others;
      char *to = problem->grad + (run.grad + i * layout->grad[last]) * size;
      for (int64_t begin = 0; begin < classes; begin += piece) {
        int64_t n = classes - begin < piece ? classes - begin : piece;
        for (int64_t c = begin; c < round_up(begin + n); c += LANES)
          *(vf *)(numbers + c) = *(vf *)(numbers + c) * ratio * amount;
        write_line(to + begin * layout->grad_class_stride * size, layout->grad_class_stride, numbers + begin, 1, n, dtype);
      }
    }
  }
  for (int64_t j = tile->elements; j < tile->padded; j++) tile->distance[j] = tile->others[j] = 0;
}

static double sum_of_losses(struct tile *tile) {
  vd total = {0};
  for (int64_t j = 0; j < tile->padded; j += LANES) {
    vf distance = *(vf *)(tile->distance + j), others = *(vf *)(tile->others + j);
    vf loss = log1p_of((exp_of(distance, (vf){0}) - 1.0f) + others) - distance;
    loss = keep(~*(vi *)(tile->ignored + j), loss * *(vf *)(tile->weight + j));
    total += __builtin_convertvector(loss, vd);
  }
  double sum = 0;
  for (int i = 0; i < LANES; i++) sum += total[i];
  return sum;
}

static inline __attribute__((always_inline)) void do_tile(const struct problem *problem, struct tile *tile, int dtype) {
  if (problem->by_rows) {
    do_rows(problem, tile, dtype);
    return;
  }
  read_columns(problem, tile, dtype);
  compute_columns(problem, tile, dtype);
  if (problem->grad) write_columns(problem, tile, dtype);
}

/* Threads. PyTorch's own team of OpenMP threads is used, through the function that GCC has a parallel region call. */

typedef void (*parallel_region)(void (*function)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*number_of_thread)(void);

struct team {
  struct problem *problem;
  parallel_region start;
  number_of_thread number, count;
  int threads;
  void (*work)(struct problem *, struct tile *, int64_t index);
};

static void *aligned(char **memory, int64_t bytes) {
  char *start = *memory;
  *memory += (bytes + 63) / 64 * 64;
  return start;
}

static int64_t memory_of_tile(const struct problem *problem) {
  int64_t n = round_up(problem->tile_elements), classes = problem->layout->classes;
  int64_t numbers = problem->by_rows ? round_up(classes) : n * classes;
  int64_t line = problem->by_rows ? 0 : problem->tile_elements * classes;
  return n * (int64_t)(sizeof(struct run) + 20) + 4 * (numbers + line) + 9 * 64;
}

static void do_share(void *data) {
  struct team *team = data;
  struct problem *problem = team->problem;
  int64_t count = team->threads > 1 ? team->count() : 1, number = team->threads > 1 ? team->number() : 0;
  int64_t first = problem->tiles * number / count, end = problem->tiles * (number + 1) / count;
  if (first == end) return;
  int64_t n = round_up(problem->tile_elements);
  char *memory = malloc(memory_of_tile(problem)), *free_memory = memory;
  if (!memory) {
    problem->failed = NO_MEMORY;
    return;
  }
  free_memory += (64 - (uintptr_t)memory % 64) % 64;
  struct tile tile;
  tile.run = aligned(&free_memory, n * (int64_t)sizeof(struct run));
  tile.class_of = aligned(&free_memory, 4 * n);
  tile.ignored = aligned(&free_memory, 4 * n);
  tile.weight = aligned(&free_memory, 4 * n);
  tile.distance = aligned(&free_memory, 4 * n);
  tile.others = aligned(&free_memory, 4 * n);
  tile.numbers = aligned(&free_memory, 4 * (problem->by_rows ? round_up(problem->layout->classes) : n * problem->layout->classes));
  tile.line = aligned(&free_memory, 0);
  for (int64_t index = first; index < end; index++) {
    find_runs(problem, index, &tile);
    team->work(problem, &tile, index);
  }
  free(memory);
}

static void check_and_weigh(struct problem *problem, struct tile *tile, int64_t index) {
  if (!read_targets(problem, tile)) problem->failed = CLASS_OUT_OF_RANGE;
  double total = 0;
  for (int64_t j = 0; j < tile->elements; j++) total += tile->weight[j];
  problem->weights[index] = total;
}

static void compute(struct problem *problem, struct tile *tile, int64_t index) {
  read_targets(problem, tile);
  if (problem->dtype == FLOAT16)
    do_tile(problem, tile, FLOAT16);
  else if (problem->dtype == BFLOAT16)
    do_tile(problem, tile, BFLOAT16);
  else
    do_tile(problem, tile, FLOAT32);
  problem->losses[index] = sum_of_losses(tile);
}

static void share_out(struct team *team, void (*work)(struct problem *, struct tile *, int64_t)) {
  team->work = work;
  if (team->threads > 1)
    team->start(do_share, team, team->threads, 0);
  else
    do_share(team);
}

/* Sizes. A work area of 128 KiB stays in the second cache of any processor, and rows of 8192 classes in the first or nearly. */
#define AREA 32768
#define MOST_ELEMENTS 512
#define LEAST_CLASSES_OF_ROWS 64
#define LEAST_LOGITS_OF_THREADS 32768
#define MEMORY_OF_ALL_THREADS ((int64_t)64 << 20)

static void choose_tiles(struct problem *problem) {
  const struct layout *layout = problem->layout;
  int64_t n;
  problem->by_rows = layout->logits_class_stride == 1 && layout->classes >= LEAST_CLASSES_OF_ROWS;
  n = AREA / layout->classes / (problem->by_rows ? 4 : LANES) * (problem->by_rows ? 1 : LANES);
  if (n > MOST_ELEMENTS) n = MOST_ELEMENTS;
  if (n < (problem->by_rows ? 1 : LANES)) n = problem->by_rows ? 1 : LANES;
  problem->tile_elements = n;
  problem->tiles = (layout->elements + n - 1) / n;
}

/* The loss and the divisor into ``result``, whose divisor is read where DIVISOR_IS_GIVEN; the gradient into ``grad``, if not 0. */
int numalign_cross_entropy(const struct layout *layout, const void *logits, void *grad, const int64_t *target, const float *weight,
                           int64_t ignore_index, int dtype, int options, double incoming, double *result, int threads,
                           parallel_region start, number_of_thread number, number_of_thread count) {
  struct problem problem = {.layout = layout, .logits = logits, .grad = grad, .target = target, .weight = weight,
                            .ignore_index = ignore_index, .dtype = dtype};
  choose_tiles(&problem);
  int64_t memory = memory_of_tile(&problem);
  if (threads > problem.tiles) threads = (int)problem.tiles;
  if (threads > MEMORY_OF_ALL_THREADS / memory) threads = (int)(MEMORY_OF_ALL_THREADS / memory);
  if (layout->elements * layout->classes < LEAST_LOGITS_OF_THREADS || !start) threads = 1;
  struct team team = {.problem = &problem, .start = start, .number = number, .count = count, .threads = threads};
  problem.losses = malloc(2 * sizeof(double) * (problem.tiles + 1));
  if (!problem.losses) return NO_MEMORY;
  problem.weights = problem.losses + problem.tiles;
  share_out(&team, check_and_weigh);
  if (!problem.failed) {
    double loss = 0, weights = 0, divisor;
    for (int64_t i = 0; i < problem.tiles; i++) weights += problem.weights[i];
    /* Rounded, as the divisor is handed on in fp32 and the gradient made from it later is to be this one. */
    divisor = options & DIVISOR_IS_GIVEN ? result[1] : (float)weights;
    if (options & EMPTY_IS_ZERO && divisor == 0) divisor = 1;
    problem.factor = (float)(options & MEAN ? incoming / divisor : incoming);
    share_out(&team, compute);
    for (int64_t i = 0; i < problem.tiles; i++) loss += problem.losses[i];
    result[0] = options & MEAN ? loss / divisor : loss;
    result[1] = divisor;
  }
  free(problem.losses);
  return problem.failed;
}
