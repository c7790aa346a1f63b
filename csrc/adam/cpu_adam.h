// The boundary between cpu_adam's binding, which knows torch, and its kernels, which don't.

#pragma once

#include <cstdint>

#include "segments.h"
#include "simd.h"

namespace deepspeed {

// Constants of one step, computed in float64 from the step number and rounded once.
struct AdamConstants {
  float beta1, one_minus_beta1, inverse_beta1;
  float beta2, one_minus_beta2, inverse_beta2;
  float eps;
  float l2;                    // coefficient added to the gradient; 0 in AdamW mode
  float decay, inverse_decay;  // factor on the parameter; 1 in L2 mode
  float step_size;             // lr / (1 - beta1^t)
  float inverse_root_bias2;    // 1 / sqrt(1 - beta2^t)
};

// Streams in this order.
enum AdamStream { kAdamParam, kAdamGrad, kAdamExpAvg, kAdamExpAvgSq, kAdamStreams };

using AdamUpdate = Update<kAdamStreams, AdamConstants>;

AdamUpdate adam_step_kernel(Simd level, const AdamConstants& constants);
AdamUpdate adam_rollback_kernel(Simd level, const AdamConstants& constants);

}  // namespace deepspeed
