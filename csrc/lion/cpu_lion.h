// The boundary between cpu_lion's binding, which knows torch, and its kernel, which doesn't.

#pragma once

#include "segments.h"
#include "simd.h"

namespace deepspeed {

struct LionConstants {
  float lr;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;  // 1 - lr wd
};

// Streams in this order.
enum LionStream { kLionParam, kLionGrad, kLionExpAvg, kLionStreams };

using LionUpdate = Update<kLionStreams, LionConstants>;

LionUpdate lion_kernel(Simd level, const LionConstants& constants);

}  // namespace deepspeed
