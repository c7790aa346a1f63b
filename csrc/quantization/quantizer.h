// What the quantization kernels, for CPUs and GPUs, and their binding agree on; no header of torch
// or CUDA.
//
// A group is a run of `group_size` consecutive elements that share a step and an offset.

#pragma once

#include <cstdint>

#include "float_type.h"

#ifdef __CUDACC__
#define DS_HOST_DEVICE __host__ __device__
#else
#define DS_HOST_DEVICE
#endif

namespace deepspeed {

// Which group of the output a group of the input becomes. Blocks of `block` groups are dealt out:
// what goes to one device of one node lies together, for each stage of the pipeline.
struct GroupOrder {
  int64_t block = 0;  // 0: groups stay where they are
  int64_t pipeline = 1;
  int64_t nodes = 1;
  int64_t devices = 1;

  DS_HOST_DEVICE int64_t operator()(int64_t group) const {
    if (block == 0) return group;
    const int64_t dealt = group / block;
    const int64_t stage = dealt % pipeline, target = dealt / pipeline;
    const int64_t node = target / devices, device = target % devices;
    return block * ((stage * devices + device) * nodes + node) + group % block;
  }
};

// A number is q · step, or q · step + offset: signed, of 4 or 8 bits, in groups. `params` holds
// each group's step, or its step and offset. Of two numbers in a byte, the first has the high bits.
struct Quantized {
  int8_t* data;
  float* params;
  int64_t groups;
  int64_t group_size;
  int64_t bits;
  bool symmetric;
};

// What quantization lost before, added to the input: error ← beta · error + (1 − beta) · (loss
// now).
struct ErrorFeedback {
  FloatType type = FloatType::f32;
  void* data = nullptr;  // in the order of the output; null for none
  double beta = 0.0;
};

struct QuantizeArguments {
  FloatType type;
  const void* input;
  Quantized output;
  GroupOrder order;
  ErrorFeedback error;
};

// `input` is `parts` runs of equal length: their sum is quantized.
struct ReduceArguments {
  Quantized input;
  int64_t parts;
  Quantized output;
  ErrorFeedback error;
};

struct DequantizeArguments {
  Quantized input;
  FloatType type;
  void* output;
};

// float16 numbers q / scale + minimum; q is unsigned, of 4 or 8 bits.
struct DequantizeUnsignedArguments {
  const uint8_t* data;
  const void* scale;    // float16, one a group
  const void* minimum;  // float16, one a group
  int64_t groups;
  int64_t group_size;
  int64_t bits;
  void* output;  // float16
};

// Numbers rounded in place to those that `bits` could tell apart.
struct FakeQuantizeArguments {
  FloatType type;
  void* data;
  int64_t groups;
  int64_t group_size;
  int64_t bits;
  bool symmetric;
  const int64_t* seed;  // of the random numbers for stochastic rounding, where the data is; or null
};

// The CPU's versions work on the groups [first, last) of the input, `reduce_on_cpu` of the output.
void quantize_on_cpu(const QuantizeArguments& a, int64_t first, int64_t last);
void reduce_on_cpu(const ReduceArguments& a, int64_t first, int64_t last);
void dequantize_on_cpu(const DequantizeArguments& a, int64_t first, int64_t last);
void dequantize_unsigned_on_cpu(const DequantizeUnsignedArguments& a, int64_t first, int64_t last);
void fake_quantize_on_cpu(const FakeQuantizeArguments& a, int64_t first, int64_t last);

// The GPU's versions work in the order of `stream`, without waiting, and return null or the text of
// a CUDA error. Groups that no block can hold are worked on in parts, which takes a workspace.
int64_t parts_workspace(int64_t groups, int64_t group_size);
const char* quantize_on_gpu(const QuantizeArguments& a, void* workspace, void* stream);
const char* quantize_with_error_on_gpu(const QuantizeArguments& a, void* workspace, void* stream);
const char* reduce_on_gpu(const ReduceArguments& a, void* workspace, void* stream);
const char* reduce_with_error_on_gpu(const ReduceArguments& a, void* workspace, void* stream);
const char* dequantize_on_gpu(const DequantizeArguments& a, void* stream);
const char* dequantize_unsigned_on_gpu(const DequantizeUnsignedArguments& a, void* stream);
const char* fake_quantize_on_gpu(const FakeQuantizeArguments& a, void* workspace, void* stream);
const char* fake_quantize_randomly_on_gpu(const FakeQuantizeArguments& a, void* workspace,
                                          void* stream);

}  // namespace deepspeed
