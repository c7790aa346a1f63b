// torch's current CUDA stream, and CUDA errors as exceptions. For binding files, which include no
// CUDA header.
//
// The function that tells the stream lives in libtorch_cuda, which a CPU-only torch doesn't have.
// It is looked up at the first call instead of being linked: so an op compiles, loads and can be
// checked on a machine that only builds for others.

#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "checks.h"

namespace deepspeed {

// The stream as cudaStream_t.
inline void* current_cuda_stream(const char* op, int32_t device) {
  using Getter = int32_t (*)(int32_t, void**);
  static const Getter getter = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<Getter>(symbol);
  }();
  if (getter == nullptr) {
    fail(op, "this torch has no CUDA; install a CUDA build of it");
  }
  void* stream = nullptr;
  check_status(getter(device, &stream), "aoti_torch_get_current_cuda_stream");
  return stream;
}

// What a launch function returned: null, or the text of a CUDA error.
inline void check_launch(const char* op, const char* error) {
  if (error != nullptr) fail(op, "%s", error);
}

}  // namespace deepspeed
