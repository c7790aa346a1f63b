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
  const bool vectors = is_vector_aligned(a.input) && codes_aligned(to);
  return for_type(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const FloatVectors<T> source{static_cast<const T*>(a.input), to.group_size};
    return for_scale(to.symmetric, [&](auto scale) {
      const CodeSink<typename decltype(scale)::type, sizeof(T) == 2> sink(to, a.order);
      return launch_groups(source, sink, to.groups, to.group_size, vectors, workspace,
                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace deepspeed
