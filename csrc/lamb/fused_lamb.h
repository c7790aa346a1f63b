// What the LAMB kernels and their binding agree on; no header of torch or CUDA.

#pragma once

#include <cstdint>

#include "cuda_multi_tensor.h"
#include "float_type.h"

namespace deepspeed {

// Streams of one parameter; the last one, a copy of the parameter in the gradient's type, may be
// null.
constexpr int kLambParam = 0, kLambGrad = 1, kLambExpAvg = 2, kLambExpAvgSq = 3, kLambCopy = 4;
constexpr int kLambStreams = 5;

struct LambOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double max_coeff;
  double min_coeff;
  double grad_scale;  // gradients are divided by it
  double step;
  bool eps_inside_sqrt;
  bool bias_correction;
};

// How many elements one block updates.
int64_t lamb_chunk(FloatType params, FloatType grads);

// Bytes of device memory an update needs besides its tensors.
int64_t lamb_workspace(int32_t rows, int64_t chunks);

// Updates all rows on `stream` of `device`, without waiting, and writes each row's coefficient to
// `coefficients` (float32), 1 where the step is skipped. States are float32, beside float64
// parameters float64. Returns null, or the text of a CUDA error.
const char* launch_lamb(FloatType params, FloatType grads, const TensorRow<kLambStreams>* rows,
                        int32_t row_count, int64_t chunks, const LambOptions& options,
                        const DeviceValues& values, float* coefficients, void* workspace,
                        int32_t device, void* stream);

}  // namespace deepspeed
