// The tensors of one update, as kernels see them. No header of torch or CUDA is needed.
//
// An optimizer updates a list of parameters; each has N streams (parameter, gradient, states) of
// equal length. A row of the table holds the addresses of one parameter's streams and where its
// chunks begin in the sequence of all chunks, so that one launch serves any number of tensors of
// any sizes.

#pragma once

#include <cstdint>

namespace deepspeed {

template <int N>
struct TensorRow {
  void* streams[N];
  int64_t numel;
  int64_t first_chunk;
};

// What a kernel gets to find its chunk's row. `rows` and `row_of_chunk` lie in device memory.
template <int N>
struct TensorTable {
  const TensorRow<N>* rows;
  const int32_t* row_of_chunk;
};

// What of a step lives on the GPU, float32 each, so that the host need not know it; null: not used.
// `step` is counted up by the update, unless `found_inf` is not 0, in which case nothing is
// written.
struct DeviceValues {
  const float* lr = nullptr;
  float* step = nullptr;
  const float* grad_scale = nullptr;
  const float* found_inf = nullptr;

  bool any() const {
    return lr != nullptr || step != nullptr || grad_scale != nullptr || found_inf != nullptr;
  }
};

// The device memory a table takes.
template <int N>
constexpr int64_t table_bytes(int32_t rows, int64_t chunks) {
  return rows * static_cast<int64_t>(sizeof(TensorRow<N>)) +
         chunks * static_cast<int64_t>(sizeof(int32_t));
}

inline int64_t chunks_of(int64_t numel, int64_t chunk) { return (numel + chunk - 1) / chunk; }

}  // namespace deepspeed
