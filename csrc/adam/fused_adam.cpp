// Operators deepspeed_fused_adam::*: argument checks around the kernels.
//
// They are registered for every device: the check for GPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "fused_adam.h"

#include <torch/csrc/stable/library.h>

#include <optional>

#include "checks.h"
#include "cuda_tensor_table.h"
#include "registration.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

void check(const char* op, double beta1, double beta2) {
  check_coefficient(op, "beta1", beta1);
  check_coefficient(op, "beta2", beta2);
}

void check_types(const char* op, const TensorTableBuilder<kAdamStreams>& table) {
  const FloatType state = table.type(kAdamExpAvg);
  if (state != table.type(kAdamExpAvgSq)) {
    fail(op, "exp_avgs and exp_avg_sqs have different dtypes; convert one of them");
  }
  check_optimizer_types(op, table.type(kAdamParam), table.type(kAdamGrad), state);
}

void run(const char* op, const TensorList& params, const TensorList& grads,
         const TensorList& exp_avgs, const TensorList& exp_avg_sqs, const AdamOptions& options,
         const Tensor* lr, const Tensor* step, const Tensor* grad_scale, const Tensor* found_inf) {
  TensorTableBuilder<kAdamStreams> table(op, {"params", "grads", "exp_avgs", "exp_avg_sqs"});
  table.add({&params, &grads, &exp_avgs, &exp_avg_sqs});
  if (params.empty()) return;
  check_types(op, table);
  const int32_t device = table.device();
  const DeviceValues values = device_values(op, device, lr, step, grad_scale, found_inf);
  if (table.empty()) return;
  const FloatType type = table.type(kAdamParam), state = table.type(kAdamExpAvg);
  const auto* rows = table.rows(adam_chunk(type, state));
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Workspace workspace(adam_workspace(table.size(), table.chunks()), device);
  check_launch(op, launch_adam(type, state, rows, table.size(), table.chunks(), options, values,
                               workspace.data(), device, current_cuda_stream(op, device)));
}

constexpr char kAdamStep[] =
    "adam_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool adamw, bool bias_correction) -> ()";
void adam_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               const TensorList& exp_avg_sqs, int64_t step, double lr, double beta1, double beta2,
               double eps, double weight_decay, bool adamw, bool bias_correction) {
  constexpr const char* kOp = "adam_step";
  check(kOp, beta1, beta2);
  check_step(kOp, step);
  if (params.all_meta()) return;
  run(kOp, params, grads, exp_avgs, exp_avg_sqs,
      {lr, beta1, beta2, eps, weight_decay, static_cast<double>(step), adamw, bias_correction},
      nullptr, nullptr, nullptr, nullptr);
}

constexpr char kAdamStepOnDevice[] =
    "adam_step_on_device(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, Tensor(d!) step, Tensor lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool adamw, bool bias_correction, Tensor? grad_scale, "
    "Tensor? found_inf) -> ()";
void adam_step_on_device(const TensorList& params, const TensorList& grads,
                         const TensorList& exp_avgs, const TensorList& exp_avg_sqs,
                         const Tensor& step, const Tensor& lr, double beta1, double beta2,
                         double eps, double weight_decay, bool adamw, bool bias_correction,
                         const std::optional<Tensor>& grad_scale,
                         const std::optional<Tensor>& found_inf) {
  constexpr const char* kOp = "adam_step_on_device";
  check(kOp, beta1, beta2);
  if (params.all_meta()) return;
  run(kOp, params, grads, exp_avgs, exp_avg_sqs,
      {0.0, beta1, beta2, eps, weight_decay, 0.0, adamw, bias_correction}, &lr, &step,
      pointer_to(grad_scale), pointer_to(found_inf));
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_fused_adam, m) {
  using namespace deepspeed;
  m.def(kAdamStep).def(kAdamStepOnDevice);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_fused_adam, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("adam_step", boxed<&adam_step, kAdamStep>());
  m.impl("adam_step_on_device", boxed<&adam_step_on_device, kAdamStepOnDevice>());
}
