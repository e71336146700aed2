// Random numbers: a thread has the block of Philox4x32-10 of its number, and its elements.
//
// KIND: what is drawn, below. DATA: the dtype. COMPUTE: float or double; NUMBER: what parameters
// are, double or long long. EACH: the elements of a block. A row of the grid has a key of its own,
// and as many elements. LOG_TERMS, SIN_TERMS, COS_TERMS: the coefficients of the series, that of
// the highest power first. Steps are rounded one by one, as meta/runtime/variates.py has them. The
// key is in memory, or else a number. DROPOUT keeps the elements of x whose words are at least b,
// times a, and says which.
#include "scalars.cuh"

#define UNIFORM 0
#define NORMAL 1
#define INTEGERS 2
#define DROPOUT 3

typedef unsigned long long u64;
const int THREADS = 256;
const u64 WORD = 0xffffffffu;

struct Parameters {
  const long long* key;
  const DATA* x;
  unsigned char* mask;
  DATA* out;
  long long count, drawn;
  NUMBER a, b, c;
};

inline void philox(u64 block, u64 key, unsigned (&c)[4]) {
  unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
  c[0] = (unsigned)block, c[1] = (unsigned)(block >> 32), c[2] = c[3] = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 p = (u64)c[0] * 0xD2511F53u, q = (u64)c[2] * 0xCD9E8D57u;
    c[0] = (unsigned)(q >> 32) ^ c[1] ^ k0, c[1] = (unsigned)q;
    c[2] = (unsigned)(p >> 32) ^ c[3] ^ k1, c[3] = (unsigned)p;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

#if KIND == INTEGERS
// first + floor(x * count / 2**128), where x has the four words.
inline u64 integer(const unsigned (&words)[4], u64 first, u64 low, u64 high) {
  u64 columns[6] = {0, 0, 0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u64 p = words[i] * low, q = words[i] * high;
    columns[i] += p & WORD, columns[i + 1] += (p >> 32) + (q & WORD), columns[i + 2] += q >> 32;
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) columns[i + 1] += columns[i] >> 32;
  return first + ((columns[5] & WORD) << 32 | (columns[4] & WORD));
}
#else
inline float mul(float x, float y) { return __fmul_rn(x, y); }
inline float add(float x, float y) { return __fadd_rn(x, y); }
inline float divided(float x, float y) { return __fdiv_rn(x, y); }
inline float root(float x) { return __fsqrt_rn(x); }
inline int bits(float x) { return __float_as_int(x); }
inline float of_bits(int x) { return __int_as_float(x); }
inline double mul(double x, double y) { return __dmul_rn(x, y); }
inline double add(double x, double y) { return __dadd_rn(x, y); }
inline double divided(double x, double y) { return __ddiv_rn(x, y); }
inline double root(double x) { return __dsqrt_rn(x); }
inline long long bits(double x) { return __double_as_longlong(x); }
inline double of_bits(long long x) { return __longlong_as_double(x); }

template <int N> inline W polynomial(W x, const double (&terms)[N]) {
  W y = (W)terms[0];
#pragma unroll
  for (int i = 1; i < N; ++i) y = add(mul(y, x), (W)terms[i]);
  return y;
}

const int MANTISSA = sizeof(W) == 8 ? 52 : 23, BITS_OF_TURN = sizeof(W) == 8 ? 53 : 32;

// Two normal numbers: of a real number from 1 to 2**BITS_OF_TURN, and an integer below that.
inline void pair(W above, long long turn, W* found) {
  const double log_terms[] = {LOG_TERMS}, sin_terms[] = {SIN_TERMS}, cos_terms[] = {COS_TERMS};
  auto word = bits(above);
  decltype(word) half = sizeof(W) == 8 ? 0x3FE6A09E667F3BCDll : 0x3F3504F3;
  decltype(word) exponent = (word - half) >> MANTISSA;
  W m = of_bits(word - exponent * ((decltype(word))1 << MANTISSA));
  W s = divided(add(m, (W)-1), add(m, (W)1));
  W log_m = mul(s, polynomial(mul(s, s), log_terms));
  W log = add(mul((W)(exponent - BITS_OF_TURN), (W)0.6931471805599453), log_m);
  W radius = root(mul(log, (W)-2));
  long long quarter = (turn + (1ll << (BITS_OF_TURN - 3))) >> (BITS_OF_TURN - 2);
  W angle = (W)(turn - (quarter << (BITS_OF_TURN - 2)));
  angle = mul(angle, (W)(6.283185307179586 / (double)(1ll << BITS_OF_TURN)));
  W z = mul(angle, angle);
  W sin = add(mul(angle, mul(z, polynomial(z, sin_terms))), angle);
  W cos = add(mul(z, polynomial(z, cos_terms)), (W)1);
  W first = quarter & 1 ? sin : cos, second = quarter & 1 ? cos : sin;
  found[0] = mul(radius, (quarter + 1) & 2 ? -first : first);
  found[1] = mul(radius, quarter & 2 ? -second : second);
}

#if KIND != DROPOUT
inline long long top_bits(unsigned a, unsigned b) {
  return (long long)(a >> 5) << 26 | (long long)(b >> 6);
}

inline void drawn(const unsigned (&words)[4], W (&found)[EACH]) {
#pragma unroll
  for (int i = 0; i < EACH; i += KIND == NORMAL ? 2 : 1) {
#if KIND == NORMAL && EACH == 2
    pair((W)(top_bits(words[0], words[1]) + 1), top_bits(words[2], words[3]), found);
#elif KIND == NORMAL
    W above = add(mul((W)(words[i] >> 16), (W)65536), (W)((words[i] & 0xffff) + 1));
    pair(above, words[i + 1], found + i);
#elif EACH == 2
    found[i] = mul((W)top_bits(words[2 * i], words[2 * i + 1]), (W)(1.0 / (1ll << 53)));
#else
    found[i] = mul((W)(words[i] >> 8), (W)(1.0 / (1 << 24)));
#endif
  }
}
#endif
#endif

struct alignas(sizeof(DATA) * EACH) Elements {
  DATA at[EACH];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    random_numbers(const __grid_constant__ Parameters p) {
  long long block = (long long)blockIdx.x * THREADS + threadIdx.x, at = block * EACH;
  if (at >= p.count) return;
  unsigned words[4];
  philox(block, p.key ? p.key[blockIdx.y] : p.drawn, words);
  Elements found;
#if KIND == INTEGERS
  found.at[0] = (DATA)integer(words, p.a, p.b, p.c);
#elif KIND == DROPOUT
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    bool keeps = words[i] >= p.b && at + i < p.count;
    down(found.at[i], keeps ? mul(up(p.x[at + i]), (W)p.a) : (W)0);
    if (at + i < p.count) p.mask[at + i] = keeps;
  }
#else
  W numbers[EACH];
  drawn(words, numbers);
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    down(found.at[i], add(mul(numbers[i], (W)p.a), (W)p.b));
#if KIND == UNIFORM
    if (up(found.at[i]) >= (W)p.c) down(found.at[i], (W)p.b);
#endif
  }
#endif
  DATA* out = p.out + blockIdx.y * p.count + at;
  bool aligned = blockIdx.y == 0 || p.count % EACH == 0;
  if (aligned && at + EACH <= p.count)
    *(Elements*)out = found;
  else
    for (int i = 0; i < EACH && at + i < p.count; ++i) out[i] = found.at[i];
}
