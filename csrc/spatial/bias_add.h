// What the bias kernels and their binding agree on; no header of torch or CUDA.

#pragma once

#include <cstdint>

#include "float_type.h"

namespace deepspeed {

// Tensors of `numel` elements of one type, whose channels lie next to each other in memory; biases
// have one element a channel.
struct BiasAddArguments {
  FloatType type;
  const void* x;
  const void* bias;
  const void* other;       // null for none
  const void* other_bias;  // null for none
  void* out;
  int64_t numel;
  int64_t channels;
};

// Works in the order of `stream`, without waiting; null, or the text of a CUDA error.
const char* launch_bias_add(const BiasAddArguments& a, void* stream);

}  // namespace deepspeed
