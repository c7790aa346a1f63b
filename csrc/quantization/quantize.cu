// Codes of a tensor's groups: q = clamp(round((x − offset) / step)), see rounding.h.
//
// Memory traffic per element: reads x, writes the code; 3 bytes from 16 bits to 8, 2.5 to 4.

#include "group_kernels.cuh"

namespace deepspeed {

int64_t parts_workspace(int64_t groups, int64_t group_size) {
  const int64_t parts = parts_of(group_size);
  return parts > 1 ? groups * parts * static_cast<int64_t>(sizeof(Range)) : 0;
}

const char* quantize_on_gpu(const QuantizeArguments& a, void* workspace, void* stream) {
  const Quantized& to = a.output;
  return for_type(a.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const FloatVectors<T> source{static_cast<const T*>(a.input), to.group_size};
    return launch_groups(source, CodeSink{to, a.order}, to.groups, to.group_size,
                         aligned(a.input) && codes_aligned(to), workspace,
                         static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
