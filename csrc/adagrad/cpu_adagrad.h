// The boundary between cpu_adagrad's binding, which knows torch, and its kernel, which doesn't.

#pragma once

#include "segments.h"
#include "simd.h"

namespace deepspeed {

struct AdagradConstants {
  float lr, eps, weight_decay;
};

// Streams in this order.
enum AdagradStream { kAdagradParam, kAdagradGrad, kAdagradExpAvgSq, kAdagradStreams };

using AdagradUpdate = Update<kAdagradStreams, AdagradConstants>;

AdagradUpdate adagrad_kernel(Simd level, const AdagradConstants& constants);

}  // namespace deepspeed
