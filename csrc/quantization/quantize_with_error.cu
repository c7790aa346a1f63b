// Codes of a tensor to which the errors of earlier quantizations are added; what is lost now goes
// back into them (Xie et al. 2024, "LoCo: Low-bit communication adaptor").
//
// Memory traffic per element: reads x and the error, writes the code and the error.

#include "group_kernels.cuh"

namespace deepspeed {

const char* quantize_with_error_on_gpu(const QuantizeArguments& a, void* workspace, void* stream) {
  const Quantized& to = a.output;
  const bool vectors =
      is_vector_aligned(a.input) && is_vector_aligned(a.error.data) && codes_aligned(to);
  return for_type(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const FloatVectors<T> input{static_cast<const T*>(a.input), to.group_size};
    const Errors<T> errors{static_cast<T*>(a.error.data)};
    const WithError<FloatVectors<T>, Errors<T>> source{input, errors, a.order, to.group_size};
    return for_scale(to.symmetric, [&](auto scale) {
      const CodeAndErrorSink<typename decltype(scale)::type, Errors<T>> sink(to, a.order, errors,
                                                                             a.error.beta);
      return launch_groups(source, sink, to.groups, to.group_size, vectors, workspace,
                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace deepspeed
