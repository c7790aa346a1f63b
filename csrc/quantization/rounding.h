// The formulas of quantization, the same on CPUs and GPUs: from a group's range to its step, and
// from a number to its code. Arithmetic is float32.
//
// A group that holds a NaN has NaN for its range, hence for its parameters and everything that is
// dequantized with them; its codes mean nothing.

#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "quantizer.h"

namespace deepspeed {

// The least and the greatest number of a group; of an empty one +∞ and −∞.
struct Range {
  float low = INFINITY;
  float high = -INFINITY;
};

// The greater of two numbers; NaN if one is. Comparisons with NaN are false.
DS_HOST_DEVICE inline float greater(float a, float b) { return a != a || a > b ? a : b; }
DS_HOST_DEVICE inline float lesser(float a, float b) { return a != a || a < b ? a : b; }

DS_HOST_DEVICE inline float greatest_magnitude(const Range& r) {
  return greater(fabsf(r.low), fabsf(r.high));
}

DS_HOST_DEVICE inline float levels_of(int64_t bits) {
  return static_cast<float>(int64_t{1} << bits);
}

// a / b, rounded to nearest, for b that is not subnormal and neither has a subnormal reciprocal.
struct Divisor {
  float value;
  float reciprocal;

  DS_HOST_DEVICE explicit Divisor(float divisor) : value(divisor), reciprocal(1.0f / divisor) {}

  DS_HOST_DEVICE float divide(float a) const {
#ifdef __CUDA_ARCH__
    // One correction makes the product what a division gives, in 3 instructions instead of 10.
    const float quotient = a * reciprocal;
    return fmaf(fmaf(-quotient, value, a), reciprocal, quotient);
#else
    return a / value;
#endif
  }
};

// The nearest integer, ties to even, of |x| < 2²²: two additions, where rint() can be a call.
DS_HOST_DEVICE inline float nearest(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 · 2²³: one bit per integer
  return (x + kShift) - kShift;
}

// x between low and high; a NaN becomes low.
DS_HOST_DEVICE inline float clamped(float x, float low, float high) {
  x = x > low ? x : low;
  return x < high ? x : high;
}

// step = 2 · max |x| / 2ᵇ, or (max − min) / 2ᵇ with offset (max + min) / 2; q is clamped to
// [−2ᵇ⁻¹, 2ᵇ⁻¹ − 1]. Where all numbers are equal, or the step would be subnormal, it is 1.
struct QuantizedScale {
  Divisor step;
  float offset;
  float lowest;

  DS_HOST_DEVICE QuantizedScale(const Range& r, int64_t bits, bool symmetric)
      : step(step_of(r, bits, symmetric)),
        offset(symmetric || r.low > r.high ? 0.0f : 0.5f * r.high + 0.5f * r.low),
        lowest(-0.5f * levels_of(bits)) {}

  DS_HOST_DEVICE float code(float x) const {
    return nearest(clamped(step.divide(x - offset), lowest, -lowest - 1.0f));
  }
  DS_HOST_DEVICE float number(float code) const { return code * step.value + offset; }

 private:
  DS_HOST_DEVICE static float step_of(const Range& r, int64_t bits, bool symmetric) {
    // 2ᵇ is a power of two: dividing first changes no result, but can't overflow.
    const float scale = 1.0f / levels_of(bits);
    const float step =
        symmetric ? greatest_magnitude(r) * (2.0f * scale) : r.high * scale - r.low * scale;
    const bool usable = step >= FLT_MIN && r.low <= r.high;
    return usable || step != step ? step : 1.0f;
  }
};

// s = 2ᵇ / (2 · max |x| + 1e-5); x ← q / s with q = clamp(round(x · s)).
struct SymmetricFake {
  Divisor s;
  float lowest;

  DS_HOST_DEVICE SymmetricFake(const Range& r, int64_t bits)
      : s(levels_of(bits) / (2.0f * greatest_magnitude(r) + 1e-5f)),
        lowest(-0.5f * levels_of(bits)) {}

  DS_HOST_DEVICE float rounded(float x) const {
    return s.divide(clamped(nearest(x * s.value), lowest, -lowest - 1.0f));
  }
  // Away from zero with the probability of the part cut off, unless at a bound.
  DS_HOST_DEVICE float rounded(float x, float random) const {
    const float scaled = x * s.value;
    float q = clamped(truncf(scaled), lowest, -lowest - 1.0f);
    if (random < fabsf(scaled - q) && q > lowest && q < -lowest - 1.0f) {
      q += scaled < 0.0f ? -1.0f : 1.0f;
    }
    return s.divide(q);
  }
};

// s = ((max − min) + 1e-5) / 2ᵇ; x ← round((x − min) / s) · s + min. The level 2ᵇ can be reached.
struct AsymmetricFake {
  Divisor s;
  float minimum;
  float highest;

  DS_HOST_DEVICE AsymmetricFake(const Range& r, int64_t bits)
      : s(((r.high - r.low) + 1e-5f) / levels_of(bits)),
        minimum(r.low),
        highest(levels_of(bits) - 1.0f) {}

  DS_HOST_DEVICE float rounded(float x) const {
    return nearest(s.divide(x - minimum)) * s.value + minimum;
  }
  // Up with the probability of the part cut off, up to the level 2ᵇ − 1.
  DS_HOST_DEVICE float rounded(float x, float random) const {
    const float scaled = s.divide(x - minimum);
    float q = clamped(floorf(scaled), 0.0f, highest);
    if (random < scaled - q && q < highest) q += 1.0f;
    return q * s.value + minimum;
  }
};

// Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random
// words for each counter.
struct Random4 {
  uint32_t words[4];

  DS_HOST_DEVICE Random4(uint64_t key, uint64_t counter)
      : words{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0} {
    uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * words[0], b = uint64_t{0xCD9E8D57u} * words[2];
      const uint32_t word1 = words[1], word3 = words[3];
      words[0] = static_cast<uint32_t>(b >> 32) ^ word1 ^ key0;
      words[1] = static_cast<uint32_t>(b);
      words[2] = static_cast<uint32_t>(a >> 32) ^ word3 ^ key1;
      words[3] = static_cast<uint32_t>(a);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }

  // In [0, 1), in steps of 2⁻²⁴.
  DS_HOST_DEVICE float uniform(int i) const {
    return static_cast<float>(words[i] >> 8) * (1.0f / 16777216.0f);
  }
};

// The random number of element `index`, which is the same on CPUs and GPUs.
DS_HOST_DEVICE inline float uniform_of(int64_t seed, int64_t index) {
  return Random4(static_cast<uint64_t>(seed), static_cast<uint64_t>(index) / 4).uniform(index % 4);
}

}  // namespace deepspeed
