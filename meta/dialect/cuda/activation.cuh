// Activations that stand behind something else, and their gradients, in float32: ACTIVATION::value
// of what they are of, ACTIVATION::gradient of that and the gradient of the value. FIRST and SECOND
// are the numbers that some have. Comparisons are such that a NaN stays.
#pragma once

namespace relu {
inline float value(float x) { return x < 0.0f ? 0.0f : x; }
inline float gradient(float x, float dy) { return x <= 0.0f ? 0.0f : dy; }
}  // namespace relu

inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

namespace silu {
inline float value(float x) { return x * logistic(x); }
inline float gradient(float x, float dy) {
  float s = logistic(x);
  return dy * s * (1.0f + x * (1.0f - s));
}
}  // namespace silu

namespace hardswish {
inline float value(float x) {
  float gate = x + 3.0f;
  gate = gate < 0.0f ? 0.0f : gate;
  return x * (gate > 6.0f ? 6.0f : gate) * (1.0f / 6.0f);
}
inline float gradient(float x, float dy) {
  return x <= -3.0f ? 0.0f : x < 3.0f ? dy * (x * (1.0f / 3.0f) + 0.5f) : dy;
}
}  // namespace hardswish

// By the error function: x * P(x), with P and p the normal distribution and density.
namespace gelu {
inline float distribution(float x) { return 0.5f * (1.0f + erff(x * 0.70710678f)); }
inline float value(float x) { return x * distribution(x); }
inline float gradient(float x, float dy) {
  return dy * (distribution(x) + x * 0.39894228f * expf(-0.5f * x * x));
}
}  // namespace gelu

// (1 + tanh(u)) / 2 is logistic(2 * u), which does not cancel.
namespace gelu_tanh {
inline float gate(float x) { return logistic(1.5957691f * (x + 0.044715f * x * x * x)); }
inline float value(float x) { return x * gate(x); }
inline float gradient(float x, float dy) {
  float s = gate(x);
  return dy * (s + x * s * (1.0f - s) * (1.5957691f * (1.0f + 0.134145f * x * x)));
}
}  // namespace gelu_tanh

#ifdef FIRST
namespace leaky_relu {
inline float value(float x) { return x > 0.0f ? x : x * FIRST; }
inline float gradient(float x, float dy) { return x > 0.0f ? dy : dy * FIRST; }
}  // namespace leaky_relu
#endif

#ifdef SECOND
namespace clip {
inline float value(float x) { return x < FIRST ? FIRST : x > SECOND ? SECOND : x; }
inline float gradient(float x, float dy) { return x <= FIRST || x >= SECOND ? 0.0f : dy; }
}  // namespace clip
#endif
