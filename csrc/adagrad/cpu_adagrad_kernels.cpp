// Adagrad (Duchi, Hazan & Singer 2011) for one block of float32 elements.
//
//   g <- g + wd p
//   v <- v + g^2
//   p <- p - lr g / (sqrt(v) + eps)
//
// Memory traffic per element: p, v are read and written, g is read: 20 bytes in float32; 14 bytes
// with bfloat16 p, g and float32 v.

#include "cpu_adagrad.h"
#include "float_conversion.h"
#include "simd.h"

namespace deepspeed {
namespace {

template <bool kDecay>
struct AdagradLoop {
  [[gnu::always_inline]] static inline void loop(float* __restrict p, const float* __restrict g,
                                                 float* __restrict v, int64_t n,
                                                 const AdagradConstants c) {
    for (int64_t i = 0; i < n; ++i) {
      const float grad = kDecay ? g[i] + c.weight_decay * p[i] : g[i];
      v[i] = v[i] + grad * grad;
      p[i] = p[i] - c.lr * (grad / (__builtin_sqrtf(v[i]) + c.eps));
    }
  }
  [[gnu::always_inline]] static inline void run(float* const* s, int64_t n,
                                                const AdagradConstants* c) {
    loop(s[kAdagradParam], s[kAdagradGrad], s[kAdagradExpAvgSq], n, *c);
  }
};

}  // namespace

AdagradUpdate adagrad_kernel(Simd level, const AdagradConstants& constants) {
  // Without decay the parameter must stay out of the gradient: 0 * infinity is NaN.
  const auto kernel = constants.weight_decay != 0.0f ? PerLevel<AdagradLoop<true>>::select(level)
                                                     : PerLevel<AdagradLoop<false>>::select(level);
  return {kernel, conversion(FloatType::bf16, level), conversion(FloatType::f16, level),
          1u << kAdagradParam | 1u << kAdagradExpAvgSq, constants};
}

}  // namespace deepspeed
