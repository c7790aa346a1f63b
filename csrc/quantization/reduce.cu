// Codes of a sum of quantized tensors, as each device has one after an exchange. Sums are float32.
//
// Memory traffic per element of the result: reads a code a part, writes one.

#include "sum_of_parts.cuh"

namespace deepspeed {

const char* reduce_on_gpu(const ReduceArguments& a, void* workspace, void* stream) {
  const Quantized& to = a.output;
  return for_scale(to.symmetric, [&](auto scale) {
    const CodeSink<typename decltype(scale)::type, false> sink(to, {});
    return launch_groups(sum_of_parts(a), sink, to.groups, to.group_size,
                         vectors_of_parts_aligned(a), workspace, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
