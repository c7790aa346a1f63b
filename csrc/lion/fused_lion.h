// What the Lion kernels and their binding agree on; no header of torch or CUDA.

#pragma once

#include <cstdint>

#include "cuda_multi_tensor.h"
#include "float_type.h"

namespace deepspeed {

// Streams of one parameter.
constexpr int kFusedLionParam = 0, kFusedLionGrad = 1, kFusedLionExpAvg = 2;
constexpr int kFusedLionStreams = 3;

struct FusedLionOptions {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double grad_scale = 1.0;  // gradients are divided by it
  double step = 0.0;        // counted, not used
};

// How many elements one block updates.
int64_t fused_lion_chunk(FloatType params, FloatType states);

// Bytes of device memory an update needs besides its tensors.
int64_t fused_lion_workspace(int32_t rows, int64_t chunks);

// Updates all rows on `stream` of `device`, without waiting. Gradients are of the parameters' type.
// Returns null, or the text of a CUDA error.
const char* launch_fused_lion(FloatType params, FloatType states,
                              const TensorRow<kFusedLionStreams>* rows, int32_t row_count,
                              int64_t chunks, const FusedLionOptions& options,
                              const DeviceValues& values, void* workspace, int32_t device,
                              void* stream);

}  // namespace deepspeed
