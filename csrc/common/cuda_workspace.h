// Device memory for the time of a call. For binding files.

#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>

#include "checks.h"

namespace deepspeed {

// A tensor of bytes on a GPU, from torch's allocator: in the order of the current stream, and in a
// graph's own pool while one is captured.
class Workspace {
 public:
  Workspace(int64_t bytes, int32_t device) {
    const int64_t stride = 1;
    check_status(aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(),
                                          aoti_torch_device_type_cuda(), device, &handle_),
                 "aoti_torch_empty_strided");
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { aoti_torch_delete_tensor_object(handle_); }
  void* data() const { return get(&aoti_torch_get_data_ptr, handle_); }

 private:
  AtenTensorHandle handle_ = nullptr;
};

}  // namespace deepspeed
