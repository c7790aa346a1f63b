// Codes of a tensor to which the errors of earlier quantizations are added; what is lost now goes
// back into them (Xie et al. 2024, "LoCo: Low-bit communication adaptor").
//
// Memory traffic per element: reads x and the error, writes the code and the error.

#include "group_kernels.cuh"

namespace deepspeed {

const char* quantize_with_error_on_gpu(const QuantizeArguments& a, void* workspace, void* stream) {
  const Quantized& to = a.output;
  return for_type(a.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const FloatVectors<T> input{static_cast<const T*>(a.input), to.group_size};
    const FloatVectors<T> errors{static_cast<const T*>(a.error.data), to.group_size};
    const WithError<FloatVectors<T>, T> source{input, errors, a.order};
    const CodeAndErrorSink<T> sink(to, a.order, a.error);
    return launch_groups(source, sink, to.groups, to.group_size,
                         aligned(a.input) && aligned(a.error.data) && codes_aligned(to), workspace,
                         static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
