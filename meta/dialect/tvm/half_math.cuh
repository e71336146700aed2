// Functions whose results are rounded to half precision in the end: wrong by 2e-5 at most.

static __device__ __forceinline__ float meta_half_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

static __device__ __forceinline__ float meta_half_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// erfc(a) = t P(t) exp(-a^2) with t = 1 / (1 + 0.51 a), the form of Abramowitz and Stegun 7.1.26,
// with coefficients for the least relative error up to a = 4.3, where half precision has no more.
static __device__ __forceinline__ float meta_half_erfc(float x) {
  float a = fabsf(x), t = meta_half_reciprocal(fmaf(a, 0.51f, 1.0f));
  float p = fmaf(t, -0.19269747f, 0.49113529f);
  p = fmaf(fmaf(fmaf(p, t, 0.09184800f), t, 0.32543929f), t, 0.28426577f);
  float tail = t * p * meta_half_exp(-a * a);
  return x < 0.0f ? 2.0f - tail : tail;
}
