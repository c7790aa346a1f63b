// What a CPU op demands of its tensors, checked before any memory is touched.
//
// Each message says what is wrong and how to mend it, and names the op, the argument and, for
// lists, the index.

#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "float_type.h"

namespace deepspeed {

// Throws std::runtime_error("<op>: <printf-formatted text>"), a RuntimeError in Python. printf and
// not string concatenation: it compiles to far less code.
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] [[gnu::format(printf, 2, 3)]]
inline void fail(const char* op, const char* format, ...) {
  char text[512];
  const int used = std::snprintf(text, sizeof(text), "%s: ", op);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text + used, sizeof(text) - static_cast<size_t>(used), format, arguments);
  va_end(arguments);
  throw std::runtime_error(text);
}

// Where a tensor stands in a call, for messages.
struct Argument {
  const char* op;
  const char* name;
  int64_t index;  // in a list; -1 for a plain tensor

  [[noreturn]] [[gnu::cold]] [[gnu::noinline]] void fail(const char* what) const {
    if (index < 0) deepspeed::fail(op, "%s %s", name, what);
    deepspeed::fail(op, "%s[%lld] %s", name, static_cast<long long>(index), what);
  }
};

inline void check_status(AOTITorchError status, const char* call) {
  if (status != TORCH_SUCCESS) fail(call, "failed inside libtorch");
}

// Calls a getter of torch's C interface, such as aoti_torch_get_numel, on `tensor`.
template <class T>
T get(AOTITorchError (*getter)(AtenTensorHandle, T*), AtenTensorHandle tensor) {
  T value{};
  check_status(getter(tensor, &value), "reading a tensor");
  return value;
}

inline int32_t device_type_of(AtenTensorHandle tensor) {
  return get(&aoti_torch_get_device_type, tensor);
}

// torch.compile runs ops on tensors without memory to learn shapes; there is nothing to update.
inline bool is_meta(AtenTensorHandle tensor) {
  return device_type_of(tensor) == aoti_torch_device_type_meta();
}

inline void check_strided(AtenTensorHandle tensor, const Argument& argument) {
  if (get(&aoti_torch_get_layout, tensor) != aoti_torch_layout_strided()) {
    argument.fail("is not a dense (strided) tensor; call .to_dense() first");
  }
}

inline void check_cpu_contiguous(AtenTensorHandle tensor, const Argument& argument) {
  if (device_type_of(tensor) != aoti_torch_device_type_cpu()) {
    argument.fail(
        "is not on the CPU, and this op updates CPU memory; move it with .cpu() or use the op of "
        "its device");
  }
  check_strided(tensor, argument);
  if (!get(&aoti_torch_is_contiguous, tensor)) {
    argument.fail("is not contiguous; pass .contiguous() and copy the result back");
  }
}

// Codes of the supported types, fetched once per call because each is a call into libtorch.
struct FloatTypes {
  int32_t f32 = aoti_torch_dtype_float32();
  int32_t bf16 = aoti_torch_dtype_bfloat16();
  int32_t f16 = aoti_torch_dtype_float16();

  FloatType check(AtenTensorHandle tensor, const Argument& argument) const {
    const int32_t dtype = get(&aoti_torch_get_dtype, tensor);
    if (dtype == f32) return FloatType::f32;
    if (dtype == bf16) return FloatType::bf16;
    if (dtype == f16) return FloatType::f16;
    argument.fail("is of an unsupported dtype; convert it to float32, bfloat16 or float16");
  }
};

inline void check_numel(int64_t numel, int64_t expected, const Argument& argument,
                        const char* reference) {
  if (numel == expected) return;
  char what[160];
  std::snprintf(what, sizeof(what),
                "has %lld elements but %s has %lld; all tensors of one parameter need equal sizes",
                static_cast<long long>(numel), reference, static_cast<long long>(expected));
  argument.fail(what);
}

// The interval [0, 1), where moment coefficients live; false for NaN.
inline void check_coefficient(const char* op, const char* name, double value) {
  if (value >= 0.0 && value < 1.0) return;
  fail(op, "%s is %g; choose a value in [0, 1)", name, value);
}

inline void check_step(const char* op, int64_t step) {
  if (step >= 1) return;
  fail(op, "step is %lld; steps count from 1, so increment it before the update",
       static_cast<long long>(step));
}

}  // namespace deepspeed
