// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms") for one block of float32
// elements.
//
//   c <- b1 m + (1 - b1) g
//   p <- (1 - lr wd) p - lr sign(c)     with sign(0) = 0 and sign(NaN) = NaN
//   m <- b2 m + (1 - b2) g
//
// Memory traffic per element: p, m are read and written, g is read: 20 bytes in float32; 14 bytes
// with bfloat16 p, g and float32 m.

#include "cpu_lion.h"
#include "float_conversion.h"
#include "simd.h"

namespace deepspeed {
namespace {

struct LionLoop {
  [[gnu::always_inline]] static inline void loop(float* __restrict p, const float* __restrict g,
                                                 float* __restrict m, int64_t n,
                                                 const LionConstants c) {
    for (int64_t i = 0; i < n; ++i) {
      const float direction = c.beta1 * m[i] + c.one_minus_beta1 * g[i];
      // What is neither positive nor negative is 0 or NaN, which is its own sign.
      const float not_negative = direction > 0.0f ? 1.0f : direction;
      const float sign = direction < 0.0f ? -1.0f : not_negative;
      p[i] = c.decay * p[i] - c.lr * sign;
      m[i] = c.beta2 * m[i] + c.one_minus_beta2 * g[i];
    }
  }
  [[gnu::always_inline]] static inline void run(float* const* s, int64_t n,
                                                const LionConstants* c) {
    loop(s[kLionParam], s[kLionGrad], s[kLionExpAvg], n, *c);
  }
};

}  // namespace

LionUpdate lion_kernel(Simd level, const LionConstants& constants) {
  return {PerLevel<LionLoop>::select(level), conversion(FloatType::bf16, level),
          conversion(FloatType::f16, level), 1u << kLionParam | 1u << kLionExpAvg, constants};
}

}  // namespace deepspeed
