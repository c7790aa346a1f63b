// A Tensor[] argument that owns its tensors one by one and nothing more.
//
// std::vector<Tensor> allocates a reference count per element on top of torch's own; optimizers
// pass thousands of tensors per call, where that is a quarter of the time before any arithmetic.

#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <vector>

#include "checks.h"
#include "registration.h"

namespace deepspeed {

class TensorList {
 public:
  // Takes over the list `value` and its elements.
  static TensorList take(StableIValue value) {
    const auto list = torch::stable::detail::to<StableListHandle>(value);
    TensorList result;
    size_t size = 0;
    check_status(torch_list_size(list, &size), "torch_list_size");
    result.handles_.reserve(size);
    for (size_t i = 0; i < size; ++i) {
      StableIValue element = 0;
      check_status(torch_list_get_item(list, i, &element), "torch_list_get_item");
      result.handles_.push_back(torch::stable::detail::to<AtenTensorHandle>(element));
    }
    check_status(torch_delete_list(list), "torch_delete_list");
    return result;
  }

  TensorList() = default;
  TensorList(TensorList&&) = default;
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;
  // A destructor must not throw; the status could only say that a handle was null.
  ~TensorList() {
    for (AtenTensorHandle handle : handles_) aoti_torch_delete_tensor_object(handle);
  }

  bool empty() const { return handles_.empty(); }
  size_t size() const { return handles_.size(); }
  // Whether torch.compile is tracing: then nothing is to be updated.
  bool all_meta() const {
    for (AtenTensorHandle handle : handles_) {
      if (!is_meta(handle)) return false;
    }
    return !empty();
  }
  AtenTensorHandle operator[](size_t i) const { return handles_[i]; }

 private:
  std::vector<AtenTensorHandle> handles_;
};

namespace registration {

template <>
struct SchemaType<TensorList> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& reader) {
    return SchemaType<torch::stable::Tensor>::read(reader) && reader.take("[]");
  }
};

}  // namespace registration
}  // namespace deepspeed
