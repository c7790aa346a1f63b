// Operator deepspeed_spatial_inference::bias_add: argument checks around the kernel.
//
// It writes into a tensor the caller made, so tracing needs no shapes from here.

#include "bias_add.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <optional>

#include "checks.h"
#include "cuda_stream.h"
#include "registration.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

constexpr const char* kOp = "bias_add";

// Whether the last of the dimensions (0, 2, 3, 1) or (0, 1, 2) is the innermost one in memory, and
// the others follow without gaps.
bool channels_are_innermost(const Tensor& tensor) {
  const int64_t* sizes = get(&aoti_torch_get_sizes, tensor.get());
  const int64_t* strides = get(&aoti_torch_get_strides, tensor.get());
  constexpr int kImage[] = {1, 3, 2, 0}, kSequence[] = {2, 1, 0};
  const int64_t dims = tensor.dim();
  const int* order = dims == 4 ? kImage : kSequence;
  int64_t expected = 1;
  for (int64_t i = 0; i < dims; ++i) {
    const int d = order[i];
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

struct Checked {
  FloatType type;
  int32_t device;
  int64_t numel;
  int64_t channels;
  const int64_t* sizes;
  int64_t dims;
};

const void* data_of(const Tensor& tensor, const char* name, const Checked& like) {
  const Argument argument{kOp, name, -1};
  if (device_type_of(tensor.get()) != aoti_torch_device_type_cuda() ||
      tensor.get_device_index() != like.device) {
    argument.fail("is not on the GPU of activation; move it there");
  }
  check_strided(tensor.get(), argument);
  if (FloatTypes().check(tensor.get(), argument) != like.type) {
    argument.fail("is of another dtype than activation; convert it");
  }
  return get(&aoti_torch_get_data_ptr, tensor.get());
}

const void* image_of(const Tensor& tensor, const char* name, const Checked& like) {
  const void* data = data_of(tensor, name, like);
  bool fits = tensor.dim() == like.dims;
  for (int64_t d = 0; fits && d < like.dims; ++d) fits = tensor.size(d) == like.sizes[d];
  if (!fits) Argument{kOp, name, -1}.fail("has another shape than activation");
  if (like.numel != 0 && !channels_are_innermost(tensor)) {
    Argument{kOp, name, -1}.fail(
        "does not have its channels next to each other in memory; pass "
        ".contiguous(memory_format=torch.channels_last), or for 3 dimensions .contiguous()");
  }
  return data;
}

const void* bias_of(const Tensor& tensor, const char* name, const Checked& like) {
  const void* data = data_of(tensor, name, like);
  if (tensor.dim() != 1 || tensor.numel() != like.channels || !tensor.is_contiguous()) {
    Argument{kOp, name, -1}.fail("is not a contiguous vector with an element for each channel");
  }
  return data;
}

constexpr char kBiasAdd[] =
    "bias_add(Tensor activation, Tensor bias, Tensor? other, Tensor? other_bias, Tensor(a!) out) "
    "-> ()";
void bias_add(const Tensor& activation, const Tensor& bias, const std::optional<Tensor>& other,
              const std::optional<Tensor>& other_bias, const Tensor& out) {
  if (is_meta(activation.get())) return;
  const int64_t dims = activation.dim();
  if (dims != 3 && dims != 4) {
    fail(kOp, "activation has %lld dimensions; pass 4, or 3 with the channels last",
         static_cast<long long>(dims));
  }
  if (other_bias && !other) fail(kOp, "other_bias is given without other");
  const Argument argument{kOp, "activation", -1};
  const Checked like{FloatTypes().check(activation.get(), argument),
                     activation.get_device_index(),
                     activation.numel(),
                     activation.size(dims == 4 ? 1 : 2),
                     get(&aoti_torch_get_sizes, activation.get()),
                     dims};
  BiasAddArguments a{};
  a.type = like.type;
  a.x = image_of(activation, "activation", like);
  a.bias = bias_of(bias, "bias", like);
  if (other) a.other = image_of(*other, "other", like);
  if (other_bias) a.other_bias = bias_of(*other_bias, "other_bias", like);
  a.out = const_cast<void*>(image_of(out, "out", like));
  a.numel = like.numel;
  a.channels = like.channels;
  if (a.numel == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(like.device);
  check_launch(kOp, launch_bias_add(a, current_cuda_stream(kOp, like.device)));
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_spatial_inference, m) { m.def(deepspeed::kBiasAdd); }

STABLE_TORCH_LIBRARY_IMPL(deepspeed_spatial_inference, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("bias_add", boxed<&bias_add, kBiasAdd>());
}
