// Codes of a sum of quantized tensors to which the errors of earlier quantizations are added; what
// is lost now goes back into them (Xie et al. 2024, "LoCo: Low-bit communication adaptor").
//
// Memory traffic per element of the result: reads a code a part and the error, writes one code and
// the error.

#include "sum_of_parts.cuh"

namespace deepspeed {

const char* reduce_with_error_on_gpu(const ReduceArguments& a, void* workspace, void* stream) {
  const Quantized& to = a.output;
  const bool vectors = vectors_of_parts_aligned(a) && is_vector_aligned(a.error.data);
  const ErrorsOfAnyType errors{a.error.type, a.error.data};
  const WithError<SumOfParts, ErrorsOfAnyType> source{sum_of_parts(a), errors, {}, to.group_size};
  return for_scale(to.symmetric, [&](auto scale) {
    const CodeAndErrorSink<typename decltype(scale)::type, ErrorsOfAnyType> sink(to, {}, errors,
                                                                                 a.error.beta);
    return launch_groups(source, sink, to.groups, to.group_size, vectors, workspace,
                         static_cast<cudaStream_t>(stream));
  });
}

}  // namespace deepspeed
