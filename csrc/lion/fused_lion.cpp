// Operators deepspeed_fused_lion::*: argument checks around the kernels.
//
// They are registered for every device: the check for GPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "fused_lion.h"

#include <torch/csrc/stable/library.h>

#include <optional>

#include "checks.h"
#include "cuda_tensor_table.h"
#include "registration.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

void run(const char* op, const TensorList& params, const TensorList& grads,
         const TensorList& exp_avgs, const FusedLionOptions& options, const Tensor* lr,
         const Tensor* step, const Tensor* grad_scale, const Tensor* found_inf) {
  check_coefficient(op, "beta1", options.beta1);
  check_coefficient(op, "beta2", options.beta2);
  if (params.all_meta()) return;
  TensorTableBuilder<kFusedLionStreams> table(op, {"params", "grads", "exp_avgs"});
  table.add({&params, &grads, &exp_avgs});
  if (params.empty()) return;
  const FloatType type = table.type(kFusedLionParam), state = table.type(kFusedLionExpAvg);
  check_optimizer_types(op, type, table.type(kFusedLionGrad), state);
  const int32_t device = table.device();
  const DeviceValues values = device_values(op, device, lr, step, grad_scale, found_inf);
  if (table.empty()) return;
  const auto* rows = table.rows(fused_lion_chunk(type, state));
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Workspace workspace(fused_lion_workspace(table.size(), table.chunks()), device);
  check_launch(op,
               launch_fused_lion(type, state, rows, table.size(), table.chunks(), options, values,
                                 workspace.data(), device, current_cuda_stream(op, device)));
}

constexpr char kLionStep[] =
    "lion_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, float lr, float beta1, "
    "float beta2, float weight_decay) -> ()";
void lion_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               double lr, double beta1, double beta2, double weight_decay) {
  run("lion_step", params, grads, exp_avgs, {lr, beta1, beta2, weight_decay}, nullptr, nullptr,
      nullptr, nullptr);
}

constexpr char kLionStepOnDevice[] =
    "lion_step_on_device(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!) step, Tensor lr, float beta1, float beta2, float weight_decay, "
    "Tensor? grad_scale, Tensor? found_inf) -> ()";
void lion_step_on_device(const TensorList& params, const TensorList& grads,
                         const TensorList& exp_avgs, const Tensor& step, const Tensor& lr,
                         double beta1, double beta2, double weight_decay,
                         const std::optional<Tensor>& grad_scale,
                         const std::optional<Tensor>& found_inf) {
  run("lion_step_on_device", params, grads, exp_avgs, {0.0, beta1, beta2, weight_decay}, &lr, &step,
      pointer_to(grad_scale), pointer_to(found_inf));
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_fused_lion, m) {
  using namespace deepspeed;
  m.def(kLionStep).def(kLionStepOnDevice);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_fused_lion, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("lion_step", boxed<&lion_step, kLionStep>());
  m.impl("lion_step_on_device", boxed<&lion_step_on_device, kLionStepOnDevice>());
}
