// Adam and AdamW, and their inverse, for one block of float32 elements.
//
//   L2 mode:    g <- g + wd p              (Adam, Kingma & Ba 2015)
//   AdamW mode: p <- p - lr wd p           (decoupled decay, Loshchilov & Hutter 2019)
//   m <- b1 m + (1 - b1) g
//   v <- b2 v + (1 - b2) g^2
//   p <- p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//
// Rollback recovers the p, m, v that step t started from, given the same g and constants.
//
// Memory traffic per element, both directions: p, m, v are read and written, g is read: 28 bytes
// in float32; 22 bytes with bfloat16 p, g and float32 m, v. The loops are bound by memory once they
// use 256-bit vectors.

#include "cpu_adam.h"
#include "float_conversion.h"
#include "simd.h"

namespace deepspeed {
namespace {

template <bool kL2>
struct AdamStepLoop {
  [[gnu::always_inline]] static inline void loop(float* __restrict p, const float* __restrict g,
                                                 float* __restrict m, float* __restrict v,
                                                 int64_t n, const AdamConstants c) {
    for (int64_t i = 0; i < n; ++i) {
      const float grad = kL2 ? g[i] + c.l2 * p[i] : g[i];
      m[i] = c.beta1 * m[i] + c.one_minus_beta1 * grad;
      v[i] = c.beta2 * v[i] + c.one_minus_beta2 * grad * grad;
      const float denominator = __builtin_sqrtf(v[i]) * c.inverse_root_bias2 + c.eps;
      p[i] = c.decay * p[i] - c.step_size * (m[i] / denominator);
    }
  }
  [[gnu::always_inline]] static inline void run(float* const* s, int64_t n,
                                                const AdamConstants* c) {
    loop(s[kAdamParam], s[kAdamGrad], s[kAdamExpAvg], s[kAdamExpAvgSq], n, *c);
  }
};

template <bool kL2>
struct AdamRollbackLoop {
  [[gnu::always_inline]] static inline void loop(float* __restrict p, const float* __restrict g,
                                                 float* __restrict m, float* __restrict v,
                                                 int64_t n, const AdamConstants c) {
    for (int64_t i = 0; i < n; ++i) {
      const float denominator = __builtin_sqrtf(v[i]) * c.inverse_root_bias2 + c.eps;
      p[i] = (p[i] + c.step_size * (m[i] / denominator)) * c.inverse_decay;
      const float grad = kL2 ? g[i] + c.l2 * p[i] : g[i];
      m[i] = (m[i] - c.one_minus_beta1 * grad) * c.inverse_beta1;
      const float before = (v[i] - c.one_minus_beta2 * grad * grad) * c.inverse_beta2;
      // Rounding can leave a tiny negative value where v was 0; a NaN passes this comparison.
      v[i] = before < 0.0f ? 0.0f : before;
    }
  }
  [[gnu::always_inline]] static inline void run(float* const* s, int64_t n,
                                                const AdamConstants* c) {
    loop(s[kAdamParam], s[kAdamGrad], s[kAdamExpAvg], s[kAdamExpAvgSq], n, *c);
  }
};

constexpr unsigned kWritten = 1u << kAdamParam | 1u << kAdamExpAvg | 1u << kAdamExpAvgSq;

AdamUpdate with_conversions(AdamUpdate::Kernel kernel, Simd level, const AdamConstants& constants) {
  return {kernel, conversion(FloatType::bf16, level), conversion(FloatType::f16, level), kWritten,
          constants};
}

}  // namespace

AdamUpdate adam_step_kernel(Simd level, const AdamConstants& constants) {
  // Without decay the parameter must stay out of the gradient: 0 * infinity is NaN.
  const auto kernel = constants.l2 != 0.0f ? PerLevel<AdamStepLoop<true>>::select(level)
                                           : PerLevel<AdamStepLoop<false>>::select(level);
  return with_conversions(kernel, level, constants);
}

AdamUpdate adam_rollback_kernel(Simd level, const AdamConstants& constants) {
  const auto kernel = constants.l2 != 0.0f ? PerLevel<AdamRollbackLoop<true>>::select(level)
                                           : PerLevel<AdamRollbackLoop<false>>::select(level);
  return with_conversions(kernel, level, constants);
}

}  // namespace deepspeed
