// From lists of tensors to the table of a multi-tensor update: what a GPU op demands of its
// tensors, checked before any memory is touched. For binding files.

#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "checks.h"
#include "cuda_multi_tensor.h"
#include "cuda_stream.h"
#include "cuda_workspace.h"
#include "tensor_list.h"

namespace deepspeed {

inline int32_t device_index_of(AtenTensorHandle tensor) {
  return get(&aoti_torch_get_device_index, tensor);
}

inline FloatType check_gpu_float(AtenTensorHandle tensor, const Argument& argument) {
  const int32_t dtype = get(&aoti_torch_get_dtype, tensor);
  if (dtype == aoti_torch_dtype_float32()) return FloatType::f32;
  if (dtype == aoti_torch_dtype_bfloat16()) return FloatType::bf16;
  if (dtype == aoti_torch_dtype_float16()) return FloatType::f16;
  if (dtype == aoti_torch_dtype_float64()) return FloatType::f64;
  argument.fail("is of an unsupported dtype; convert it to float32, bfloat16, float16 or float64");
}

inline void check_cuda(AtenTensorHandle tensor, const Argument& argument) {
  if (device_type_of(tensor) != aoti_torch_device_type_cuda()) {
    argument.fail("is not on a GPU, and this op updates GPU memory; move it with .cuda()");
  }
  check_strided(tensor, argument);
}

// The element types the kernels are made for: see for_types() in cuda_multi_tensor.cuh.
inline void check_optimizer_types(const char* op, FloatType param, FloatType grad,
                                  FloatType state) {
  if (grad != param) {
    fail(op, "gradients and parameters have different dtypes; convert the gradients");
  }
  if (state != param && (state != FloatType::f32 || param == FloatType::f64)) {
    fail(op, "states are neither of the parameters' dtype nor float32; convert them");
  }
}

// Whether the elements lie one behind the other in some order of the dimensions, as in
// channels_last.
inline bool is_dense(AtenTensorHandle tensor) {
  const int64_t dims = get(&aoti_torch_get_dim, tensor);
  const int64_t* sizes = get(&aoti_torch_get_sizes, tensor);
  const int64_t* strides = get(&aoti_torch_get_strides, tensor);
  std::vector<int64_t> order;
  for (int64_t d = 0; d < dims; ++d) {
    if (sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (int64_t d : order) {
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

// Whether two dense tensors of equal size, not both contiguous, keep equal elements at equal
// offsets.
inline bool same_order(AtenTensorHandle a, AtenTensorHandle b) {
  const int64_t dims = get(&aoti_torch_get_dim, a);
  if (dims != get(&aoti_torch_get_dim, b)) return false;
  const int64_t *sizes_a = get(&aoti_torch_get_sizes, a), *sizes_b = get(&aoti_torch_get_sizes, b);
  const int64_t *strides_a = get(&aoti_torch_get_strides, a),
                *strides_b = get(&aoti_torch_get_strides, b);
  for (int64_t d = 0; d < dims; ++d) {
    if (sizes_a[d] != sizes_b[d]) return false;
    if (sizes_a[d] != 1 && strides_a[d] != strides_b[d]) return false;
  }
  return true;
}

// The rows of one update: one dtype per stream, one GPU.
template <int N>
class TensorTableBuilder {
 public:
  // `names[0]` is the parameter, whose size and order of elements the other streams must have.
  // Rows of empty tensors are left out unless the caller counts rows.
  TensorTableBuilder(const char* op, const std::array<const char*, N>& names,
                     bool keep_empty = false)
      : op_(op), names_(names), keep_empty_(keep_empty) {}

  // Checks `lists` and takes one row per parameter. A list may be null: its streams are then.
  void add(const std::array<const TensorList*, N>& lists) {
    const size_t count = lists[0]->size();
    for (int s = 1; s < N; ++s) {
      if (lists[s] == nullptr || lists[s]->size() == count) continue;
      fail(op_, "%s holds %zu tensors but %s holds %zu; pass lists of equal length", names_[s],
           lists[s]->size(), names_[0], count);
    }
    rows_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      std::array<AtenTensorHandle, N> tensors{};
      for (int s = 0; s < N; ++s) {
        if (lists[s] != nullptr) tensors[s] = (*lists[s])[i];
      }
      add_one(tensors, static_cast<int64_t>(i));
    }
  }

  FloatType type(int stream) const { return types_[stream].value; }
  int32_t device() const { return device_.value; }
  bool empty() const { return rows_.empty(); }
  int32_t size() const { return static_cast<int32_t>(rows_.size()); }
  int64_t chunks() const { return chunks_; }

  // The rows, once it is settled how many elements a chunk has.
  const TensorRow<N>* rows(int64_t chunk) {
    chunks_ = 0;
    for (TensorRow<N>& row : rows_) {
      row.first_chunk = chunks_;
      chunks_ += chunks_of(row.numel, chunk);
    }
    if (chunks_ > INT32_MAX) fail(op_, "more than 2^31 chunks; update fewer tensors in a call");
    return rows_.data();
  }

 private:
  template <class T>
  struct Once {
    T value{};
    bool known = false;
  };

  template <class T>
  static void check_one(Once<T>& expected, T found, const Argument& argument, const char* what) {
    if (!expected.known) expected = {found, true};
    if (found != expected.value) argument.fail(what);
  }

  void add_one(const std::array<AtenTensorHandle, N>& tensors, int64_t index) {
    TensorRow<N> row{};
    const bool plain = get(&aoti_torch_is_contiguous, tensors[0]);
    for (int s = 0; s < N; ++s) {
      if (tensors[s] == nullptr) continue;
      const Argument argument{op_, names_[s], index};
      const AtenTensorHandle tensor = tensors[s];
      check_cuda(tensor, argument);
      check_one(types_[s], check_gpu_float(tensor, argument), argument,
                "is of another dtype than those before it; update each dtype in a call of its own");
      check_one(device_, device_index_of(tensor), argument,
                "is on another GPU than those before it; update each GPU in a call of its own");
      const int64_t numel = get(&aoti_torch_get_numel, tensor);
      if (s == 0) row.numel = numel;
      check_numel(numel, row.numel, argument, names_[0]);
      const bool fits = plain    ? s == 0 || get(&aoti_torch_is_contiguous, tensor)
                        : s == 0 ? is_dense(tensor)
                                 : same_order(tensors[0], tensor);
      if (!fits) {
        argument.fail(
            "does not keep its elements in the order of its parameter without gaps; pass "
            ".contiguous() and copy the result back");
      }
      row.streams[s] = get(&aoti_torch_get_data_ptr, tensor);
    }
    if (row.numel > 0 || keep_empty_) rows_.push_back(row);
  }

  const char* op_;
  std::array<const char*, N> names_;
  bool keep_empty_;
  std::array<Once<FloatType>, N> types_;
  Once<int32_t> device_;
  std::vector<TensorRow<N>> rows_;
  int64_t chunks_ = 0;
};

// A float32 tensor with one element on `device`, as a pointer for the GPU; null for none.
inline float* device_scalar(const torch::stable::Tensor* tensor, int32_t device,
                            const Argument& argument) {
  if (tensor == nullptr) return nullptr;
  check_cuda(tensor->get(), argument);
  if (check_gpu_float(tensor->get(), argument) != FloatType::f32) {
    argument.fail("is not float32; convert it with .float()");
  }
  if (get(&aoti_torch_get_numel, tensor->get()) != 1) {
    argument.fail("does not hold exactly one element");
  }
  if (device_index_of(tensor->get()) != device) {
    argument.fail("is on another GPU than the parameters; move it there");
  }
  return static_cast<float*>(get(&aoti_torch_get_data_ptr, tensor->get()));
}

// What of a step lives on `device`; null for what doesn't.
inline DeviceValues device_values(const char* op, int32_t device, const torch::stable::Tensor* lr,
                                  const torch::stable::Tensor* step,
                                  const torch::stable::Tensor* grad_scale,
                                  const torch::stable::Tensor* found_inf) {
  return {device_scalar(lr, device, {op, "lr", -1}), device_scalar(step, device, {op, "step", -1}),
          device_scalar(grad_scale, device, {op, "grad_scale", -1}),
          device_scalar(found_inf, device, {op, "found_inf", -1})};
}

// A Tensor? argument as the functions above take it.
inline const torch::stable::Tensor* pointer_to(const std::optional<torch::stable::Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

}  // namespace deepspeed
