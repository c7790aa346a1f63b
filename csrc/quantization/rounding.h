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

// The greater of two numbers; NaN if one is. Comparisons with NaN are false.
DS_HOST_DEVICE inline float greater(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || a > b ? a : b;
#endif
}
DS_HOST_DEVICE inline float lesser(float a, float b) { return -greater(-a, -b); }

// What 2ᵇ numbers are told apart by; made once, so that no group has to divide.
struct Levels {
  float count;
  float inverse;
  float highest;  // code

  explicit Levels(int64_t bits)
      : count(static_cast<float>(int64_t{1} << bits)),
        inverse(1.0f / count),
        highest(0.5f * count - 1.0f) {}
};

// What asymmetric quantization has to know of a group: the least and the greatest number; of an
// empty one +∞ and −∞.
struct Range {
  float low = INFINITY;
  float high = -INFINITY;

  DS_HOST_DEVICE void add(float x) { add(Range{x, x}); }
  DS_HOST_DEVICE void add(const Range& other) {
    low = lesser(low, other.low);
    high = greater(high, other.high);
  }
};

// And symmetric quantization: the greatest absolute value.
struct Magnitude {
  float value = 0.0f;

  DS_HOST_DEVICE void add(float x) { value = greater(value, fabsf(x)); }
  DS_HOST_DEVICE void add(const Magnitude& other) { value = greater(value, other.value); }
};

// a / b, rounded to nearest, for b that is not subnormal and neither has a subnormal reciprocal.
struct Divisor {
  float value;
  float reciprocal;

  DS_HOST_DEVICE explicit Divisor(float divisor) : Divisor(divisor, 1.0f / divisor) {}
  // Where the reciprocal is known, its last bit aside.
  DS_HOST_DEVICE Divisor(float divisor, float known_reciprocal)
      : value(divisor), reciprocal(known_reciprocal) {}

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

// 1.5 · 2²³: added to |x| < 2²², it rounds to the nearest integer, ties to even, which the low bits
// of the sum then hold in two's complement. Two additions, where rint() can be a call.
constexpr float kIntegers = 12582912.0f;

DS_HOST_DEVICE inline float nearest(float x) { return (x + kIntegers) - kIntegers; }

// x, but at most `high`.
DS_HOST_DEVICE inline float at_most(float x, float high) {
#ifdef __CUDA_ARCH__
  return fminf(x, high);
#else
  return x < high ? x : high;
#endif
}

DS_HOST_DEVICE inline float at_least(float x, float low) {
#ifdef __CUDA_ARCH__
  return fmaxf(x, low);
#else
  return x > low ? x : low;
#endif
}

// Where all numbers are equal, or the step would be subnormal, it is 1.
DS_HOST_DEVICE inline float usable_step(float step) {
  return step >= FLT_MIN || step != step ? step : 1.0f;
}

// q = clamp(round(x / step), −2ᵇ⁻¹, 2ᵇ⁻¹ − 1) with step = 2 · max |x| / 2ᵇ. No quotient is less
// than −2ᵇ⁻¹, so there is no need to clamp it there.
struct SymmetricScale {
  using Statistic = Magnitude;
  static constexpr int kParams = 1;

  Divisor step;
  float highest;

  DS_HOST_DEVICE SymmetricScale(const Magnitude& m, const Levels& levels)
      : step(usable_step(m.value * (2.0f * levels.inverse))), highest(levels.highest) {}

  DS_HOST_DEVICE void write(float* params) const { params[0] = step.value; }

  // The code in the low bits.
  DS_HOST_DEVICE float shifted_code(float x) const {
    return at_most(step.divide(x) + kIntegers, highest + kIntegers);
  }
  // The same, but that a quotient's error is a reciprocal's, 2⁻²⁴ of it: less than 1e-6 for codes
  // of 4 bits. The distance of a 16-bit number's quotient to a tie is greater, or 0.
  DS_HOST_DEVICE float shifted_code_fast(float x) const {
    return at_most(fmaf(x, step.reciprocal, kIntegers), highest + kIntegers);
  }
  DS_HOST_DEVICE float number(float code) const { return code * step.value; }
};

// q = clamp(round((x − offset) / step), −2ᵇ⁻¹, 2ᵇ⁻¹ − 1) with step = (max − min) / 2ᵇ and offset =
// (max + min) / 2.
struct AsymmetricScale {
  using Statistic = Range;
  static constexpr int kParams = 2;

  Divisor step;
  float offset;
  float highest;

  DS_HOST_DEVICE AsymmetricScale(const Range& r, const Levels& levels)
      : step(step_of(r, levels.inverse)),
        offset(r.low > r.high ? 0.0f : 0.5f * r.high + 0.5f * r.low),
        highest(levels.highest) {}

  DS_HOST_DEVICE void write(float* params) const {
    params[0] = step.value;
    params[1] = offset;
  }
  DS_HOST_DEVICE float shifted_code(float x) const {
    return at_most(step.divide(x - offset) + kIntegers, highest + kIntegers);
  }
  DS_HOST_DEVICE float shifted_code_fast(float x) const {
    return at_most(fmaf(x - offset, step.reciprocal, kIntegers), highest + kIntegers);
  }
  DS_HOST_DEVICE float number(float code) const { return code * step.value + offset; }

 private:
  DS_HOST_DEVICE static float step_of(const Range& r, float inverse) {
    // 2ᵇ is a power of two: dividing first changes no result, but can't overflow.
    return r.low > r.high ? 1.0f : usable_step(r.high * inverse - r.low * inverse);
  }
};

// s = 2ᵇ / (2 · max |x| + 1e-5); x ← q / s with q = clamp(round(x · s)).
struct SymmetricFake {
  using Statistic = Magnitude;

  Divisor s;
  float highest;

  DS_HOST_DEVICE SymmetricFake(const Magnitude& m, const Levels& levels)
      : s(levels.count / (2.0f * m.value + 1e-5f), (2.0f * m.value + 1e-5f) * levels.inverse),
        highest(levels.highest) {}

  DS_HOST_DEVICE float rounded(float x) const {
    return s.divide(at_most(nearest(x * s.value), highest));
  }
  // The same, before a rounding to 16 bits.
  DS_HOST_DEVICE float rounded_of_16_bits(float x) const {
    const float q = at_most(fmaf(x, s.value, kIntegers), highest + kIntegers) - kIntegers;
    return q * s.reciprocal;
  }
  // Away from zero with the probability of the part cut off, unless at a bound.
  DS_HOST_DEVICE float rounded(float x, float random) const {
    const float scaled = x * s.value, lowest = -highest - 1.0f;
    float q = at_most(at_least(truncf(scaled), lowest), highest);
    if (random < fabsf(scaled - q) && q > lowest && q < highest) q += scaled < 0.0f ? -1.0f : 1.0f;
    return s.divide(q);
  }
};

// s = ((max − min) + 1e-5) / 2ᵇ; x ← round((x − min) / s) · s + min. The level 2ᵇ can be reached.
struct AsymmetricFake {
  using Statistic = Range;

  Divisor s;
  float minimum;
  float highest;

  DS_HOST_DEVICE AsymmetricFake(const Range& r, const Levels& levels)
      : s(((r.high - r.low) + 1e-5f) * levels.inverse),
        minimum(r.low),
        highest(levels.count - 1.0f) {}

  DS_HOST_DEVICE float rounded(float x) const {
    return nearest(s.divide(x - minimum)) * s.value + minimum;
  }
  DS_HOST_DEVICE float rounded_of_16_bits(float x) const { return rounded(x); }
  // Up with the probability of the part cut off, up to the level 2ᵇ − 1.
  DS_HOST_DEVICE float rounded(float x, float random) const {
    const float scaled = s.divide(x - minimum);
    float q = at_most(at_least(floorf(scaled), 0.0f), highest);
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
