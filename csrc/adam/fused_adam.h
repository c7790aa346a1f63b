// What the Adam kernels and their binding agree on; no header of torch or CUDA.

#pragma once

#include <cstdint>

#include "cuda_multi_tensor.h"
#include "float_type.h"

namespace deepspeed {

// Streams of one parameter.
constexpr int kAdamParam = 0, kAdamGrad = 1, kAdamExpAvg = 2, kAdamExpAvgSq = 3;
constexpr int kAdamStreams = 4;

struct AdamOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double step;
  bool adamw;
  bool bias_correction;
  double grad_scale = 1.0;  // gradients are divided by it
};

// How many elements one block updates.
int64_t adam_chunk(FloatType params, FloatType states);

// Bytes of device memory an update needs besides its tensors, aligned to 16.
int64_t adam_workspace(int32_t rows, int64_t chunks);

// Updates all rows on `stream` of `device`, without waiting. Gradients are of the parameters' type.
// Returns null, or the text of a CUDA error.
const char* launch_adam(FloatType params, FloatType states, const TensorRow<kAdamStreams>* rows,
                        int32_t row_count, int64_t chunks, const AdamOptions& options,
                        const DeviceValues& values, void* workspace, int32_t device, void* stream);

}  // namespace deepspeed
